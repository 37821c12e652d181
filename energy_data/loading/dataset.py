"""`SavableDataset`: what is read, in which order, and by which rank. It holds no position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any, Generic, Literal, TypeVar

from attrs import field, fields, frozen

from energy_data.core.context import SEEDS, Context
from energy_data.core.cursor import State, restore, save
from energy_data.core.node import Node
from energy_data.core.profiler import Profiler
from energy_data.core.recipe import check_whole
from energy_data.core.spec import Spec
from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.epoch_end import batches_of_rank
from energy_data.loading.loader import Loader
from energy_data.loading.steps.grouper import StepGrouper, for_steps
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import leaves_of, shared_leaf_ids
from energy_data.nodes.passes import EpochizeSpec, LimitSpec, RepeatSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.run_plan import RunPlan
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep

EvenBatches = Literal["drop", "short", "pad"]

T_co = TypeVar("T_co", covariant=True)


@frozen(kw_only=True)
class SavableDataset(Generic[T_co]):
    """What is read, in which order, and by which rank; immutable, without a position.

    `for batch in dataset` reads in this process, from the beginning. `get_loader(dataset)` returns
    a loader, which has worker processes, continues from epoch to epoch, saves and restores.
    """

    spec: Spec
    worker_config: WorkerConfig = field(factory=WorkerConfig)
    seed: int = 0
    from_start: bool = False  # every iteration starts at the first batch (validation)
    virtual_epoch_length: int = 0  # batches per rank after which an iteration ends; 0: no limit
    even_batches: EvenBatches | None = None  # how all ranks get the same number of batches per pass
    docs_per_step: DocsPerStep | None = None  # groups micro-batches into optimizer steps
    cache: Any = field(default=None, eq=False, repr=False)  # a cache pool, for users' functions

    def __attrs_post_init__(self) -> None:
        check_whole("seed", self.seed, *SEEDS)
        check_whole("virtual_epoch_length", self.virtual_epoch_length, 0)
        if self.even_batches not in (None, "drop", "short", "pad"):
            raise SpecError(
                f"even_batches: must be None, 'drop', 'short' or 'pad', got {self.even_batches!r}."
            )
        if self.spec.item_kind == "references":
            raise SpecError("dataset: its tree returns references. Put a ReadSpec above it.")
        _check_stages(self.spec, self.worker_config.world_size)

    @property
    def plan(self) -> RunPlan:
        """The stages of the run: their ranges, sizes and parameters."""
        return RunPlan(self.spec)

    @property
    def leaves(self) -> list[str]:
        """The ids of all leaves of the run, sorted; `__leaf__` of a sample is a place in it."""
        return sorted({leaf.id for leaf in leaves_of(self.spec)})

    def __iter__(self) -> Iterator[T_co]:
        rules = self.docs_per_step
        if rules is None:
            return iter(Loader(self))
        return iter(StepGrouper(Loader(for_steps(self, rules), in_steps=True), rules))

    def __len__(self) -> int:
        """Return the number of batches of this rank in one pass over the data.

        With `virtual_epoch_length`, in one such epoch. Batches are counted as if no sample were
        skipped, packed or grouped.
        """
        if self.virtual_epoch_length:
            return self.virtual_epoch_length
        total = self.num_batches(0, self.worker_config.num_lanes)
        if total is None:
            total = ceil(items_per_pass(self.spec))
        return batches_of_rank(self, total)

    def __bool__(self) -> bool:
        return True

    def len_rank(self) -> int:
        """Return `len(self)`."""
        return len(self)

    def can_restore_sample(self) -> bool:
        """Return False: a single item cannot be restored from its key."""
        return False

    def config(self) -> list[Any]:
        """Return the settings that determine the stream, as plain data."""
        return self.spec.to_dict()

    def replace(self, **changes: Any) -> SavableDataset[T_co]:
        """Return a dataset with some fields changed."""
        facts = {field.name: getattr(self, field.name) for field in fields(SavableDataset)}
        return SavableDataset(**{**facts, **changes})

    def num_batches(self, epoch: int, num_lanes: int) -> int | None:
        """Return the number of micro-batches of an epoch over all ranks; None if it is endless."""
        return self.spec.num_items(self.context(num_lanes), epoch)

    def start(self) -> State:
        """Return the state of a lane that has not started: the same for all."""
        return save(self.spec.build(self.context(1)))

    def build(
        self,
        places: Mapping[int, State],
        num_lanes: int,
        *,
        trace: Callable[[Any], None] | None = None,
        profiler: Profiler | None = None,
    ) -> dict[int, Node[Any]]:
        """Return the root nodes of lanes that are in these states, for one process.

        Opens no files. Raises StateError or StateMismatchError for a state that does not fit.

        trace: called with each sample before it is encoded; costs some time per sample.
        profiler: collects the time that nodes spend.
        """
        root = self.context(num_lanes, trace=trace, profiler=profiler)
        nodes = {lane: self.spec.build(root.in_lane(lane)) for lane in places}
        for lane, node in nodes.items():
            restore(node, places[lane])
        return nodes

    def context(
        self,
        num_lanes: int,
        *,
        trace: Callable[[Any], None] | None = None,
        profiler: Profiler | None = None,
    ) -> Context:
        """Return what the nodes of lanes are built from; see `build`."""
        return Context(
            seed=self.seed,
            lanes=num_lanes,
            trace=trace,
            shared_leaves=shared_leaf_ids(self.spec),
            leaf_numbers={leaf: number for number, leaf in enumerate(self.leaves)},
            profiler=profiler or Profiler(),
            cache=self.cache,
        )


def _check_stages(spec: Spec, world_size: int, above: Spec | None = None) -> None:
    """Raise SpecError if stages are mixed or repeated, or if ranks would switch at other steps.

    above: the lowest node above that is not one to one.
    """
    if isinstance(spec, StagedSpec):
        spec.check_ranks(world_size)
        if above is not None:
            raise SpecError(
                f"{spec.kind}: it counts the micro-batches of the run, so no {above.kind} may be "
                f"above it. Put the {above.kind} into its stages."
            )
    for child in spec.children.values():
        _check_stages(child, world_size, above if spec.is_one_to_one else spec)


def items_per_pass(spec: Spec) -> Fraction:
    """Return the number of items of a tree in one pass over its data, over all ranks."""
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
