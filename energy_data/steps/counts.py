"""What is in a micro-batch: documents, samples, tokens, labels, groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from energy_data.errors import DataError
from energy_data.steps.rules import COUNTED, DocsPerStep, Said

FIELD = "__docs__"
"""The field by which a micro-batch says what is in it: a number of documents; counts by name, such
as {"documents": 5, "tokens": 4096}; or a list of these, one per sample. Fields `__tokens__`,
`__labels__` and `__groups__` may stand beside it: a number, or a list."""

BESIDE = {name: f"__{name}__" for name in COUNTED[2:]}
"""What is counted -> the field beside `__docs__` that says how much of it there is."""


class Counts(NamedTuple):
    """What is in a micro-batch. None: it does not say."""

    documents: int = 0
    samples: int | None = 0
    tokens: int | None = 0
    labels: int | None = 0
    groups: int | None = 0

    def plus(self, other: Counts) -> Counts:
        """Return both together."""
        pairs = zip(self, other, strict=True)
        return Counts(*(None if None in pair else sum(pair) for pair in pairs))  # type: ignore[arg-type]  # documents are never None


EMPTY = Counts()


def counts_of(batch: Any, rules: DocsPerStep) -> Counts:
    """Return what is in a micro-batch, as it says, or as `count` says.

    Without a word, each of its samples is a document. Raises DataError if it cannot be told.
    """
    said = rules.count(batch) if callable(rules.count) else _said_by(batch)
    samples = None if isinstance(said, Mapping) and "samples" in said else num_samples(batch)
    counts = counts_from(said, samples)
    if (amount := getattr(counts, rules.measure, 1)) is None or amount < 0:
        raise DataError(
            f"docs_per_step: a micro-batch does not say how many {rules.measure} it holds, it says "
            f"{said!r}. Let the task encoder put `{FIELD}: {{{rules.measure!r}: number}}` into it, "
            f"or pass a function as `count`."
        )
    return counts


def counts_from(said: Any, samples: int | None) -> Counts:
    """Return counts from what someone said; DataError if it makes no sense.

    samples: in the micro-batch; None if not known otherwise.
    """
    by_name = _by_name(said)
    documents = by_name.get("documents", samples)
    known = by_name.get("samples", samples)
    if documents is None or known is None:
        raise DataError(
            f"docs_per_step: nobody says how many samples a micro-batch holds, found {said!r}. Let "
            f"it have `__key__`, or pass a function as `count` that says of a micro-batch "
            f"{{'documents': .., 'samples': ..}}."
        )
    rest = (by_name.get(name) for name in ("tokens", "labels", "groups"))
    return Counts(documents, known, *rest)


def known_counts(rules: DocsPerStep, number: int) -> Counts:
    """Return what is in micro-batch `number` of the run, where that is known beforehand."""
    said: Said | None = rules.known(number) if callable(rules.known) else rules.known
    by_name = _by_name(said)
    if "documents" not in by_name:
        raise DataError(
            f"docs_per_step: `known` does not say how many documents micro-batch {number} holds, "
            f"found {said!r}."
        )
    return Counts(by_name["documents"], *(by_name.get(name) for name in COUNTED[1:]))


def _said_by(batch: Any) -> Any:
    """Return what a micro-batch says is in it; of a list of samples or packs, what these say."""
    if _is_list(batch):
        parts = [_said_by(each) for each in batch]
        return None if all(part is None for part in parts) else parts
    said = _value(batch, FIELD)
    beside = {name: _value(batch, field) for name, field in BESIDE.items()}
    named = {name: _total(value) for name, value in beside.items() if value is not None}
    return {**named, **_by_name(said)} if named else said


def _total(said: Any) -> int:
    if isinstance(said, list | tuple):
        return sum(_whole(one) for one in said)
    return _whole(said)


def _by_name(said: Any) -> dict[str, int]:
    if said is None:
        return {}
    if isinstance(said, Mapping):
        if unknown := [name for name in said if name not in COUNTED]:
            raise DataError(
                f"docs_per_step: unknown count {unknown[0]!r}, known are {', '.join(COUNTED)}."
            )
        return {name: _whole(value) for name, value in said.items() if value is not None}
    if isinstance(said, Sequence) and not isinstance(said, str):
        return _summed([{"documents": 1, **_by_name(one)} for one in said])
    return {"documents": _whole(said)}


def _summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of what all parts say."""
    parts = list(parts)
    return {
        name: sum(part[name] for part in parts)
        for name in COUNTED
        if parts and all(name in part for part in parts)
    }


def _whole(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or number != value:
        raise DataError(f"docs_per_step: a count must be a whole number >= 0, got {value!r}.")
    return number


def num_samples(batch: Any) -> int | None:
    """Return how many samples are in a micro-batch; None if it cannot be told.

    That is the length of its `__key__`, or of the list that `__docs__` is; else that of all its
    fields that have one, if it is the same: in packs laid end to end it is not that of samples.
    A tuple that has tensors in it is one of fields; a list of them may be one of samples as well.
    """
    for name in ("__key__", FIELD):
        if isinstance(found := _value(batch, name), list | tuple):
            return len(found)
    lengths = {length for value in _values(batch) if (length := _length(value)) is not None}
    if _is_list(batch):
        lengths |= set(_lengths(batch))
        if not any(_has_shape(value) for value in batch):
            return len(batch)
        if isinstance(batch, list):
            lengths.add(len(batch))
    return lengths.pop() if len(lengths) == 1 else None


def _lengths(values: Iterable[Any]) -> Iterator[int]:
    """Yield the lengths of fields, also of those in tuples and mappings of fields."""
    for value in values:
        if isinstance(value, tuple | Mapping):
            yield from _lengths(_values(value))
        elif (length := _length(value)) is not None:
            yield length


def _has_shape(value: Any) -> bool:
    """Return whether a value is a tensor or an array, or has one in it."""
    if isinstance(value, tuple):
        return any(map(_has_shape, value))
    return hasattr(value, "shape")


def _length(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return int(shape[0])
    return len(value) if isinstance(value, list) else None


def _is_list(batch: Any) -> bool:
    return isinstance(batch, list | tuple) and not hasattr(batch, "_fields")


def _value(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, Mapping) else getattr(batch, name, None)


def _values(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if hasattr(batch, "shape"):
        return [batch]
    if isinstance(batch, tuple | list):
        return batch
    if attrs.has(type(batch)):
        return [getattr(batch, each.name) for each in attrs.fields(type(batch))]
    return vars(batch).values() if hasattr(batch, "__dict__") else ()
