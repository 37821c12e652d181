"""The loader of one rank: next batch, state, restoring."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, get_args

from energy_data.core.cursor import State, save
from energy_data.errors import SpecError, StateMismatchError
from energy_data.loading.checkpoint.restore import check_stages, restore_edited
from energy_data.loading.checkpoint.run_state import RemovedLeaves, RunState
from energy_data.loading.checkpoint.saved_run import SavedTree
from energy_data.loading.epoch_end import batches_of_rank, end_of_pass, padding_batch
from energy_data.loading.lanes import InProcess, LaneRunner, LanesStart, Nodes, RunPosition
from energy_data.loading.reports import (
    StageLog,
    Stats,
    WaitReport,
    by_activity,
    leaf_stats,
    skipped_items,
)
from energy_data.loading.savable_loader import LoaderIterator, OnMismatch, SavableDataLoader
from energy_data.nodes.leaf import shared_leaf_ids
from energy_data.nodes.run_plan import RunPlan
from energy_data.nodes.staged import StagedNode

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

T_batch = TypeVar("T_batch")


class Loader(SavableDataLoader[T_batch]):
    """Returns the batches of one rank; saves and restores its position.

    Micro-batch g of the run is batch g // lanes of lane g % lanes; rank r of R has g = r (mod R).
    It leaves out those whose samples were all skipped.
    """

    def __init__(
        self,
        dataset: SavableDataset[T_batch],
        host: LaneRunner | None = None,
        *,
        in_steps: bool = False,
    ) -> None:
        """Make a loader.

        host: by default, lanes run in this thread. in_steps: a `StepGrouper` takes micro-batches.
        """
        self.dataset, self.in_steps = dataset, in_steps
        config = dataset.worker_config
        self._rank, self._ranks = config.rank, config.world_size
        self._host = host or InProcess(dataset)
        self._plan = RunPlan(dataset.spec)
        if self._plan.counts_steps and not in_steps:
            raise SpecError(
                "docs_per_step: the stages of this run count optimizer steps, whose size is "
                "unknown. Pass docs_per_step."
            )
        if shared := shared_leaf_ids(dataset.spec):
            log.warning(
                "several pipelines read %s, each in its own order: a sample is returned once per "
                "pipeline and epoch",
                ", ".join(sorted(shared)),
            )
        self._tree = SavedTree.pack(dataset.spec)
        self._start = dataset.start()
        self.position, self.num_lanes = RunPosition(), config.num_lanes
        self._ended: set[int] = set()  # lanes
        self._passed: Mapping[int, State] | None = None  # lanes at the end of a pass that is over
        self._restored = False
        self.last_is_padding = False  # whether the last batch returned only pads the epoch
        self._handed_over = 0
        self._waits = WaitReport(self._host.profiler)
        is_logged = self._plan.staged is not None and config.rank == 0
        self._stage_log = StageLog(self._plan) if is_logged else None
        self._start_run(config.num_lanes)

    def __iter__(self) -> LoaderIterator[T_batch]:
        if self.dataset.from_start and not self._restored:
            self._start_run(self.num_lanes)
        self._restored = False
        return super().__iter__()

    # ---- batches

    def next_batch(self) -> T_batch:
        """Return the next batch of this rank. Raises StopIteration once at the end of an epoch."""
        ranks, number = self._ranks, self._next
        self.last_is_padding = False
        while self._has_more(number):
            self._end_virtual_epoch(number)
            if items := self.take(number):
                self.position = self.position.after(number, ranks)
                batch: T_batch = items[0]
                return batch
            if self._pass_end is not None:
                return self._padding(number)
            number += ranks
            if self._began.firsts:  # what other ranks returned before is passed over at once
                number = self._began.first_left(number, self._ended)
        if not self.is_over:
            self.begin_pass()
        raise StopIteration

    def _has_more(self, number: int) -> bool:
        """Return whether the pass is not over before a micro-batch of this rank."""
        return not self.has_ended() if self._pass_end is None else number < self._pass_end

    def _padding(self, number: int) -> T_batch:
        """Return what stands for a micro-batch that has no samples."""
        batch: T_batch = padding_batch(self.dataset, self.position.epoch, self.num_lanes)
        self.position = self.position.after(number, self._ranks)
        self.last_is_padding = True
        return batch

    def take(self, number: int) -> Sequence[T_batch]:
        """Return micro-batch `number`.

        Empty if it was skipped, if its lane has ended, or if another rank returned it before.
        """
        lane = number % self.num_lanes
        if lane in self._ended or not self._began.has(number):
            return ()
        began = time.perf_counter()
        self._waits.update(began)
        try:
            items = self._host.take(lane, number)
        except StopIteration:
            self._ended.add(lane)
            return ()
        finally:
            self._waits.wait_s += time.perf_counter() - began
        self._handed_over += len(items)
        self._passed = None
        if self._stage_log is not None:
            stage = self._stage_number(number)
            self._stage_log.passed(number, stage, lambda: self._nodes_before(number))
        self.position = self.position.after(number)
        if not items:
            log.warning("micro-batch %d is skipped: all its samples were skipped", number)
        return items

    @property
    def _next(self) -> int:
        """The number in the run of this rank's next micro-batch."""
        return self.position.next_of(self._rank, self._ranks)

    def _end_virtual_epoch(self, number: int) -> None:
        at, length = self.position, self.dataset.virtual_epoch_length * self._ranks
        end = at.epoch_start + length
        # The first round that begins there or later: all ranks end before it.
        clock = end + (at.clock - end) % self._ranks
        if length and number >= clock:
            if self.dataset.from_start:
                self._start_run(self.num_lanes)
                raise StopIteration
            # Micro-batches of lanes that have ended count, although none was returned. The position
            # does not pass them: a restored run looks again which lanes have ended.
            self.position = RunPosition(at.epoch + 1, end, at.batch, clock)
            raise StopIteration

    def has_ended(self, number: int | None = None) -> bool:
        """Return whether the lane of a micro-batch has ended its pass; None: all lanes."""
        if number is None:
            return len(self._ended) * self._ranks >= self.num_lanes
        return number % self.num_lanes in self._ended

    @property
    def is_over(self) -> bool:
        """Whether the last stage has ended, or a node that limits the stages.

        The position is then kept: stages never start again, and the last one may become longer.
        """
        limited = self._plan.staged is not None and self.has_ended()
        return limited or self._stage_number(self._next) == len(self._plan.stages)

    # ---- reports

    def num_batches(self) -> int | None:
        """Return the maximal number of batches of this rank per iteration; None if endless."""
        if self.dataset.virtual_epoch_length:
            return self.dataset.virtual_epoch_length
        total = self.dataset.num_batches(self.position.epoch, self.num_lanes)
        return None if total is None else batches_of_rank(self.dataset, total)

    @property
    def last_batch(self) -> int | None:
        """The number in the run of the last micro-batch returned; None before the first."""
        return self.position.batch - 1 if self.position.batch else None

    @property
    def stage(self) -> tuple[int, str] | None:
        """Number and name of the stage of the last batch returned; None before the first."""
        return self.stage_of(self.last_batch)

    def stage_of(self, number: int | None) -> tuple[int, str] | None:
        """Return number and name of the stage of a micro-batch; None before and after all."""
        if number is None or (stage := self._stage_number(number)) == len(self._plan.stages):
            return None
        return stage, self._plan.stages[stage].name

    def _stage_number(self, number: int) -> int:
        """Return the stage of a micro-batch; the current one where stages count steps."""
        return len(self.entered) if self._plan.counts_steps else self._plan.number_of(number)

    def stats(self) -> Stats:
        """Return the statistics of this rank so far. Reads no data, changes nothing."""
        places = self._passed or self._host.states(self._next)
        nodes, profiler = self.dataset.build(places, self.num_lanes), self._host.profiler
        return Stats(
            batches=self._handed_over,
            wait_s=self._waits.wait_s,
            starvation=self.starvation(),
            slots_in_use=self._host.slots_in_use,
            seconds=by_activity(profiler.seconds),
            skipped=skipped_items(nodes),
            leaves=leaf_stats(nodes, profiler.usage),
        )

    def starvation(self) -> str:
        """Return why the trainer waited in the last seconds, in words. Costs nothing."""
        return self._waits.reason()

    @property
    def slots_in_use(self) -> int:
        """The number of live batches in memory shared with worker processes."""
        return self._host.slots_in_use

    def close(self) -> None:
        """Stop worker processes, as at the end of `with`. They start again with the next batch."""
        self._host.close()

    # ---- moving

    def run_state(self, position: RunPosition | None = None) -> RunState:
        """Return the state at the position, or an earlier one, as far back as `keep` says."""
        position = position or self.position
        number = position.next_of(self._rank, self._ranks)
        nexts = self._began.nexts(number)
        return RunState(
            seed=self.dataset.seed,
            lanes=self.num_lanes,
            tree=self._tree,
            epoch=position.epoch,
            epoch_start=position.epoch_start,
            nexts=nexts,
            clock=position.clock if self._ranks > 1 else min(nexts.values()),
            hosted=(self._rank, self._ranks),
            start=self._start,
            places=self._host.states(number),
            gone=self._gone,
        )

    def keep(self, position: RunPosition) -> None:
        """Make `run_state` possible from a position on."""
        self._host.keep(position.next_of(self._rank, self._ranks))

    def begin_pass(self) -> None:
        """Move to the beginning of the next pass; of the first one with `dataset.from_start`."""
        passed = self._host.states()
        if self.dataset.from_start:
            self._start_run(self.num_lanes)
        else:
            nodes = self.dataset.build(passed, self.num_lanes)
            for node in nodes.values():
                node.rewind()
            following = RunPosition(epoch=self.position.epoch + 1)
            self._move(_states(nodes), self.num_lanes, following, {})
        self._passed = passed

    def enter_stage(self, position: RunPosition) -> None:
        """Move to a position, and enter the next stage there. For stages that count steps."""
        nodes = self._nodes_before(position.next_of(self._rank, self._ranks))
        for node in nodes.values():
            for _, inner in node.walk():
                if isinstance(inner, StagedNode):
                    inner.enter(position.batch)
        self._move(_states(nodes), self.num_lanes, position, self._began.firsts)

    def _start_run(self, num_lanes: int) -> None:
        """Move to the beginning of the run, with this number of lanes in it."""
        lanes = range(self._rank, num_lanes, self._ranks)
        self._move(dict.fromkeys(lanes, self._start), num_lanes, RunPosition(), {})
        self._gone = RemovedLeaves()  # leaves that edits have removed from the run

    def _nodes_before(self, number: int) -> Nodes:
        """Return new nodes for the lanes of this rank, as before one of its micro-batches."""
        return self.dataset.build(self._host.states(number), self.num_lanes)

    def _move(
        self,
        places: Mapping[int, State],
        num_lanes: int,
        position: RunPosition,
        firsts: Mapping[int, int],
    ) -> None:
        """Continue with the lanes of this rank in these states, at a position.

        firsts: lane -> its first micro-batch, if others from the position on were returned already.
        """
        number = position.next_of(self._rank, self._ranks)
        self._pass_end = end_of_pass(self.dataset, position, num_lanes)
        self._began = LanesStart(number, num_lanes, places, firsts)
        self._passed = None
        self._host.adopt(self._began)
        self.position, self.num_lanes, self._ended = position, num_lanes, set()
        cursors = next(iter(places.values())).values()
        # First micro-batches of the stages entered, without the first; for stages that count steps.
        self.entered: tuple[int, ...] = next((c["entered"] for c in cursors if "entered" in c), ())

    # ---- restoring

    def restore(
        self, saved: RunState, on_mismatch: OnMismatch, *, misfit: str | None = None
    ) -> bool:
        """Move to a saved position; return False if the run starts from the beginning instead.

        misfit: why a `StepGrouper` cannot continue from there.
        """
        if on_mismatch not in get_args(OnMismatch):
            raise SpecError(
                f"on_mismatch: must be 'error', 'keep_matching' or 'restart', got {on_mismatch!r}."
            )
        wrong = self._wrong_run(saved) or misfit
        changed = self.is_changed(saved)
        restarts = on_mismatch == "restart" and bool(wrong or changed)
        if restarts:
            log.warning("the state is of another run or tree: starting from the beginning")
            self._start_run(self.dataset.worker_config.num_lanes)
        elif wrong:
            raise StateMismatchError(wrong)
        else:
            self._go_to(saved, on_mismatch, changed=changed)
        self._restored = True
        if self._stage_log is not None:
            self._stage_log.restart()
        return not restarts

    def is_changed(self, saved: RunState) -> bool:
        """Return whether a state was saved with another tree."""
        return saved.tree != self._tree

    def _wrong_run(self, saved: RunState) -> str | None:
        """Return why the state belongs to another run; None if it belongs to this one."""
        if saved.seed != self.dataset.seed:
            return (
                f"state: it was saved with seed {saved.seed}, this run has seed "
                f"{self.dataset.seed}. Pass seed={saved.seed}, or restore with "
                f"on_mismatch='restart'."
            )
        if saved.step is not None and saved.step.get("index") and not self.in_steps:
            return (
                f"state: it was saved inside step {saved.step.get('step')}, after "
                f"{saved.step['index']} of its micro-batches, and this loader has no "
                f"docs_per_step. Pass the same docs_per_step, or restore a state saved at the end "
                f"of a step."
            )
        if self.dataset.worker_config.lanes not in (None, saved.lanes):
            lanes = self.dataset.worker_config.lanes
            return (
                f"state: it was saved with {saved.lanes} lanes, this run has {lanes}. The number "
                f"of lanes is fixed for the life of a run: pass lanes={saved.lanes}."
            )
        if saved.lanes % self._ranks:
            good = [n for n in range(1, saved.lanes + 1) if saved.lanes % n == 0]
            return (
                f"state: it was saved with {saved.lanes} lanes, which {self._ranks} ranks "
                f"cannot share evenly. Use one of {', '.join(map(str, good))} ranks."
            )
        return None

    def _go_to(self, saved: RunState, on_mismatch: OnMismatch, *, changed: bool) -> None:
        """Move to a position of this run; nothing moves if it does not fit."""
        hosted = range(self._rank, saved.lanes, self._ranks)
        places = {lane: self._start if changed else saved.places[lane] for lane in hosted}
        nodes, gone = self.dataset.build(places, saved.lanes), saved.gone
        if changed:
            keep = on_mismatch == "keep_matching"
            gone = restore_edited(saved, self._tree, nodes, keep=keep)
        if self._plan.staged is not None:
            check_stages(saved, nodes)
        batch = min(saved.clock, *(saved.nexts[lane] for lane in hosted))
        position = RunPosition(saved.epoch, saved.epoch_start, batch, saved.clock)
        self._move(_states(nodes), saved.lanes, position, saved.nexts)
        self._gone = gone


def _states(nodes: Nodes) -> dict[int, State]:
    return {lane: save(node) for lane, node in nodes.items()}
