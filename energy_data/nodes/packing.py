"""Packing: which documents form a pack of limited size, and how the pack is made of them.

`Packing` is what `PackSpec` follows. `Joined` joins token documents, as most models want them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index, sub
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from attrs import field, frozen

from energy_data.core.node import ItemRef
from energy_data.core.sample import describe_source
from energy_data.errors import DataError, SpecError

OverLong = Literal["error", "skip", "truncate", "split"]
Fragments = Literal["last", "each"]
Sizes = tuple[int, ...]


class Document(NamedTuple):
    """A document, or a part of one, that can go into a pack."""

    ref: ItemRef  # of its sample; of a split document, after start, stop and full length
    item: Any
    sizes: Sizes
    docs: int  # its count


@frozen
class Joined:
    """Join token documents: each one-dimensional field end to end, other fields as lists.

    A list has one value per document, None where the document lacks the field. The pack also has
    `cu_seqlens`, an int32 tensor [docs + 1], where each document begins and the last ends, and
    `position_ids`, int64 [length], the position of each token in its document, unless documents
    have a field of that name. It restarts at 0 in each part of a split document. With `length`,
    fields are padded to it with their value in `pad` (default 0), and `position_ids` with 0.

    Raises DataError if a document lacks a field that is one-dimensional in others.
    """

    of: str = "tokens"  # the field whose length is that of the document
    length: int | None = None
    pad: Mapping[str, float] = field(factory=dict)

    def __call__(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the pack of documents; without documents, only padding of field `of`."""
        lengths = [len(document[self.of]) for document in documents]
        names = list(dict.fromkeys(name for document in documents for name in document))
        pack: dict[str, Any] = {}
        for name in names or [self.of]:
            values = [document.get(name) for document in documents]
            if all(_is_line(value) for value in values):
                pack[name] = self._joined(name, values)
            elif any(_is_line(value) for value in values):
                raise DataError(
                    f"Joined: {name!r} is one-dimensional in some documents of a pack, and missing "
                    f"or of another form in others. Return it from encode_sample for all of them."
                )
            else:
                pack[name] = values
        ends = np.cumsum([0, *lengths])
        pack["cu_seqlens"] = torch.from_numpy(ends.astype(np.int32))
        if "position_ids" not in pack:
            positions = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
            pack["position_ids"] = self._padded(torch.from_numpy(positions), 0)
        return pack

    def _joined(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        lines = [torch.as_tensor(value) for value in values]
        joined = torch.cat(lines) if lines else torch.zeros(0, dtype=torch.int64)
        return self._padded(joined, self.pad.get(name, 0))

    def _padded(self, line: torch.Tensor, value: float) -> torch.Tensor:
        missing = 0 if self.length is None else self.length - len(line)
        if missing < 0:
            raise DataError(
                f"Joined: a pack has {len(line)} values, more than its length {self.length}. Set "
                f"the limit of the packing to the same length."
            )
        return torch.nn.functional.pad(line, (0, missing), value=value) if missing else line


def _is_line(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 1


@frozen
class CutFields:
    """Cut a document: each one-dimensional field as long as `of`; other fields stay."""

    of: str = "tokens"

    def __call__(self, document: Any, start: int, stop: int) -> Any:
        """Return tokens [start, stop) of a document."""
        length = len(document[self.of])
        return {
            name: value[start:stop] if _is_line(value) and len(value) == length else value
            for name, value in document.items()
        }


@frozen(kw_only=True)
class Packing:
    """Which documents form a pack, and how the pack is made of them.

    A pack begins with the oldest pending document. While one fits, it adds the largest that fits
    (best fit), among equals the oldest. In the pack, documents are in their order of arrival.
    """

    limits: Mapping[str, int]
    """Name -> maximum of a pack: {"tokens": 2048, "images": 8}. Packs are filled by the first."""

    lengths: Callable[[Any], Mapping[str, int]] | None = None
    """Amount of each limit in a document. None: its field of that name, or the field's length."""

    pack: Callable[[list[Any]], Any] = field()
    """Makes a pack of documents; the default is `Joined` with the first limit as its length."""

    cut: Callable[[Any, int, int], Any] = field()
    """Returns part [start, stop) of a document, in the first limit; the default is `CutFields`."""

    over_long: OverLong = "error"
    """A document above a limit is an error, skipped, truncated, or split into several."""

    fragments: Fragments = "last"
    """A split document counts once, with its last part, or with each part."""

    @pack.default
    def _pack(self) -> Joined:
        first, length = next(iter(self.limits.items()), ("tokens", None))
        return Joined(first, length)

    @cut.default
    def _cut(self) -> CutFields:
        return CutFields(next(iter(self.limits), "tokens"))

    def __attrs_post_init__(self) -> None:
        if not self.limits or any(limit < 1 for limit in self.limits.values()):
            raise SpecError(
                f"packing: limits must be names with numbers >= 1, got {dict(self.limits)}."
            )
        for name, kind in (("over_long", OverLong), ("fragments", Fragments)):
            if (value := getattr(self, name)) not in (known := get_args(kind)):
                raise SpecError(f"packing: {name} must be one of {known}, got {value!r}.")

    def documents(self, ref: ItemRef, item: Any) -> tuple[list[Document], int]:
        """Return the documents of a sample, and how much of the first limit is lost.

        Raises DataError if it is above a limit and that is an error.
        """
        sizes, splits = self._sizes(item), self.over_long == "split"
        if _fits(sizes, self.limits.values()):
            return [Document((0, sizes[0], sizes[0], *ref) if splits else ref, item, sizes, 1)], 0
        if self.over_long == "skip":
            return [], sizes[0]
        if self.over_long == "error":
            raise self._too_long(item, sizes, "choose over_long='skip', 'truncate' or 'split'")
        limit = next(iter(self.limits.values()))
        parts = []
        for start in range(0, sizes[0] if splits else 1, limit):
            stop = min(start + limit, sizes[0])
            part = self.cut(item, start, stop)
            size = self._sizes(part)
            if not _fits(size, self.limits.values()):
                raise self._too_long(item, size, "give a `cut` that makes all sizes smaller")
            docs = int(not splits or stop == sizes[0] or self.fragments == "each")
            own = (start, stop, sizes[0], *ref) if splits else ref
            parts.append(Document(own, part, size, docs))
        return parts, 0 if splits else sizes[0] - parts[0].sizes[0]

    def _sizes(self, document: Any) -> Sizes:
        """Return the amount of each limit in a document, in the order of `limits`."""
        found = document if self.lengths is None else self.lengths(document)
        return tuple(_size(found, name) for name in self.limits)

    def _too_long(self, item: Any, sizes: Sizes, or_else: str) -> DataError:
        has = ", ".join(f"{size} {name}" for name, size in zip(self.limits, sizes, strict=True))
        most = ", ".join(f"{size} {name}" for name, size in self.limits.items())
        return DataError(
            f"{describe_source(item)}: it does not fit into a pack: it has {has}, and a pack at "
            f"most {most}. Raise the limit, or {or_else}."
        )


def _size(found: Any, name: str) -> int:
    try:
        value = found[name]
        size = value if isinstance(value, int) else _count(value)
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"packing: a document has no {name!r} to measure, found {_fields(found)}. Give the "
            f"limit the name of a field, or pass `lengths`."
        ) from error
    if size < 0:
        raise DataError(f"packing: {name!r} of a document is {size}. It must be >= 0.")
    return size


def _count(value: Any) -> int:
    try:
        return len(value)
    except TypeError:  # a number of numpy, or a tensor with one
        return index(value)


def _fields(found: Any) -> str:
    return ", ".join(map(str, found)) if isinstance(found, Mapping) else f"a {type(found).__name__}"


def _fits(sizes: Iterable[int], room: Iterable[int]) -> bool:
    return all(size <= free for size, free in zip(sizes, room, strict=True))


class PackBuffer:
    """Pending documents. Each operation is a search in a sorted list, and a move of its tail.

    With several limits, `take` looks at ever smaller documents until all sizes fit.
    """

    def __init__(self, limits: Iterable[int], documents: Iterable[Document] = ()) -> None:
        self.limits = tuple(limits)
        self.waiting: dict[int, Document] = {}  # by number, in the order of arrival
        self._by_size: list[tuple[int, int]] = []  # (first size, -number)
        self._next = 0
        for document in documents:
            self.add(document)

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def refs(self) -> tuple[ItemRef, ...]:
        """The references of the documents, in the order of arrival."""
        return tuple([document.ref for document in self.waiting.values()])

    def add(self, document: Document) -> None:
        """Add a document."""
        number, self._next = self._next, self._next + 1
        self.waiting[number] = document
        insort(self._by_size, (document.sizes[0], -number))

    def take(self, most: int | None = None) -> list[Document]:
        """Remove and return the documents of the next pack, at most `most`.

        First the oldest, then always the largest that fits. The choice depends on the pending
        documents and the order of their arrival alone.
        """
        taken, room, counted = list[int](), self.limits, 0
        number: int | None = next(iter(self.waiting))
        while number is not None:
            document = self.waiting[number]
            del self._by_size[bisect_left(self._by_size, (document.sizes[0], -number))]
            room = tuple(map(sub, room, document.sizes))
            taken.append(number)
            counted += document.docs
            number = self._largest(room) if most is None or counted < most else None
        return [self.waiting.pop(number) for number in sorted(taken)]

    def _largest(self, room: Sizes) -> int | None:
        for at in reversed(range(bisect_right(self._by_size, (room[0], 1)))):
            number = -self._by_size[at][1]
            if len(room) == 1 or _fits(self.waiting[number].sizes, room):
                return number
        return None
