"""The lines of a JSONL file by key: `12.json` is line 12, from 0, of those that hold samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from energy_data.core.sample import SampleSource
from energy_data.data.files.local import open_file
from energy_data.data.files.offsets import Offsets
from energy_data.data.files.stores import FileStore
from energy_data.data.jsonl.index import find_jsonl_index, load_jsonl_index
from energy_data.errors import SpecError

_EXTENSION = ".json"


class JsonlFileStore(FileStore[bytes]):
    """The samples of a JSONL file, each as the bytes of its one part, `json`.

    A lookup costs one read. Raises SpecError, when it is made, if there is no such file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if not Path(path).is_file():
            raise SpecError(f"{path}: there is no such file. Name a .jsonl file.")
        self._index = find_jsonl_index(self.path)

    def __reduce__(self) -> tuple[type[JsonlFileStore], tuple[str]]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"JsonlFileStore({self.path})"

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._offsets) - 1

    def __getitem__(self, key: str) -> tuple[bytes, SampleSource]:
        """Return the bytes of a sample. KeyError if there is none."""
        number = key.removesuffix(_EXTENSION)
        if not (key.endswith(_EXTENSION) and number.isdecimal() and int(number) < len(self)):
            raise KeyError(
                f"{self.path}: there is no {key!r}, only 0.json to {len(self) - 1}.json."
            )
        begin, end = (int(self._offsets[int(number) + n]) for n in (0, 1))
        data = open_file(self.path).read(begin, end - begin)
        return data, SampleSource(self.path, Path(self.path).name, key)

    def get_path(self) -> str:
        """Return the path of the file."""
        return self.path

    def get_total_size(self) -> int:
        """Return the bytes of the file."""
        return int(self._offsets[-1])

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Yield each key, its bytes, and 0, the number of the one file there is."""
        sizes = (self._offsets[1:] - self._offsets[:-1]).tolist()
        yield from ((f"{number}{_EXTENSION}", size, 0) for number, size in enumerate(sizes))

    @cached_property
    def _offsets(self) -> Offsets:
        return load_jsonl_index(self._index, self.path)
