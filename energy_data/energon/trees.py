"""What wrappers do to trees."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

from attrs import evolve

from energy_data.core.context import WorkerConfig
from energy_data.core.spec import Spec
from energy_data.core.user_call import ErrorPolicy
from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend_epochized import BlendEpochizedSpec, Repeated
from energy_data.nodes.buffered import gives_parts
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.epochize import EpochizeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.flat_map import FlatMapSpec
from energy_data.nodes.limit import LimitSpec
from energy_data.nodes.map import MapSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.repeat import RepeatSpec
from energy_data.tasks.batching import batch_list
from energy_data.tasks.stateless import DEFAULT_TOLERANCE

_SAMPLEWISE = (ReadSpec, EncodeSpec, MapSpec, FilterSpec)  # give one item per item at most


def repeated(spec: Spec, times: float | None) -> Spec:
    """Return a tree that is played several times, or for ever; what is for ever stays so.

    A fraction of a pass is for samples as they are read; None above them.
    """
    references = references_of(spec)
    if references is not None and not references.deal:
        return spec
    if references is None:
        if times is not None and times != int(times):
            raise SpecError(
                f"repeats: a fraction of a pass can be given of samples only, got {times} of what "
                f"is made of samples. Put it below, or use LimitDataset."
            )
        return RepeatSpec(of=spec, times=None if times is None else int(times))
    if times is None:
        return with_references(spec, deal=0)
    order = BlendEpochizedSpec((Repeated(references.of, times),))
    return with_references(spec, of=order)


def references_of(spec: Spec) -> ReferencesSpec | None:
    """Return the references that a tree of samples reads one by one; None if it does more."""
    while not isinstance(spec, ReferencesSpec):
        if not isinstance(spec, _SAMPLEWISE) or getattr(spec, "yields", "one") != "one":
            return None
        spec = spec.of
    return spec


def with_references(spec: Spec, **changes: object) -> Spec:
    """Return a tree of `references_of` with its references changed."""
    if isinstance(spec, ReferencesSpec):
        return evolve(spec, **changes)  # type: ignore[arg-type]  # fields by name
    assert isinstance(spec, _SAMPLEWISE)
    return evolve(spec, of=with_references(spec.of, **changes))  # type: ignore[arg-type]  # Read's stay references


def items_per_pass(spec: Spec) -> Fraction:
    """Return how many items a tree gives of one pass over its data, over all ranks."""
    if isinstance(spec, ReferencesSpec):
        return spec.of.size
    below = [items_per_pass(child) for child in spec.children.values()]
    if isinstance(spec, BatchSpec):
        return Fraction(ceil(below[0] / spec.batch_size))
    if isinstance(spec, EpochizeSpec):
        return Fraction(spec.length)
    if isinstance(spec, LimitSpec):
        return min(Fraction(spec.length), below[0])
    if isinstance(spec, RepeatSpec):
        return below[0] * (spec.times or 1)
    return sum(below, Fraction(0))


def batched(
    spec: Spec,
    batch_size: int,
    batcher: Callable[[list[Any]], Any],
    policy: ErrorPolicy,
    *,
    drop_last: bool = False,
) -> Spec:
    """Return a tree whose items are batched.

    A pass over samples is dealt to the lanes batch by batch, so that one batch is short at most.
    """
    if gives_parts(batcher):
        lists = batched(spec, batch_size, batch_list, policy, drop_last=drop_last)
        return FlatMapSpec(of=lists, function=batcher, on_failure=policy)
    references = references_of(spec)
    finite = references is not None and bool(references.deal)
    if finite:
        spec = with_references(spec, deal=batch_size, drop_last=drop_last)
    return BatchSpec(
        of=spec,
        batch_size=batch_size,
        collate=batcher,
        drop_last=drop_last,
        aligned=finite,
        on_failure=policy,
    )


def on_failure(worker_config: WorkerConfig, tolerance: int = DEFAULT_TOLERANCE) -> ErrorPolicy:
    """Return what follows in a run when a function raises."""
    return ErrorPolicy(handler=worker_config.global_error_handler, tolerance=tolerance)


def mapped(spec: Spec, function: Callable[[Any], Any], policy: ErrorPolicy) -> Spec:
    """Return a tree whose items are mapped by a function of the user, to one or to several."""
    if gives_parts(function) and spec.replay_blocker():
        return FlatMapSpec(of=spec, function=function, on_failure=policy)
    return EncodeSpec(of=spec, encode=function, on_failure=policy)
