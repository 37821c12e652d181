"""Wrapping datasets: a wrapper puts a node over the tree of a dataset.

A blend of datasets whose samples are only read (and cooked) is a blend of *references*: each sample
comes exactly once per epoch over all paths that lead to it, and the position is one integer per
lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import evolve

from energy_data.core.context import WorkerConfig
from energy_data.core.spec import Spec
from energy_data.core.user_call import ErrorPolicy
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.buffered import gives_parts
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.map import FlatMapSpec, MapSpec
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.tasks.batching import batch_list
from energy_data.tasks.cooking import cooked_alike, uncooked
from energy_data.tasks.stateless import DEFAULT_TOLERANCE

T = TypeVar("T")
Config = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None

_SAMPLEWISE = (ReadSpec, EncodeSpec, MapSpec, FilterSpec)  # give at most one item per item


def repeated(spec: Spec, times: float | None) -> Spec:
    """Return a tree that repeats `times` times, or without end (None).

    A tree without end is not changed. Fractions are allowed for samples as they are read only.
    """
    references = references_of(spec)
    if references is not None and not references.deal:
        return spec
    if references is None:
        if times is not None and times != int(times):
            raise SpecError(
                f"repeats: must be a whole number, except over samples as they are read, got "
                f"{times}. Repeat the samples, or use LimitDataset."
            )
        return RepeatSpec(of=spec, times=None if times is None else int(times))
    if times is None:
        return with_references(spec, deal=0)
    order = BlendEpochizedSpec((Repeated(references.of, times),))
    return with_references(spec, of=order)


def references_of(spec: Spec) -> ReferencesSpec | None:
    """Return the references of a tree that makes each sample of one reference; None for others."""
    while not isinstance(spec, ReferencesSpec):
        if not isinstance(spec, _SAMPLEWISE) or getattr(spec, "yields", "one") != "one":
            return None
        spec = spec.of
    return spec


def with_references(spec: Spec, **changes: object) -> Spec:
    """Return a tree with its references changed; `references_of` must return some for it."""
    if isinstance(spec, ReferencesSpec):
        return evolve(spec, **changes)  # type: ignore[arg-type]  # fields by name
    assert isinstance(spec, _SAMPLEWISE)
    return evolve(spec, of=with_references(spec.of, **changes))  # type: ignore[arg-type]  # Read's stay references


def batched(
    spec: Spec,
    batch_size: int,
    batcher: Callable[[list[Any]], Any],
    policy: ErrorPolicy,
    *,
    drop_last: bool = False,
) -> Spec:
    """Return a tree whose items are batched.

    A pass over samples is dealt to the lanes batch by batch, so at most one batch is short.
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
    """Return the policy for errors of a function of the user."""
    return ErrorPolicy(handler=worker_config.global_error_handler, tolerance=tolerance)


def mapped(spec: Spec, function: Callable[[Any], Any], policy: ErrorPolicy) -> Spec:
    """Return a tree whose items are mapped by a function of the user, possibly a generator."""
    if gives_parts(function) and spec.replay_blocker():
        return FlatMapSpec(of=spec, function=function, on_failure=policy)
    return EncodeSpec(of=spec, encode=function, on_failure=policy)


def blended(specs: Sequence[Spec], weights: Sequence[float]) -> Spec:
    """Return the blend of some trees."""

    def blend(parts: Sequence[Spec]) -> BlendSpec:
        return BlendSpec(tuple(map(Part, parts, weights)))

    return _below_reading(specs, blend) or blend(specs)


def concatenated(specs: Sequence[Spec]) -> Spec:
    """Return the concatenation of some trees."""
    return _below_reading(specs, lambda parts: ConcatSpec(tuple(parts))) or ConcatSpec(tuple(specs))


def _below_reading(
    specs: Sequence[Spec], join: Callable[[Sequence[OrderSpec]], OrderSpec]
) -> Spec | None:
    """Return one tree that reads the joined orders; None if a tree does more than read."""
    reads = [spec for spec in map(uncooked, specs) if isinstance(spec, ReadSpec)]
    if len(reads) < len(specs):
        return None
    first = reads[0]
    if any(with_references(read, of=first.of.of) != first for read in reads):
        return None
    return cooked_alike(with_references(first, of=join([read.of.of for read in reads])), specs)


class BaseWrapperDataset(SavableDataset[T], Generic[T]):
    """A dataset made of others."""

    def __init__(
        self,
        spec: Spec,
        over: Sequence[SavableDataset[Any]],
        worker_config: WorkerConfig | None,
        *,
        virtual_epoch_length: int = 0,
    ) -> None:
        first = over[0]
        _check_same_run(over, worker_config, type(self).__name__)
        super().__init__(
            spec=spec,
            worker_config=worker_config or first.worker_config,
            seed=first.seed,
            from_start=all(dataset.from_start for dataset in over),
            even_batches=first.even_batches,
            virtual_epoch_length=virtual_epoch_length,
        )


def tree_of(dataset: SavableDataset[Any]) -> Spec:
    """Return the tree of a dataset to wrap; the end of its epochs becomes a node."""
    length = dataset.virtual_epoch_length * dataset.worker_config.world_size
    return EpochizeSpec(of=dataset.spec, length=length) if length else dataset.spec


def dataset_of(given: Any, where: str) -> SavableDataset[Any]:
    """Return a dataset, or the samples of a loaded one. SpecError for anything else."""
    dataset = given.as_dataset() if hasattr(given, "as_dataset") else given
    if not isinstance(dataset, SavableDataset):
        raise SpecError(
            f"{where}: must be a dataset of energy_data, got a {type(given).__name__}. Pass the "
            f"result of get_train_dataset, get_val_dataset or a wrapper."
        )
    return dataset


def pairs_of(given: Sequence[Any], name: str) -> list[tuple[SavableDataset[Any], float]]:
    """Return (dataset, weight) pairs, given one by one or all in one sequence.

    A LoadedDataset counts as a pair. SpecError for anything else.
    """
    if len(given) == 1 and _is_sequence_of_pairs(given[0]):
        given = list(given[0])
    pairs = []
    for number, pair in enumerate(given):
        try:
            dataset, weight = pair
        except (TypeError, ValueError):
            raise SpecError(
                f"{name}: argument {number} must be a pair (dataset, weight), got {pair!r}."
            ) from None
        dataset = dataset_of(dataset, f"{name}: argument {number}")
        pairs.append((dataset, 1.0 if weight is None else float(weight)))
    if not pairs:
        raise SpecError(f"{name}: it has no datasets. Give at least one pair (dataset, weight).")
    return pairs


def _is_sequence_of_pairs(given: Any) -> bool:
    if not isinstance(given, list | tuple) or not given:
        return False
    return not isinstance(given[0], SavableDataset) and isinstance(given[0], Iterable)


def _check_same_run(
    over: Sequence[SavableDataset[Any]], worker_config: WorkerConfig | None, name: str
) -> None:
    for dataset in over:
        if worker_config is not None and dataset.worker_config != worker_config:
            raise SpecError(
                f"{name}: its worker_config is {worker_config}, but that of a dataset in it is "
                f"{dataset.worker_config}. Pass the same to all."
            )
        ours, theirs = (
            (one.worker_config, one.seed, one.even_batches) for one in (over[0], dataset)
        )
        if ours != theirs:
            raise SpecError(
                f"{name}: its datasets belong to different runs, found {ours} and {theirs}. Pass "
                f"the same worker_config to all."
            )
