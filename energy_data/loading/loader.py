"""The loader: hands out the batches of one rank, and keeps their place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

from rich.console import Console
from torch import distributed

from energy_data.errors import SpecError, StateMismatchError
from energy_data.loading.checkpoint.ledger import Ledgers, go_on
from energy_data.loading.checkpoint.restore import check_stages, fitted
from energy_data.loading.checkpoint.run_state import RunState, merge
from energy_data.loading.checkpoint.tree import TreeRecord, differences
from energy_data.loading.epoch_end import batches_of_rank, stand_in
from energy_data.loading.iteration import LoaderIterator, OnMismatch, ShownIterator
from energy_data.loading.lanes import Host, InProcess, Nodes
from energy_data.loading.position import Place, Placed
from energy_data.loading.progress import with_progress
from energy_data.loading.run import Run
from energy_data.loading.starvation import Recent
from energy_data.loading.stats import Counting, Stats, by_activity, left_out
from energy_data.loading.transitions import Transitions

log = logging.getLogger(__name__)

T_batch = TypeVar("T_batch")


class Loader(Placed[T_batch]):
    """Gives the batches of one rank, and saves and restores its place.

    Micro-batch g of the run is batch g // lanes of lane g % lanes; rank r of R has g = r (mod R).
    State is of the place after the last batch handed over. `load_state_dict` may be called at any
    time, also between two batches; the next batch is then the saved one.
    """

    groups_steps: ClassVar[bool] = False  # whether it can play stages that count steps

    def __init__(self, dataset: Run[T_batch], host: Host | None = None) -> None:
        super().__init__(dataset, host or InProcess())
        self._record = TreeRecord.of(dataset.spec)
        self._packed = self._record.pack()
        self._restored = False
        self.last_is_padding = False  # whether the batch handed over last stands in for none
        self._wait_s, self._handed_over = 0.0, 0
        self._counting = Counting(dataset)
        self._transitions = Transitions(dataset, self._counting)
        if self._transitions.plan.counts_steps and not self.groups_steps:
            raise SpecError(
                "docs_per_step: the stages of this run count steps of any size, and nothing says "
                "what a step is. Pass docs_per_step, by the names of stages."
            )
        self._recent = Recent(self._host.profiler)
        self._build(self._num_lanes)

    def __iter__(self) -> LoaderIterator[T_batch]:
        if self.dataset.from_start and not self._restored:
            self._build(self._num_lanes)
        self._restored = False
        return LoaderIterator(self)

    def next_batch(self) -> T_batch:
        """Return the next batch of this rank. StopIteration at the end of an epoch, once."""
        ranks = self.dataset.worker_config.world_size
        self._finish_move()
        self._tell_end()
        self.last_is_padding = False
        batch = self._next
        while len(self._ended) * ranks < self._num_lanes:
            self._end_virtual_epoch(batch)
            if self.dataset.even_batches == "drop" and self._uneven and batch >= self._uneven[1]:
                break
            items = self._take(batch)
            if items:
                given: T_batch = items[0]
                return given
            batch += ranks
        if self._uneven and self.dataset.even_batches != "drop":
            total, whole = self._uneven
            if total <= whole + self.dataset.worker_config.rank and self._next < whole + ranks:
                self._place = self._place.at(self._next + 1)
                self.last_is_padding = True
                padding: T_batch = stand_in(self.dataset, self._place.epoch, self._num_lanes)
                return padding
        if not self._is_over:
            self._begin_epoch(self._owe_end)
            self._tell_end()
        raise StopIteration

    def _take(self, batch: int) -> Sequence[Any]:
        """Return micro-batch `batch`; nothing if it was left out or its lane has ended."""
        lane = batch % self._num_lanes
        if lane in self._ended:
            return ()
        began = time.perf_counter()
        self._recent.asked(began, self._wait_s)
        try:
            items = self._host.take(lane, batch)
        except StopIteration:
            self._ended.add(lane)
            return ()
        finally:
            self._wait_s += time.perf_counter() - began
        self._handed_over += len(items)
        self._transitions.passed(batch, self._num_lanes, lambda: self._host.states(batch))
        self._place = self._place.at(batch + 1)
        if not items:
            log.warning("micro-batch %d is left out: none of its samples is left", batch)
        return items

    def _end_virtual_epoch(self, batch: int) -> None:
        length = self.dataset.virtual_epoch_length * self.dataset.worker_config.world_size
        place = self._place
        if length and batch - place.begun >= length:
            self._place = replace(place, epoch=place.epoch + 1, begun=place.begun + length)
            raise StopIteration

    @property
    def last_batch(self) -> int | None:
        """The number in the run of the micro-batch handed over last; None before the first."""
        return self._place.batch - 1 if self._place.batch else None

    @property
    def stage(self) -> tuple[int, str] | None:
        """Number and name of the stage of the batch handed over last; None before the first."""
        batch = self.last_batch
        stage = None if batch is None else self._transitions.stage_of(batch)
        return None if stage is None else (stage.number, stage.name)

    def stats(self) -> Stats:
        """Return what this rank has done so far. Reads no data, changes nothing."""
        self._finish_move()
        places = self._host.states(self._next)
        return Stats(
            batches=self._handed_over,
            wait_s=self._wait_s,
            starvation=self.starvation(),
            slots_in_use=self._host.slots_in_use,
            seconds=by_activity(self._host.profiler.seconds),
            left_out=left_out(places),
            skipped=self._counting.skipped(places, self._num_lanes),
            leaves=self._counting.leaves(places, self._num_lanes, self._host.profiler.read),
        )

    def starvation(self) -> str:
        """Return what has held up the trainer in the last seconds, in words. Costs nothing."""
        return self._recent.in_words(time.perf_counter(), self._wait_s)

    def with_progress(
        self, *, total: int | None = None, console: Console | None = None
    ) -> LoaderIterator[T_batch]:
        """Iterate as `for batch in loader`, and show on the terminal how far it is.

        total: batches of this rank in the iteration, where the loader cannot know (endless).
        console: a rich console; by default standard error. Where it is no terminal, the same is
        logged (INFO) once a minute instead.
        """

        def shown(batches: Iterator[T_batch]) -> Iterator[T_batch]:
            expected = total or batches_of_rank(self.dataset, self._place.epoch, self._num_lanes)
            return with_progress(batches, self.starvation, expected, console)

        return ShownIterator(self, iter(self), shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop worker processes, as at the end of `with`; used again, it starts them again."""
        self._host.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this rank. Pure: it reads no data and changes nothing."""
        self._finish_move()
        config, place = self.dataset.worker_config, self._place
        return RunState(
            seed=self.dataset.seed,
            lanes=self._num_lanes,
            tree=self._packed,
            epoch=place.epoch,
            begun=place.begun,
            batch=self._next,
            clock=self._next - (self._next - place.phase) % config.world_size,
            hosted=(config.rank, config.world_size),
            start=self._start,
            places=self._host.states(self._next),
            gone=self._gone,
        ).to_dict()

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Go to a saved place: of this rank, or of the whole run.

        on_mismatch: what to do if the tree was edited since: "error" lists what differs;
        "keep_matching" lets leaves that stayed go on and starts the others at 0; "restart" begins
        anew. Raises StateMissingError, StateMismatchError or StateIncompleteError, and then
        nothing has moved.
        """
        saved = RunState.from_dict(state)
        config = self.dataset.worker_config
        own = saved.hosted == (config.rank, config.world_size)
        self._restore(saved if own else merge([saved]), on_mismatch)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the place of this rank; as `state_dict`."""
        return self.state_dict()

    def restore_state_rank(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Go to a place this rank saved; as `load_state_dict`."""
        self.load_state_dict(state, on_mismatch=on_mismatch)

    def save_state_global(self, global_dst_rank: int = 0) -> dict[str, Any] | None:
        """Return the place of the whole run on rank `global_dst_rank`, None on the others.

        A collective over the data-parallel group if there is more than one rank.
        """
        config = self.dataset.worker_config
        own = self.state_dict()
        if config.world_size == 1:
            return own
        gathered: list[Any] | None = None
        if distributed.get_rank() == global_dst_rank:
            gathered = [None] * config.world_size
        distributed.gather_object(
            own, gathered, dst=global_dst_rank, group=config.data_parallel_group
        )
        return None if gathered is None else merge_states(gathered)

    def restore_state_global(
        self,
        state: Any,
        *,
        src_rank: int | None = None,
        on_mismatch: OnMismatch = "error",
    ) -> None:
        """Go to a place of the whole run, saved on any number of ranks.

        state: a global state, or the states of all ranks that saved, in a list. With `src_rank`,
        only that rank needs to pass it; it is sent to the others.
        """
        config = self.dataset.worker_config
        if src_rank is not None and config.world_size > 1:
            sent = [state]
            distributed.broadcast_object_list(sent, src=src_rank, group=config.data_parallel_group)
            state = sent[0]
        states = state if isinstance(state, Sequence) and len(state) else [state]
        self._restore(merge([RunState.from_dict(one) for one in states]), on_mismatch)

    @property
    def _is_over(self) -> bool:
        """Whether the last stage has ended, or what limits the stages.

        The place stays then: stages never begin again, and the last may become longer.
        """
        ended = len(self._ended) * self.dataset.worker_config.world_size >= self._num_lanes
        limited = self._transitions.plan.is_staged and ended
        return limited or self._transitions.stage_of(self._next) is None

    def _restore(self, saved: RunState, on_mismatch: OnMismatch) -> None:
        if on_mismatch not in ("error", "keep_matching", "restart"):
            raise SpecError(
                f"on_mismatch: must be 'error', 'keep_matching' or 'restart', got {on_mismatch!r}."
            )
        check_stages(saved)
        wrong = self._wrong_run(saved)
        changed = saved.tree != self._packed
        if on_mismatch == "restart" and (wrong or changed):
            log.warning("the state is of another run or tree: starting from the beginning")
            self._build(self.dataset.worker_config.num_lanes)
        elif wrong:
            raise StateMismatchError(wrong)
        else:
            self._go_to(saved, on_mismatch, changed=changed)
        self._restored = True
        self._transitions.anew()

    def _wrong_run(self, saved: RunState) -> str | None:
        """Return in a sentence why the state is of another run, None if it is of this one."""
        config = self.dataset.worker_config
        if saved.seed != self.dataset.seed:
            return (
                f"state: it was saved with seed {saved.seed}, this run has seed "
                f"{self.dataset.seed}. Pass seed={saved.seed}, or restore with "
                f"on_mismatch='restart'."
            )
        if saved.step is not None and (wrong := self._wrong_step(saved.step)):
            return wrong
        if config.lanes not in (None, saved.lanes):
            return (
                f"state: it was saved with {saved.lanes} lanes, this run has {config.lanes}. The "
                f"number of lanes is fixed for the life of a run: pass lanes={saved.lanes}."
            )
        if saved.lanes % config.world_size:
            good = [n for n in range(1, saved.lanes + 1) if saved.lanes % n == 0]
            return (
                f"state: it was saved with {saved.lanes} lanes, which {config.world_size} ranks "
                f"cannot share evenly. Use one of {', '.join(map(str, good))} ranks."
            )
        return None

    def _wrong_step(self, said: dict[str, Any]) -> str | None:
        """Return why this loader cannot go on inside a step, None if it can."""
        if not said.get("index"):
            return None
        return (
            f"state: it was saved inside step {said.get('step')}, after {said['index']} of its "
            f"micro-batches, and this loader has no docs_per_step. Pass the same docs_per_step, or "
            f"restore a state saved at the end of a step."
        )

    def _go_to(self, saved: RunState, on_mismatch: OnMismatch, *, changed: bool) -> None:
        """Go to a place of this run; nothing moves if it does not fit."""
        config = self.dataset.worker_config
        hosted = range(config.rank, saved.lanes, config.world_size)
        nodes = self.dataset.build(hosted, saved.lanes, profiler=self._host.profiler)
        if not changed:
            for lane, node in nodes.items():
                node.load_state_dict(saved.places[lane])
        elif fitted(
            saved, self._record, self.dataset.spec, nodes, keep=on_mismatch == "keep_matching"
        ):
            pass  # the stages have told what has become of them
        elif on_mismatch == "keep_matching":
            go_on(nodes, self._record, Ledgers(saved))
        else:
            found = differences(TreeRecord.unpack(saved.tree), self._record)
            raise StateMismatchError(
                "state: the tree was edited since it was saved:\n"
                + "\n".join(f"  - {difference}" for difference in found)
                + "\nRestore with on_mismatch='keep_matching' to let the leaves that stayed go on "
                "where they were, or 'restart' to begin anew."
            )
        gone = Ledgers(saved).gone(self._record, hosted) if changed else saved.gone
        start = self.dataset.start(saved.lanes)
        there = self._there(saved, nodes)

        def begin() -> None:
            self._gone, self._start, self._restored = gone, start, True
            there()

        phase = saved.clock % config.world_size
        self._move(nodes, saved.lanes, Place(saved.epoch, saved.begun, saved.batch, phase), begin)

    def _there(self, saved: RunState, nodes: Nodes) -> Callable[[], None]:
        """Return what else is to be done at a saved place, with its lanes."""
        return lambda: None


def merge_states(states: Sequence[Any]) -> dict[str, Any]:
    """Return the state of the whole run from the states of its ranks, in any order."""
    return merge([RunState.from_dict(state) for state in states]).to_dict()
