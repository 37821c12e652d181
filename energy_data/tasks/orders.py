"""Wrapping datasets; and wrappers that change the order: shuffle, repeat, blend, concatenate.

A blend of datasets whose samples are only read (and cooked) is a blend of *references*: each sample
comes exactly once per epoch over all paths that lead to it, and the position is one integer per
lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from attrs import evolve

from energy_data.core.spec import Spec
from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.tasks.functions import Cooking

T = TypeVar("T")

_SAMPLEWISE = (ReadSpec, EncodeSpec, FilterSpec)  # give at most one item per item

# Samples are dealt to the lanes batch by batch. Where the number of samples in a batch is not known
# in advance (packs, groups, finite streams with generators), this many neighbours are dealt at a
# time: few, so that lanes get equal shares, and neighbours, so that they are read together.
_UNCOUNTED = 8


class BaseWrapperDataset(SavableDataset[T], Generic[T]):
    """A dataset made of others. They belong to one run, whose worker config may be given again."""

    def __init__(
        self,
        spec: Spec,
        over: Sequence[SavableDataset[Any]],
        worker_config: WorkerConfig | None,
        *,
        virtual_epoch_length: int = 0,
    ) -> None:
        first = over[0]
        config = worker_config or first.worker_config
        run = config, first.seed, first.even_batches
        for one in over:
            if (found := (one.worker_config, one.seed, one.even_batches)) != run:
                raise SpecError(
                    f"{type(self).__name__}: its worker_config and its datasets belong to "
                    f"different runs, found {run} and {found}. Pass the same worker_config to all."
                )
        super().__init__(
            spec=spec,
            worker_config=config,
            seed=first.seed,
            from_start=all(dataset.from_start for dataset in over),
            even_batches=first.even_batches,
            virtual_epoch_length=virtual_epoch_length,
        )


def tree_of(dataset: SavableDataset[Any]) -> Spec:
    """Return the tree of a dataset to wrap; the end of its epochs becomes a node.

    SpecError if it is no dataset.
    """
    if not isinstance(dataset, SavableDataset):
        raise SpecError(
            f"a wrapped dataset must be a dataset of energy_data, got a {type(dataset).__name__}. "
            f"Pass the result of get_train_dataset, get_val_dataset or a wrapper."
        )
    length = dataset.virtual_epoch_length * dataset.worker_config.world_size
    return EpochizeSpec(of=dataset.spec, length=length) if length else dataset.spec


def references_of(spec: Spec, *, counted: bool = True) -> ReferencesSpec | None:
    """Return the references of a tree that makes each sample of one reference; None for others.

    counted: False allows generators, which may make any number of samples of a reference.
    """
    while not isinstance(spec, ReferencesSpec):
        if not isinstance(spec, _SAMPLEWISE) or (counted and not spec.is_one_to_one):
            return None
        spec = spec.of
    return spec


def with_references(spec: Spec, **changes: object) -> Spec:
    """Return a tree with its references changed; `references_of` must return some for it."""
    if isinstance(spec, ReferencesSpec):
        return evolve(spec, **changes)  # type: ignore[arg-type]  # fields by name
    assert isinstance(spec, _SAMPLEWISE)
    return evolve(spec, of=with_references(spec.of, **changes))  # type: ignore[arg-type]  # Read's stay references


def uncounted(spec: Spec) -> Spec:
    """Return a tree below packs, groups or generators, whose samples are dealt in neighbours."""
    references = references_of(spec)
    if references is None:
        return spec
    if references.deal:
        return with_references(spec, deal=_UNCOUNTED)
    return with_references(spec, batch=_UNCOUNTED)


class ShuffleBufferDataset(BaseWrapperDataset[T], Generic[T]):
    """Shuffles samples among `size` neighbours. There is no buffer: the order itself is shuffled.

    The dataset must yield samples as they are read, possibly blended, cooked, filtered or mapped
    one to one. SpecError otherwise.
    """

    def __init__(
        self, dataset: SavableDataset[T], size: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        """Shuffle a dataset."""
        spec = tree_of(dataset)
        references = references_of(spec)
        if references is None:
            raise SpecError(
                "ShuffleBufferDataset: it must wrap samples as they are read, because it changes "
                "their order. Apply it before blending items, batching, packing or functions that "
                "yield several items, or use the shuffle_buffer_size of get_train_dataset."
            )
        shuffle = evolve(references.shuffle, buffer_size=size)
        super().__init__(with_references(spec, shuffle=shuffle), [dataset], worker_config)


class RepeatDataset(BaseWrapperDataset[T], Generic[T]):
    """Repeats a dataset a number of times, or without end."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Repeat a dataset. A dataset without end is not changed.

        Args:
            dataset: What is repeated.
            repeats: Number of passes; None: without end. A fraction is allowed for samples as
                they are read: each then occurs floor or ceil of it times.
            restart: Must be True: each iteration starts again.
            worker_config: Must be that of the dataset, which is the default.
        """
        if not restart:
            raise SpecError(
                "RepeatDataset: restart=False is not supported. Remove it, and iterate once only."
            )
        if repeats is not None and not 0 < repeats < float("inf"):
            raise SpecError(f"RepeatDataset: repeats must be > 0 and finite, got {repeats}.")
        spec = tree_of(dataset)
        references = references_of(spec)
        if references is None:
            if repeats is not None and repeats != int(repeats):
                raise SpecError(
                    f"RepeatDataset: repeats must be a whole number, except over samples as they "
                    f"are read, got {repeats}. Repeat the samples, or use LimitDataset."
                )
            spec = RepeatSpec(of=spec, times=None if repeats is None else int(repeats))
        elif not references.deal:
            pass
        elif repeats is None:
            spec = with_references(spec, deal=0)
        else:
            spec = with_references(spec, of=BlendEpochizedSpec((Repeated(references.of, repeats),)))
        super().__init__(spec, [dataset], worker_config)


class BlendDataset(BaseWrapperDataset[T], Generic[T]):
    """Items of several datasets, each in proportion to its weight, exact in every lane.

    When a dataset ends, the others continue. The blend ends with the last one.
    """

    def __init__(self, *dataset_weights: Any, worker_config: WorkerConfig | None = None) -> None:
        """Blend pairs (dataset, weight), given one by one or in one sequence."""
        datasets, weights = pairs_of(dataset_weights, type(self).__name__)
        specs = list(map(tree_of, datasets))
        spec = joined(specs, lambda parts: BlendSpec(tuple(map(Part, parts, weights))))
        super().__init__(spec, datasets, worker_config)


class ConcatDataset(BaseWrapperDataset[T], Generic[T]):
    """The items of several finite datasets, one dataset after another in each lane."""

    def __init__(self, *datasets: Any, worker_config: WorkerConfig | None = None) -> None:
        """Concatenate datasets."""
        if not datasets:
            raise SpecError("ConcatDataset: it has no datasets. Give at least one.")
        specs = list(map(tree_of, datasets))
        spec = joined(specs, lambda parts: ConcatSpec(tuple(parts))) if specs[1:] else specs[0]
        super().__init__(spec, datasets, worker_config)


def joined(specs: Sequence[Spec], join: Callable[[Sequence[Spec]], Spec]) -> Spec:
    """Return `join(specs)`: below reading, if all trees read alike and cook at most."""
    reads: list[ReadSpec] = []
    recipes: dict[tuple[str, str], Callable[[Any], Any]] = {}
    cooked = None
    for spec in specs:
        below = spec
        if isinstance(spec, EncodeSpec) and isinstance(spec.encode, Cooking):
            below, cooked = spec.of, (spec, spec.encode)
            recipes |= spec.encode.recipes
        if isinstance(below, ReadSpec):
            reads.append(below)
    if len(reads) < len(specs):
        return join(specs)
    first = reads[0]
    if any(with_references(read, of=first.of.of) != first for read in reads):
        return join(specs)
    read = with_references(first, of=join([read.of.of for read in reads]))
    if cooked is None:
        return read
    return evolve(cooked[0], of=read, encode=evolve(cooked[1], recipes=recipes))


def pairs_of(given: Sequence[Any], name: str) -> tuple[list[SavableDataset[Any]], list[float]]:
    """Return the datasets and the weights of pairs, given one by one or all in one sequence.

    A LoadedDataset counts as a pair. SpecError for anything else.
    """
    first = given[0] if len(given) == 1 else None
    if isinstance(first, list | tuple) and all(map(_is_pair, first)):
        given = first
    datasets, weights = [], []
    for number, pair in enumerate(given):
        try:
            dataset, weight = pair
        except (TypeError, ValueError):
            raise SpecError(
                f"{name}: argument {number} must be a pair (dataset, weight), got {pair!r}."
            ) from None
        datasets.append(dataset)
        weights.append(1.0 if weight is None else float(weight))
    if not datasets:
        raise SpecError(f"{name}: it has no datasets. Give at least one pair (dataset, weight).")
    return datasets, weights


def _is_pair(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, SavableDataset)
