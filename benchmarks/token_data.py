"""Windows of tokens in the format of each loader that reads tokens."""

import io
import struct
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import torch

from benchmarks import mds


def write(folder: Path, windows: Iterable[torch.Tensor], length: int) -> None:
    """Write windows as one file of Megatron, and as chunks of litdata."""
    folder.mkdir(parents=True)
    tokens = torch.stack(list(windows)).numpy().astype("<u2")
    write_megatron(folder / "corpus.bin", tokens)
    text = f"splits: {{train: {{path: corpus.bin, seq_len: {length}}}}}\n"
    (folder / "metadataset.yaml").write_text(text)
    with redirect_stdout(io.StringIO()):
        write_litdata(folder / "litdata", folder / "corpus.bin", length)
    mds.write(folder.parent / "mds" / "000", (("", row.tobytes()) for row in tokens))


def write_megatron(path: Path, tokens: np.ndarray) -> None:
    """Write windows as documents."""
    tokens.tofile(path)
    count, length = tokens.shape
    with path.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.write(np.full(count, length, "<i4").tobytes())
        file.write((np.arange(count, dtype="<i8") * length * 2).tobytes())
        file.write(np.arange(count + 1, dtype="<i8").tobytes())


def write_litdata(folder: Path, corpus: Path, length: int) -> None:
    """Write windows as the chunks that `TokensLoader` reads."""
    from litdata import TokensLoader, optimize

    optimize(
        blocks,
        inputs=[str(corpus)],
        output_dir=str(folder),
        chunk_size=length * 8192,
        item_loader=TokensLoader(block_size=length),
        num_workers=1,
        start_method="fork",
        verbose=False,
    )


def blocks(corpus: str) -> Iterator[torch.Tensor]:
    yield torch.from_numpy(np.fromfile(corpus, "<u2"))
