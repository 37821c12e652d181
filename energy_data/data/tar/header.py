"""Members of tars: headers in the formats ustar, GNU and pax, and the parts of samples they name.

`walk` parses any header: long names, pax records, huge sizes. It raises every error; the C part
leaves every header that is not plain to it. `split_name` is the rule of webdataset and Energon:

    "images/0001.seg.png"  ->  key "images/0001", extension "seg.png"

The key reaches to the first dot after the last slash. Files without extension and those in or
named `__...__` are no parts of samples.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

BLOCK = 512  # bytes; the unit of a tar file
ZEROS = bytes(BLOCK)  # two of them end a tar

_CHECKSUM_BLANK = 8 * 32  # the checksum counts its own field as spaces
_ADLER = 65521

REGULAR = (0, ord("0"), ord("7"))
_DATALESS = frozenset(b"123456")  # links, devices, folders, pipes: their size field has no meaning
_EXTENDED = frozenset(b"LKxgX")  # describe the member that follows
_SPARSE = ord("S")
_LONGEST_EXTENDED = 1 << 20  # bytes of a long name or of pax records
_NAME = re.compile(r"((?:.*/)?[^.]+)[.]([^/]*)")
_META = re.compile(r"__[^/]*__(?:$|/)")


class Fault(Exception):  # noqa: N818 - becomes a SampleError or a StructureError, as the caller knows
    """Something wrong in a tar: what, and at which byte."""

    def __init__(self, problem: str, offset: int, key: str | None = None) -> None:
        self.problem, self.offset, self.key = problem, offset, key
        super().__init__(problem)


class TarMember(NamedTuple):
    """One member of a tar."""

    name: str
    offset: int  # of its first header, the extended ones included
    data: int  # offset of its payload
    size: int  # of its payload
    end: int  # offset of the next header
    regular: bool  # a file; not a folder, link or device


class _Header(NamedTuple):
    name: str
    size: int
    kind: int


Reader = Callable[[int, int], bytes]
"""Returns exactly the bytes (offset, size)."""


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def walk(read: Reader, begin: int, end: int) -> Iterator[TarMember]:
    """Yield the members between two offsets.

    Raises Fault for a header that is none, and for a member that reaches beyond `end`.
    """
    at = begin
    while at < end:
        first, name, size = at, "", -1
        while True:
            _fit(at, BLOCK, end, "a header", name or None)
            header = _parse(read(at, BLOCK), at)
            data, at = _extent(header, at, size)
            if header.kind not in _EXTENDED:
                break
            _fit(data, at - data, end, "an extended header", None)
            name, size = _extend(header, read, data, name, size)
        name = name or header.name
        _fit(data, at - data, end, f"{name!r}", name)
        size = header.size if size < 0 else size
        yield TarMember(name, first, data, size, at, header.kind in REGULAR)


def _extent(header: _Header, at: int, size: int) -> tuple[int, int]:
    """Return where the payload of the header at `at` begins, and where the next header is."""
    data = at + BLOCK
    if header.kind in _DATALESS:
        return data, data
    if header.kind == _SPARSE:
        problem = f"{header.name!r} is a sparse file. Write the tar without --sparse."
        raise Fault(problem, at, header.name)
    if size < 0 or header.kind in _EXTENDED:
        size = header.size
    return data, data + (size + BLOCK - 1) // BLOCK * BLOCK


def _fit(offset: int, size: int, end: int, what: str, key: str | None) -> None:
    if offset + size > end:
        raise Fault(
            f"{what} needs {size} bytes, but {max(0, end - offset)} are left. "
            "The tar was cut or changed: restore it, or run `energy-data prepare "
            "--tar-index-only`.",
            offset,
            key,
        )


def _extend(header: _Header, read: Reader, data: int, name: str, size: int) -> tuple[str, int]:
    """Return name and size as an extended header changes them."""
    if header.kind in b"gK":  # defaults and link targets do not matter for files
        return name, size
    if header.size > _LONGEST_EXTENDED:
        problem = f"an extended header has {header.size} bytes, more than {_LONGEST_EXTENDED}."
        raise Fault(f"{problem} The tar is damaged: restore it.", data - BLOCK)
    body = read(data, header.size)
    if header.kind == ord("L"):
        return _text(body), size
    for key, value in _pax_records(body, data):
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            size = _decimal(value, data)
        elif key.startswith(b"GNU.sparse"):
            raise Fault("a sparse file. Write the tar without --sparse.", data - BLOCK)
    return name, size


def _pax_records(body: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records `length key=value newline`."""
    at = 0
    while at < len(body) and body[at]:
        digits, space, _ = body[at : at + 20].partition(b" ")
        length = _decimal(digits, offset + at) if space else 0
        record = body[at + len(digits) + 1 : at + max(length, 1)]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or at + length > len(body) or record[-1:] != b"\n":
            raise Fault("damaged pax records. Restore the tar.", offset + at)
        yield key, value
        at += length


def _decimal(digits: bytes, offset: int) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise Fault(f"{digits[:20]!r} is no number in a pax record. Restore the tar.", offset)
    return int(digits)


def _parse(block: bytes, offset: int) -> _Header:
    field = block[148:156]
    try:
        check, size = _number(field), _number(block[124:136])
    except ValueError:
        check, size = -1, -1
    total = (zlib.adler32(block) & 0xFFFF) - 1 - sum(field) + _CHECKSUM_BLANK
    if size < 0 or ((total - check) % _ADLER and not _signed_checksum(block, check)):
        raise Fault(
            "no tar header where one should be: its checksum is wrong. The tar was damaged or "
            "changed: restore it, or run `energy-data prepare --tar-index-only`.",
            offset,
        )
    name = _text(block[:100])
    if block[345] and block[257:263] == b"ustar\0":
        name = f"{_text(block[345:500])}/{name}"
    return _Header(name, size, block[156])


def _signed_checksum(block: bytes, check: int) -> bool:
    """Return whether `check` is right in the way of old tars, which took bytes for signed."""
    counted = np.frombuffer(block, np.int8).sum(dtype=np.int64)
    counted -= np.frombuffer(block, np.int8)[148:156].sum(dtype=np.int64)
    return bool(counted + _CHECKSUM_BLANK == check)


def _number(field: bytes) -> int:
    """Return the value of an octal or base-256 field; raise ValueError if it is neither."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.partition(b"\0")[0].strip()
    if not text:
        return 0
    if text.strip(b"01234567"):  # int() would take signs and underscores
        raise ValueError(text)
    return int(text, 8)


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension), or None if the file is no part of a sample."""
    key, dot, extension = name.partition(".")
    if not dot or not key or "/" in extension or name.startswith("__"):
        found = None if _META.match(name) else _NAME.fullmatch(name)
        return (found[1], found[2]) if found else None
    return key, extension
