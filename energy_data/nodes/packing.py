"""Packing: which documents form a pack of limited size, and how the pack is made of them.

`Packing` is what `PackSpec` follows. `Joined` joins token documents, as most models want them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from operator import index, le, sub
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from attrs import field, frozen

from energy_data.core.batch_memory import as_tensors, make_row, new_batch_tensor
from energy_data.core.node import ItemRef
from energy_data.errors import DataError, SpecError

T = TypeVar("T")

OverLong = Literal["error", "skip", "truncate", "split"]
Fragments = Literal["last", "each"]
Sizes = tuple[int, ...]
Bounds = Sequence[tuple[int, int]]  # of the documents of each pack, among those of all packs
NewTensor = Callable[[Sequence[int], torch.dtype], torch.Tensor]


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

    Raises DataError if a document lacks a field that is one-dimensional in others, or if the length
    of such a field is not that of `of`.
    """

    of: str = "tokens"  # the field whose length is that of the document
    length: int | None = None
    pad: Mapping[str, float] = field(factory=dict)

    def __call__(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the pack of documents; without documents, only padding of field `of`."""
        (pack,) = self.rows([documents], None)
        return dict(zip(pack, as_tensors(list(pack.values())), strict=True))

    def rows(
        self,
        packs: Sequence[Sequence[Mapping[str, Any]]],
        new: NewTensor | None = new_batch_tensor,
    ) -> list[dict[str, Any]]:
        """Return the packs of a batch, whose joined fields are rows of its tensors.

        See `core/batch_memory.py`. Several packs need a `length`. If not all documents have the
        same fields of the same form, each pack has its own tensors.
        """
        documents = list(chain.from_iterable(packs))
        names = list(dict.fromkeys(chain.from_iterable(documents))) or [self.of]
        columns: dict[str, list[Any]] = {
            name: [document.get(name) for document in documents] for name in names
        }
        num_lines = {name: sum(map(_is_line, values)) for name, values in columns.items()}
        mixed = [name for name, count in num_lines.items() if 0 < count < len(documents)]
        if len(packs) > 1 and (mixed or min(map(len, documents)) < len(names)):
            return list(map(self, packs))
        if mixed:
            raise DataError(
                f"Joined: {mixed[0]!r} is one-dimensional in some documents of a pack, and missing "
                f"or of another form in others. Return it from encode_sample for all of them."
            )
        joined = {name: columns[name] for name in names if num_lines[name] == len(documents)}
        lengths = self._lengths(joined, columns)
        bounds = list(pairwise(accumulate(map(len, packs), initial=0)))
        blocks = {name: self._joined(name, values, bounds, new) for name, values in joined.items()}
        if "position_ids" not in columns:
            blocks["position_ids"] = self._positions(lengths, bounds, new)
        made = []
        for number, (begin, end) in enumerate(bounds):
            pack: dict[str, Any] = {name: values[begin:end] for name, values in columns.items()}
            for name, block in blocks.items():
                pack[name] = make_row((block, number))
            ends = np.array([0, *accumulate(lengths[begin:end])], np.int32)
            pack["cu_seqlens"] = torch.from_numpy(ends)
            made.append(pack)
        return made

    def _lengths(
        self, joined: Mapping[str, Sequence[Any]], columns: Mapping[str, Sequence[Any]]
    ) -> list[int]:
        """Return the lengths of documents. DataError if a field that is joined has others."""
        if self.of not in joined:
            found = type(columns[self.of][0]).__name__ if self.of in columns else "no such field"
            raise DataError(
                f"Joined: {self.of!r} must be a one-dimensional tensor or array in each document, "
                f"found {found}. Convert it in encode_sample."
            )
        lengths = [value.shape[0] for value in joined[self.of]]
        for name, values in joined.items():
            sizes = [value.shape[0] for value in values]
            if sizes != lengths and not name.startswith("__"):  # these are of the document
                size, length = next(
                    pair for pair in zip(sizes, lengths, strict=True) if pair[0] != pair[1]
                )
                raise DataError(
                    f"Joined: {name!r} has {size} values in a document of {length} {self.of}. Make "
                    f"it as long in encode_sample; or, if its values do not belong to {self.of}, "
                    f"a list or a tensor of two dimensions, which is not joined."
                )
        return lengths

    def _joined(
        self, name: str, values: Sequence[Any], bounds: Bounds, new: NewTensor | None
    ) -> torch.Tensor:
        """Return a field of packs, [packs, length]."""
        lines = list(map(torch.as_tensor, values))
        first = lines[0] if lines else torch.zeros(0, dtype=torch.int64)
        missing = self._missing([line.shape[0] for line in lines], bounds)
        padding = first.new_full((max(missing),), self.pad.get(name, 0))
        parts = _with_padding(lines, bounds, [padding[:count] for count in missing])
        out, forms = None, {(line.dtype, line.is_cpu, line.requires_grad) for line in lines}
        if new is not None and forms == {(first.dtype, True, False)}:
            out = new((len(bounds) * (self.length or 0),), first.dtype)
        return torch.cat(parts, out=out).view(len(bounds), -1)

    def _positions(
        self, lengths: Sequence[int], bounds: Bounds, new: NewTensor | None
    ) -> torch.Tensor:
        """Return the positions in the documents of packs, int64 [packs, length]."""
        steps = np.arange(max(lengths, default=0))
        padding = [np.zeros(count, np.int64) for count in self._missing(lengths, bounds)]
        parts = _with_padding([steps[:length] for length in lengths], bounds, padding)
        out = None if new is None else new((len(bounds) * (self.length or 0),), torch.int64).numpy()
        return torch.from_numpy(np.concatenate(parts, out=out)).view(len(bounds), -1)

    def _missing(self, sizes: Sequence[int], bounds: Bounds) -> list[int]:
        """Return how many values each pack is padded with, of parts of these sizes."""
        counts = [sum(sizes[begin:end]) for begin, end in bounds]
        if self.length is None:
            return [0] * len(counts)
        if max(counts) > self.length:
            raise DataError(
                f"Joined: a pack has {max(counts)} values, more than its length {self.length}. Set "
                f"the limit of the packing to the same length."
            )
        return [self.length - count for count in counts]


def _with_padding(parts: Sequence[T], bounds: Bounds, padding: Sequence[T]) -> list[T]:
    """Return the parts of packs, each pack followed by its padding."""
    pairs = zip(bounds, padding, strict=True)
    return [part for (begin, end), last in pairs for part in (*parts[begin:end], last)]


def _is_line(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim == 1


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

    @property
    def rows(self) -> Callable[[list[list[Any]]], list[Any]] | None:
        """Makes the packs of a batch as rows of its tensors; None: `pack` makes each by itself."""
        pack = self.pack
        return pack.rows if type(pack) is Joined and pack.length is not None else None

    def documents(
        self,
        items: Iterable[Any],
        refs: Iterable[ItemRef],
        where: Callable[[Any, ItemRef], str],
    ) -> Iterator[tuple[Sequence[Document], int]]:
        """Yield the documents of each sample, and how much of the first limit is lost.

        Raises DataError for a sample above a limit if that is an error. where: describes the
        sample that an error is about.
        """
        limits, splits = tuple(self.limits.values()), self.over_long == "split"
        for item, ref in zip(items, refs, strict=True):
            try:
                sizes = self._sizes(item)
                if not all(map(le, sizes, limits)):
                    yield self._of_over_long(item, ref, sizes)
                elif splits:
                    yield (Document((0, sizes[0], sizes[0], *ref), item, sizes, 1),), 0
                else:
                    yield (Document(ref, item, sizes, 1),), 0
            except DataError as error:
                error.problem = f"{where(item, ref)}: {error.problem}"
                raise

    def _of_over_long(
        self, item: Any, ref: ItemRef, sizes: Sizes
    ) -> tuple[Sequence[Document], int]:
        if self.over_long == "skip":
            return (), sizes[0]
        if self.over_long == "error":
            raise self._too_long(sizes, "choose over_long='skip', 'truncate' or 'split'")
        limits, splits = tuple(self.limits.values()), self.over_long == "split"
        parts = []
        for start in range(0, sizes[0] if splits else 1, limits[0]):
            stop = min(start + limits[0], sizes[0])
            part = self.cut(item, start, stop)
            size = self._sizes(part)
            if not all(map(le, size, limits)):
                raise self._too_long(size, "give a `cut` that makes all sizes smaller")
            docs = int(not splits or stop == sizes[0] or self.fragments == "each")
            own = (start, stop, sizes[0], *ref) if splits else ref
            parts.append(Document(own, part, size, docs))
        return parts, 0 if splits else sizes[0] - parts[0].sizes[0]

    def _sizes(self, document: Any) -> Sizes:
        """Return the amount of each limit in a document, in the order of `limits`."""
        found = document if self.lengths is None else self.lengths(document)
        sizes = list[int]()
        for name in self.limits:
            try:
                value = found[name]
                size = value if isinstance(value, int) else _count(value)
            except (KeyError, TypeError, IndexError) as error:
                raise DataError(
                    f"it has no {name!r} to measure, found {_fields(found)}. Give the limit the "
                    f"name of a field, or pass `lengths`."
                ) from error
            if size < 0:
                raise DataError(f"its {name!r} is {size}. It must be >= 0.")
            sizes.append(size)
        return tuple(sizes)

    def _too_long(self, sizes: Sizes, or_else: str) -> DataError:
        has = ", ".join(f"{size} {name}" for name, size in zip(self.limits, sizes, strict=True))
        most = ", ".join(f"{size} {name}" for name, size in self.limits.items())
        return DataError(
            f"it does not fit into a pack: it has {has}, and a pack at most {most}. Raise the "
            f"limit, or {or_else}."
        )


def _count(value: Any) -> int:
    try:
        # A tensor tells its shape in a third of the time in which it tells its length.
        return value.shape[0] if getattr(value, "shape", None) else len(value)
    except TypeError:  # a number of numpy, or a tensor with one
        return index(value)


def _fields(found: Any) -> str:
    return ", ".join(map(str, found)) if isinstance(found, Mapping) else f"a {type(found).__name__}"


class PackBuffer:
    """Pending documents. Taking one is a search in a sorted list, and a move of its tail.

    With several limits, `take` looks at ever smaller documents until all sizes fit.
    """

    def __init__(self, limits: Iterable[int], documents: Sequence[Document] = ()) -> None:
        self.limits = tuple(limits)
        self.waiting: dict[int, Document] = {}  # by number, in the order of arrival
        self._by_size: list[tuple[int, int]] = []  # (first size, -number)
        self._next = 0
        self.add(documents)

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def refs(self) -> tuple[ItemRef, ...]:
        """The references of the documents, in the order of arrival."""
        return tuple([document.ref for document in self.waiting.values()])

    def add(self, documents: Sequence[Document]) -> None:
        """Add documents."""
        for number, document in enumerate(documents, self._next):
            self.waiting[number] = document
            self._by_size.append((document.sizes[0], -number))
        self._next += len(documents)
        self._by_size.sort()

    def take(self, most: int | None = None) -> list[Document]:
        """Remove and return the documents of the next pack, at most `most`.

        First the oldest, then always the largest that fits. The choice depends on the pending
        documents and the order of their arrival alone.
        """
        by_size, room, counted = self._by_size, self.limits, 0
        taken = dict[int, Document]()
        number = next(iter(self.waiting))
        at = bisect_left(by_size, (self.waiting[number].sizes[0], -number))
        while at >= 0:
            number = -by_size.pop(at)[1]
            taken[number] = document = self.waiting.pop(number)
            counted += document.docs
            if most is not None and counted >= most:
                break
            room = tuple(map(sub, room, document.sizes))
            at = bisect_right(by_size, (room[0], 1)) - 1
            while len(room) > 1 and at >= 0 and not self._fits(at, room):
                at -= 1
        return [taken[number] for number in sorted(taken)]

    def _fits(self, at: int, room: Sizes) -> bool:
        return all(map(le, self.waiting[-self._by_size[at][1]].sizes, room))
