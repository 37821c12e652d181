"""Layouts of files of token ids: Megatron's, datatrove's, numpy's, and raw integers.

    file = open_tokens("/data/corpus.bin")  # and corpus.idx
    file.num_tokens, file.dtype, file.documents

Opening reads headers only, whatever the size of a file. Nothing is mapped into memory: a process
that reads a map of a file that was cut dies.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from energy_data.core.arrays import Int64s
from energy_data.data.files.local import LocalFile, Version, keep_open, open_file, version_of
from energy_data.errors import SpecError, StructureError
from energy_data.remote.client import held

_MEGATRON = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")  # magic, version, dtype, sequences, documents + 1
_MEGATRON_DTYPES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 6: "f8", 7: "f4", 8: "u2"}
_BAD_HEADER = ValueError, AttributeError, TypeError, SyntaxError, TokenError, RecursionError
_HEAD = 1 << 17  # bytes of a .npy file that have its header
_SEARCHED = 512  # values of an index that are read at once


@frozen(kw_only=True)
class Values:
    """Integers of a file, read at random."""

    path: str
    version: Version | None
    dtype: np.dtype[Any]
    begin: int  # byte of the first one
    count: int

    @property
    def file(self) -> LocalFile:
        """The file, open."""
        found: LocalFile = keep_open(open_file, self.path, self.version)
        return found

    def read(self, first: int, end: int) -> npt.NDArray[Any]:
        """Return values [first, end)."""
        size = self.dtype.itemsize
        data = self.file.read(self.begin + first * size, (end - first) * size)
        return np.frombuffer(data, self.dtype)

    def rows(self, begins: Sequence[int], length: int) -> npt.NDArray[Any]:
        """Return `length` values from each of `begins` on, an array [rows, length]."""
        size = self.dtype.itemsize
        found = np.empty((len(begins), length), self.dtype)
        offsets = [self.begin + begin * size for begin in begins]
        self.file.read_rows(found.reshape(-1).view(np.uint8).data, offsets)
        return found


@frozen(kw_only=True)
class Documents:
    """Where the documents of a file begin, as its index says.

    Document n has the tokens [bound n, bound n + 1). Bound 0 is 0, the last bound is the number of
    tokens; the file has the bounds from `first` on.
    """

    bounds: Values
    first: int  # 0, or 1 if bound 0 is left out
    unit: int  # bytes of a token if bounds are bytes, else 1
    count: int
    num_tokens: int

    def bound(self, first: int, end: int) -> Int64s:
        """Return the bounds [first, end), 0 <= first < end <= count + 1."""
        low, high = max(first, self.first), min(end, self.first + self.bounds.count)
        found = np.empty(end - first, np.int64)
        found[: low - first] = 0
        found[high - first :] = self.num_tokens
        if low < high:
            values = self.bounds.read(low - self.first, high - self.first).astype(np.int64)
            if (values % self.unit).any():
                raise StructureError(
                    f"has documents that begin inside a token of {self.unit} bytes. Write it "
                    "again.",
                    shard=self.bounds.path,
                )
            found[low - first : high - first] = values // self.unit
        if found[0] < 0 or found[-1] > self.num_tokens or (np.diff(found) < 0).any():
            problem = f"has documents {first} to {end - 1} at tokens {found[:3].tolist()}..."
            raise StructureError(
                f"{problem}, out of order or beyond its {self.num_tokens:,} tokens. Write the "
                "index again.",
                shard=self.bounds.path,
            )
        return found

    def between(self, begin: int, end: int, extra: int = 0) -> tuple[int, Int64s]:
        """Return the document of token `begin`, and the bounds from its own to the first >= `end`.

        extra: tokens added to each document, which count in all positions and bounds.

        Interpolation search, about 2 reads of 4 KiB for documents of like lengths; bisection where
        it does not converge.
        """
        low, high, at_low, at_high = 0, self.count, 0, self.num_tokens + self.count * extra
        bisect = False
        while high - low >= _SEARCHED:
            share = (high - low) // 2
            if not bisect:
                share = (begin - at_low) * (high - low) // max(at_high - at_low, 1)
            first = min(max(low + share - _SEARCHED // 2, low), high + 1 - _SEARCHED)
            found = self._bound(first, first + _SEARCHED, extra)
            before = high - low
            if found[0] > begin:
                high, at_high = first, int(found[0])
            elif found[-1] <= begin:
                low, at_low = first + _SEARCHED - 1, int(found[-1])
            else:
                low, high = first, first + _SEARCHED - 1
            bisect = not bisect and high - low > before // 2
        found = self._bound(low, high + 1, extra)
        document = low + int(np.searchsorted(found, begin, side="right")) - 1
        parts = [found[document - low :]]
        while parts[-1][-1] < end:
            first = high + 1
            high = min(high + _SEARCHED, self.count)
            parts.append(self._bound(first, high + 1, extra))
        bounds = np.concatenate(parts)
        return document, bounds[: int(np.searchsorted(bounds, end)) + 1]

    def _bound(self, first: int, end: int, extra: int) -> Int64s:
        found = self.bound(first, end)
        return found + extra * np.arange(first, end) if extra else found


@frozen(kw_only=True)
class TokenFile:
    """An open file of tokens."""

    tokens: Values
    documents: Documents | None  # None: the file does not say where documents begin
    loss_mask: Values | None = None  # bool, of each token
    row_length: int | None = None  # tokens of a row, of an array of rows

    @property
    def columns(self) -> Mapping[str, Values]:
        """The values of each token, by the name that they have in samples."""
        mask = {} if self.loss_mask is None else {"loss_mask": self.loss_mask}
        return {"tokens": self.tokens, **mask}

    @property
    def paths(self) -> list[str]:
        """The paths of all files that samples are read from."""
        found = [self.tokens.path]
        if self.documents is not None:
            found.append(self.documents.bounds.path)
        return found if self.loss_mask is None else [*found, self.loss_mask.path]


def open_tokens(path: str, dtype: str | None = None) -> TokenFile:
    """Return a file of tokens.

    path: `corpus.bin` with `corpus.idx` of Megatron; `corpus.ds` of datatrove; `tokens.npy`; or raw
        little-endian integers.
    dtype: of raw integers. The other layouts say it themselves, and must say the same.

    Raises SpecError for a file that does not exist or a dtype that is needed, StructureError for a
    file that does not have its layout.
    """
    if not Path(path).is_file():
        raise SpecError(f"{path}: there is no such file. Name a file of tokens.")
    index = path.removesuffix(".bin") + ".idx"
    if path.endswith(".npy"):
        found = _numpy(path)
    elif path.endswith(".ds"):
        found = _datatrove(path, dtype)
    elif Path(index).is_file():
        found = _megatron(path, index)
    elif dtype is None:
        raise SpecError(
            f"{path}: there is no {index}, so it is no file of Megatron. Restore the index; or, "
            "for raw integers, give their `dtype`, such as uint16."
        )
    else:
        found = TokenFile(tokens=_raw(path, np.dtype(dtype)), documents=None)
    own = found.tokens.dtype
    if own.kind not in "iu" or (own.kind == "u" and own.itemsize == 8):
        problem = f"has values of {own.name}. Tokens are integers that int64 can hold."
        raise StructureError(problem, shard=path)
    if dtype is not None and np.dtype(dtype) != own.newbyteorder("="):
        raise SpecError(f"{path}: its tokens are {own.name}, not {dtype}. Remove `dtype`.")
    if not found.tokens.count:
        raise StructureError("it has no tokens. Write it again, or remove it.", shard=path)
    return found


def _raw(path: str, dtype: np.dtype[Any], begin: int = 0) -> Values:
    """Return the values from a byte to the end of the file."""
    version = version_of(path)
    if version is None:
        raise StructureError("does not exist. Restore it.", shard=path)
    if version.size < begin or (version.size - begin) % dtype.itemsize:
        raise StructureError(
            f"has {version.size} bytes, no whole number of {dtype.name} after byte {begin}. It was "
            "cut, or its values have another type.",
            shard=path,
        )
    count = (version.size - begin) // dtype.itemsize
    dtype = dtype.newbyteorder("<") if dtype.byteorder == "=" else dtype
    return Values(path=path, version=version, dtype=dtype, begin=begin, count=count)


def _megatron(path: str, index: str) -> TokenFile:
    file = open_file(index)
    if file.size < _HEADER.size:
        raise StructureError(f"has {file.size} bytes, no header of Megatron.", shard=index)
    magic, version, code, count, documents = _HEADER.unpack(file.read(0, _HEADER.size))
    if magic != _MEGATRON or version != 1 or code not in _MEGATRON_DTYPES:
        raise StructureError(
            f"is no index of Megatron: it begins {magic!r}, version {version}, dtype {code}.",
            shard=index,
        )
    lengths = _HEADER.size
    pointers = lengths + 4 * count
    end = pointers + 8 * count + 8 * documents
    if not count:
        raise StructureError("has no sequences. Write it again, or remove it.", shard=index)
    if file.size not in (end, end + count):  # modes, of several modalities, come last
        raise StructureError(
            f"has {file.size} bytes, but its {count} sequences and {documents} bounds of documents "
            f"need {end}. It was cut, or is no index of Megatron.",
            shard=index,
        )
    tokens = _raw(path, np.dtype(_MEGATRON_DTYPES[code]))
    (length,) = struct.unpack("<i", file.read(pointers - 4, 4))
    first, last = (
        struct.unpack("<q", file.read(at, 8))[0] for at in (pointers, pointers + 8 * count - 8)
    )
    size = tokens.dtype.itemsize
    if first != 0 or last + length * size != tokens.count * size:
        raise StructureError(
            f"has its sequences from byte {first} to {last + length * size}, but {path} has "
            f"{tokens.count * size} bytes. They do not belong together.",
            shard=index,
        )
    bounds = Values(
        path=index, version=version_of(index), dtype=np.dtype("<i8"), begin=pointers, count=count
    )
    found = Documents(bounds=bounds, first=0, unit=size, count=count, num_tokens=tokens.count)
    return TokenFile(tokens=tokens, documents=found)


def _datatrove(path: str, dtype: str | None) -> TokenFile:
    """Return the file, whose index has the end of each document in tokens."""
    index = f"{path}.index"
    if not Path(index).is_file():
        if dtype is None:
            problem = f"there is no {index}, which says where documents end and what a token is"
            raise SpecError(f"{path}: {problem}. Restore it, or give the `dtype` of the tokens.")
        return TokenFile(tokens=_raw(path, np.dtype(dtype)), documents=None)
    ends = _raw(index, np.dtype("<u8"))
    last = int(ends.read(ends.count - 1, ends.count)[0]) if ends.count else 0
    size = Path(path).stat().st_size
    if not last or size not in (2 * last, 4 * last):
        raise StructureError(
            f"says that there are {last} tokens, but {path} has {size} bytes: neither 2 nor 4 of "
            "each. They do not belong together.",
            shard=index,
        )
    tokens = _raw(path, np.dtype(f"<u{size // last}"))
    documents = Documents(bounds=ends, first=1, unit=1, count=ends.count, num_tokens=last)
    mask = None
    if Path(f"{path}.loss").is_file():
        mask = _raw(f"{path}.loss", np.dtype("bool"))
        if mask.count != last:
            problem = f"has {mask.count} bytes, but {path} has {last} tokens"
            raise StructureError(f"{problem}. They do not belong together.", shard=mask.path)
    return TokenFile(tokens=tokens, documents=documents, loss_mask=mask)


def _numpy(path: str) -> TokenFile:
    """Return an array [tokens], or rows [rows, tokens]."""
    head = (path, 0, min(Path(path).stat().st_size, _HEAD))
    with held([head], always=True), Path(path).open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            header: Callable[..., Any] = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, in_columns, dtype = header(file)
        except _BAD_HEADER as error:
            problem = f"is no .npy file: {error}"
            raise StructureError(f"{problem}. Write it with numpy.save.", shard=path) from error
        begin = file.tell()
    rows = len(shape) == 2
    if (
        dtype.kind not in "iu"
        or len(shape) not in (1, 2)
        or (rows and in_columns)
        or min(shape) < 1
    ):
        raise StructureError(
            f"has {dtype} of shape {shape}. Tokens are integers of shape [tokens], or rows [rows, "
            "tokens] in C order.",
            shard=path,
        )
    tokens = _raw(path, dtype, begin)
    if tokens.count != int(np.prod(shape, dtype=object)):
        problem = f"has {tokens.count} values, but its header says {shape}"
        raise StructureError(f"{problem}. It was cut.", shard=path)
    return TokenFile(tokens=tokens, documents=None, row_length=shape[1] if rows else None)
