"""A map-style dataset over the files of a case, as users of torch and Grain write it."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.case import Case


def open_samples(case: Case, folder: Path) -> Any:
    """Return an object with `len` and `[number]`; a sample is a pair of its key and its value."""
    if case.name == "tokens":
        return Windows(case.files(folder) / "corpus.bin", case.num_samples)
    return Pages(case, folder) if case.name.startswith("parquet") else Tarred(case, folder)


class Tarred:
    """The samples of tar shards by a table of offsets: one `pread` each."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.paths = case, []
        tables = []
        for tars in case.tars(folder):
            for shard in sorted(tars.glob("*.tar")):
                starts = np.fromfile(f"{shard}.idx", dtype="<u8").astype(np.int64)
                rows = np.column_stack((starts[:-1], np.diff(starts)))
                tables.append(np.insert(rows, 0, len(self.paths), axis=1))
                self.paths.append(shard)
        self.table = np.concatenate(tables)

    @cached_property
    def files(self) -> list[int]:
        """The shards, opened in the process that reads."""
        return [os.open(path, os.O_RDONLY) for path in self.paths]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number: int) -> tuple[str, Any]:
        file, offset, size = self.table[number].tolist()
        raw = os.pread(self.files[file], size, offset)
        key = raw[: raw.index(b".")].decode()
        return key, self.case.decode(raw[512 : 512 + int(raw[124:135], 8)])


class Windows:
    """The windows of a file of tokens, mapped."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count

    @cached_property
    def tokens(self) -> np.ndarray:
        """The file, mapped in the process that reads."""
        return np.memmap(self.path, "<u2", mode="r").reshape(self.count, -1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[str, torch.Tensor]:
        return "", torch.from_numpy(self.tokens[number].astype(np.int64))


class Pages:
    """The rows of Parquet files, which `datasets` has made Arrow files of."""

    def __init__(self, case: Case, folder: Path) -> None:
        import datasets

        datasets.disable_progress_bars()
        files = sorted(map(str, case.metadataset(folder).glob("*.parquet")))
        self.rows = datasets.load_dataset(
            "parquet", data_files=files, split="train", cache_dir=str(folder / "arrow")
        )
        self.part = case.part

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[str, str]:
        return "", self.rows[number][self.part]
