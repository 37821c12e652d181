"""Rules for packing documents into packs of limited size.

`Packing` is what `PackSpec` follows; `Joined` joins token documents, as most models want them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, Literal

import numpy as np
import torch
from attrs import field, frozen

from energy_data.errors import DataError, SpecError

Algorithm = Literal["best_fit", "first_fit"]
OverLong = Literal["error", "skip", "truncate", "split"]
Fragments = Literal["last", "each"]


@frozen(kw_only=True)
class Quota:
    """The number of documents of all lanes together, for optimizer steps of an exact size.

    In round t every lane packs its part of `docs`: after it, lane l of L has packed
    `((t + 1) * docs + l) // L` documents, so all lanes together pack `docs` per round.

    items=None: A round has as many packs as necessary. The last closes when the part is complete.
    items=n: A round has n packs in every lane, whose numbers of documents differ by at most one.
    If they do not fit, a pack has fewer, and the next packs of the round have more.
    """

    docs: int
    items: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.docs < 1:
            raise SpecError(f"quota: docs must be >= 1, got {self.docs}.")
        if self.items is not None and self.items < 1:
            raise SpecError(f"quota: items must be >= 1 or None, got {self.items}.")

    def before(self, rounds: int, lane: int, lanes: int) -> int:
        """Return how many documents a lane packs in the first `rounds` rounds."""
        return (rounds * self.docs + lane) // lanes

    def round_of(self, docs: int, lane: int, lanes: int) -> int:
        """Return the round of document number `docs` of a lane."""
        return ((docs + 1) * lanes - lane - 1) // self.docs


@frozen
class Joined:
    """Join token documents: each one-dimensional field end to end, other fields as lists.

    The pack also has `cu_seqlens`, int32 [docs + 1], where each document begins and the last ends,
    and `position_ids`, int64 [length], the position of each token in its document. With `length`,
    fields are padded to it with their value in `pad` (default 0), and `position_ids` with 0.
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
            else:
                pack[name] = values
        ends = np.cumsum([0, *lengths])
        pack["cu_seqlens"] = torch.from_numpy(ends.astype(np.int32))
        starts = np.repeat(ends[:-1], lengths)
        places = torch.from_numpy(np.arange(ends[-1]) - starts)
        pack["position_ids"] = self._padded(places, 0)
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
    ("best_fit"; the fullest packs), or the first that fits ("first_fit"; closest to the order of
    arrival). In the pack, documents are in their order of arrival.
    """

    limits: Mapping[str, int]
    """Name -> maximum of a pack: {"tokens": 2048, "images": 8}. Packs are filled by the first."""

    lengths: Callable[[Any], Mapping[str, int]] | None = None
    """Amount of each limit in a document. None: its field of that name, or the field's length."""

    pack: Callable[[list[Any]], Any] = field()
    """Makes a pack of documents; the default is `Joined` with the first limit as its length."""

    cut: Callable[[Any, int, int], Any] = field()
    """Returns part [start, stop) of a document, in the first limit; the default is `CutFields`."""

    algorithm: Algorithm = "best_fit"

    over_long: OverLong = "error"
    """A document above a limit is an error, skipped, truncated, or split into several."""

    fragments: Fragments = "last"
    """A split document counts once, with its last part, or with each part."""

    quota: Quota | None = None

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
        for name, value, known in (
            ("algorithm", self.algorithm, ("best_fit", "first_fit")),
            ("over_long", self.over_long, ("error", "skip", "truncate", "split")),
            ("fragments", self.fragments, ("last", "each")),
        ):
            if value not in known:
                raise SpecError(f"packing: {name} must be one of {known}, got {value!r}.")
        if self.quota and self.quota.items and (self._is_not_countable or len(self.limits) > 1):
            raise SpecError(
                "packing: a quota with `items` needs algorithm='best_fit', one limit, and "
                "over_long other than 'split'. Omit `items`, or change these."
            )

    @property
    def _is_not_countable(self) -> bool:
        return self.algorithm != "best_fit" or self.over_long == "split"

    @property
    def filled(self) -> str:
        """The name of the first limit, by which packs are filled and documents cut."""
        return next(iter(self.limits))

    def sizes(self, document: Any) -> tuple[int, ...]:
        """Return the amount of each limit in a document, in the order of `limits`."""
        found = document if self.lengths is None else self.lengths(document)
        return tuple(_size(found, name) for name in self.limits)


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
