"""A run: a tree of specs, its seed, and which part of it this process is. Holds no place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar

from attrs import field, frozen

from energy_data.core.context import Context, WorkerConfig
from energy_data.core.cursor import State, save
from energy_data.core.node import Node
from energy_data.core.profiler import Profiler
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaves import shared_leaf_ids
from energy_data.order.step_rules import DocsPerStep

log = logging.getLogger(__name__)

EvenBatches = Literal["drop", "short", "pad"]

T_co = TypeVar("T_co", covariant=True)


@frozen(kw_only=True)
class Run(Generic[T_co]):
    """What is read, in which order, and by whom; frozen."""

    spec: Spec
    worker_config: WorkerConfig = field(factory=WorkerConfig)
    seed: int = 0
    from_start: bool = False  # every iteration begins anew (validation)
    virtual_epoch_length: int = 0  # batches of a rank after which an iteration ends; 0: none
    even_batches: EvenBatches | None = None  # how ranks end a pass after equally many batches
    docs_per_step: DocsPerStep | None = None  # groups micro-batches into optimizer steps
    cache: Any = field(default=None, eq=False, repr=False)  # a cache pool, for users' functions

    def __attrs_post_init__(self) -> None:
        if self.virtual_epoch_length < 0:
            raise SpecError(f"virtual_epoch_length: must be >= 0, got {self.virtual_epoch_length}.")
        if self.even_batches not in (None, "drop", "short", "pad"):
            raise SpecError(
                f"even_batches: must be None, 'drop', 'short' or 'pad', got {self.even_batches!r}."
            )
        if self.spec.item_kind == "references":
            raise SpecError("dataset: its tree gives references. Put a ReadSpec over it.")
        _check_counts(self.spec)
        for _, inner in self.spec.walk():
            inner.check_ranks(self.worker_config.world_size)
        if crossed := shared_leaf_ids(self.spec):
            log.warning(
                "several pipelines draw from %s, each in an order of its own: a sample comes up "
                "once per pipeline and epoch",
                ", ".join(sorted(crossed)),
            )

    def num_batches(self, epoch: int, num_lanes: int) -> int | None:
        """Return how many micro-batches pass `epoch` has over all ranks; None if it never ends."""
        crossed = shared_leaf_ids(self.spec)
        root = Context(seed=self.seed, lanes=num_lanes, shared_leaves=crossed)
        return self.spec.num_items(root, epoch)

    def start(self, num_lanes: int) -> State:
        """Return the place of a lane that has not begun, of lane 0: so all ranks say the same."""
        return save(self.build([0], num_lanes)[0])

    def build(
        self,
        lanes: Iterable[int],
        num_lanes: int,
        *,
        trace: Callable[[Any], None] | None = None,
        profiler: Profiler | None = None,
    ) -> dict[int, Node[Any]]:
        """Return the root nodes of some lanes, for one process. Opens nothing.

        trace: called with each sample before it is encoded; costs some time per sample.
        profiler: told what time is spent on.
        """
        lanes = tuple(lanes)
        root = Context(
            seed=self.seed,
            lanes=num_lanes,
            hosted=lanes,
            trace=trace,
            shared_leaves=shared_leaf_ids(self.spec),
            profiler=profiler or Profiler(),
            cache=self.cache,
        )
        return {lane: self.spec.build(root.in_lane(lane)) for lane in lanes}


def _check_counts(spec: Spec, above: Spec | None = None) -> None:
    """Raise SpecError if something mixes or repeats what counts the micro-batches of the run."""
    if spec.children_are_sequential and above is not None:
        raise SpecError(
            f"{spec.kind}: it counts the micro-batches of the run, and a {above.kind} "
            f"stands over it. Put the {above.kind} into its stages."
        )
    for child in spec.children.values():
        _check_counts(child, above if above or spec.is_one_to_one else spec)
