"""The contents of a micro-batch, and of a step: documents, samples, tokens, labels, groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from energy_data.core.spec import Spec
from energy_data.errors import DataError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.order.step_rules import COUNTED, DocsPerStep

FIELD = "__docs__"
"""The field in which a micro-batch reports its contents: a number of documents; counts by name,
such as {"documents": 5, "tokens": 4096}; or a list of these, one per sample. Fields `__tokens__`,
`__labels__` and `__groups__` may stand next to it, each a number or a list."""

COUNT_FIELDS = {name: f"__{name}__" for name in COUNTED[2:]}
"""Names of counts -> the fields next to `__docs__` that report them."""


class Counts(NamedTuple):
    """The contents of micro-batches. None: some micro-batch does not report it."""

    documents: int = 0
    samples: int | None = 0
    tokens: int | None = 0
    labels: int | None = 0
    groups: int | None = 0


EMPTY = Counts()


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sums; None where any is None."""
    columns = zip(EMPTY, *counts, strict=True)
    return Counts(*(None if None in column else sum(column) for column in columns))  # type: ignore[arg-type]  # documents are never None


@attrs.frozen(kw_only=True)
class Step:
    """The field `__step__` of a micro-batch. Fields named `step_*` are totals over all ranks.

    To normalise a loss that is a sum over the micro-batch, multiply it by `dp_size / step_tokens`
    (or another total) where gradients are averaged over ranks, by `1 / step_tokens` where they are
    summed.
    """

    step: int  # number of the step in the run
    index: int  # of this micro-batch in the step
    num_microbatches: int  # in the step, the same on all ranks
    is_empty: bool  # it holds no samples, and keeps the number of micro-batches equal over ranks
    is_short: bool  # the step holds less than the target: the stream, or its stage, has ended
    docs: int  # documents in this micro-batch
    step_docs: int
    step_samples: int | None  # None, here and below: some micro-batch does not report it
    step_tokens: int | None
    step_labels: int | None
    step_groups: int | None
    docs_seen: int  # documents in all earlier steps
    dp_size: int  # ranks

    @property
    def is_first(self) -> bool:
        """Whether it is the first micro-batch of its step."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it is the last micro-batch of its step: time to step the optimizer."""
        return self.index == self.num_microbatches - 1


def counts_of(batch: Any, rules: DocsPerStep) -> Counts:
    """Return the contents of a micro-batch, as reported by its fields or by `count`.

    Without a report, each sample is a document. Raises DataError if the contents are unknown.
    """
    report = rules.count(batch) if callable(rules.count) else _report_of(batch)
    by_name = _by_name(report)
    samples = by_name["samples"] if "samples" in by_name else num_samples(batch)
    documents = by_name.get("documents", samples)
    if documents is None or samples is None:
        raise DataError(
            f"docs_per_step: the number of samples in a micro-batch is unknown, found {report!r}. "
            f"Give it `__key__`, or pass a function as `count` that returns "
            f"{{'documents': .., 'samples': ..}}."
        )
    counts = Counts(documents, samples, *(by_name.get(name) for name in COUNTED[2:]))
    if getattr(counts, rules.measure, 1) is None:
        raise DataError(
            f"docs_per_step: a micro-batch does not report its {rules.measure}, found {report!r}. "
            f"Let the task encoder put `{FIELD}: {{{rules.measure!r}: number}}` into it, or pass a "
            f"function as `count`."
        )
    return counts


def _report_of(batch: Any) -> Any:
    """Return what a micro-batch reports; for a list of samples or packs, a list of reports."""
    if _is_list(batch):
        parts = [_report_of(each) for each in batch]
        return None if all(part is None for part in parts) else parts
    report = _value(batch, FIELD)
    named = {
        name: _total(value)
        for name, field in COUNT_FIELDS.items()
        if (value := _value(batch, field)) is not None
    }
    return {**named, **_by_name(report)} if named else report


def _total(report: Any) -> int:
    if isinstance(report, list | tuple):
        return sum(_count(one) for one in report)
    return _count(report)


def _by_name(report: Any) -> dict[str, int]:
    if report is None:
        return {}
    if isinstance(report, Mapping):
        if unknown := [name for name in report if name not in COUNTED]:
            raise DataError(
                f"docs_per_step: unknown count {unknown[0]!r}, known are {', '.join(COUNTED)}."
            )
        return {name: _count(value) for name, value in report.items() if value is not None}
    if isinstance(report, Sequence) and not isinstance(report, str):
        parts = [{"documents": 1, **_by_name(one)} for one in report]
        known = [name for name in COUNTED if parts and all(name in part for part in parts)]
        return {name: sum(part[name] for part in parts) for name in known}
    return {"documents": _count(report)}


def _count(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or number != value:
        raise DataError(f"docs_per_step: a count must be a whole number >= 0, got {value!r}.")
    return number


def num_samples(batch: Any) -> int | None:
    """Return the number of samples in a micro-batch; None if it is unknown.

    It is the length of `__key__`, or of `__docs__` if that is a list; otherwise the length that all
    fields share. Packs laid end to end have no such length. A tuple with tensors is a tuple of
    fields; a list of tensors may hold fields or samples.
    """
    for name in ("__key__", FIELD):
        if isinstance(found := _value(batch, name), list | tuple):
            return len(found)
    if not _is_list(batch):
        lengths = set(map(_length, _values(batch)))
    elif any(map(_has_shape, batch)):
        lengths = {*_lengths(batch), *([len(batch)] if isinstance(batch, list) else ())}
    else:
        return len(batch)
    lengths.discard(None)
    return lengths.pop() if len(lengths) == 1 else None


def _lengths(values: Iterable[Any]) -> Iterator[int | None]:
    """Yield the lengths of fields, including those in tuples and mappings of fields."""
    for value in values:
        if isinstance(value, tuple | Mapping):
            yield from _lengths(_values(value))
        else:
            yield _length(value)


def _has_shape(value: Any) -> bool:
    """Return whether a value is a tensor or an array, or a tuple that contains one."""
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


KnownCounts: TypeAlias = Callable[[int], tuple[int, Counts]]
"""Number of a micro-batch or share in the run -> its number of micro-batches, and their contents.
All ranks can compute it, so they need not exchange counts."""


def known_counts(spec: Spec, rules: DocsPerStep) -> KnownCounts | None:
    """Return the contents of micro-batches if no data is needed to know them, else None."""
    if not isinstance(spec, BatchSpec) or spec.aligned or not makes_full_batches(spec):
        return None
    if rules.count not in ("documents", "samples"):
        return None
    counts = Counts(spec.batch_size, spec.batch_size, None, None, None)
    return lambda number: (1, counts)


def makes_full_batches(spec: Any) -> bool:
    """Return whether the batches of a spec are full, and user code does not decide otherwise."""
    return (
        spec.shows_none
        and isinstance(spec.of, ReadSpec)
        and isinstance(spec.of.of, ReferencesSpec | OrderSpec)
    )
