"""The interface of a loader of one rank: iterate, save, restore, report; and its iterators."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, get_args

from torch import distributed

from energy_data.errors import SpecError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.whole_run import merge
from energy_data.loading.reports import Stats

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

T_batch = TypeVar("T_batch")

_SHOW_S, _LOG_S = 0.25, 60.0  # seconds between two updates of the bar, and between two log lines

OnMismatch = Literal["error", "keep_matching", "restart"]
Scope = Literal["rank", "run"]


class LoaderIterator(Iterator[T_batch]):
    """An iteration over a loader. Its position is that of the loader."""

    def __init__(self, loader: SavableDataLoader[T_batch]) -> None:
        self._loader = loader
        self._done = False

    def __next__(self) -> T_batch:
        if self._done:
            raise StopIteration
        try:
            return self._loader.next_batch()
        except StopIteration:
            self._done = True
            raise

    def state_dict(self, *, scope: Scope = "rank") -> dict[str, Any]:
        """Return the position of the loader; see `SavableDataLoader.state_dict`."""
        return self._loader.state_dict(scope=scope)

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a saved position; the next batch of this iteration is the saved one."""
        self._done = False
        self._loader.load_state_dict(state, on_mismatch=on_mismatch)


class ProgressIterator(LoaderIterator[T_batch]):
    """An iteration with a progress bar: batches, their rate, and what the trainer waits for.

    Where the console is not a terminal, a line is logged once a minute (INFO). Starts no thread,
    because a process that forks must not have one; so nothing changes between two batches.
    """

    def __init__(
        self, loader: SavableDataLoader[T_batch], total: int | None, console: Console
    ) -> None:
        super().__init__(loader)
        self._total, self._console = total, console
        self._every_s = _SHOW_S if console.is_terminal else _LOG_S
        self._bar: Progress | None = None
        self._count = 0
        self._start_s: float | None = None  # None: not shown
        self._last_s = 0.0  # time of the last update

    def __del__(self) -> None:
        """Restore the terminal if the iteration was abandoned."""
        if self._bar is not None:
            self._bar.stop()

    def __next__(self) -> T_batch:
        if self._start_s is None and not self._done:
            self._start()
        try:
            batch = super().__next__()
        except BaseException:
            self._stop()
            raise
        self._count += 1
        now = time.perf_counter()
        if now >= self._last_s + self._every_s:
            self._last_s = now
            self._show(now)
        return batch

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a saved position, and restart the bar; see `LoaderIterator.load_state_dict`."""
        self._stop()
        super().load_state_dict(state, on_mismatch=on_mismatch)

    def _start(self) -> None:
        self._start_s = self._last_s = time.perf_counter()
        self._count = 0
        if self._console.is_terminal:
            from rich.progress import (  # noqa: PLC0415 - few programs show a bar
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("batch"),
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[rate]}/s"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("waits for: {task.fields[starvation]}"),
                console=self._console,
                auto_refresh=False,
            )
            self._bar.add_task("", total=self._total, rate="0", starvation="")
            self._bar.start()

    def _stop(self) -> None:
        """Show the final numbers and restore the terminal; idempotent."""
        if self._start_s is not None:
            self._show(time.perf_counter())
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._start_s = None

    def _show(self, now: float) -> None:
        rate = f"{self._count / max(now - (self._start_s or 0.0), 1e-9):.3g}"
        starvation = self._loader.starvation()
        if self._bar is None:
            of = "" if self._total is None else f" of {self._total}"
            log.info("batch %d%s, %s/s, waits for: %s", self._count, of, rate, starvation)
            return
        (task,) = self._bar.task_ids
        self._bar.update(
            task, completed=self._count, rate=rate, starvation=starvation, refresh=True
        )


class SavableDataLoader(ABC, Generic[T_batch]):
    """Returns the batches of one rank; saves and restores its position.

    A state describes the position after the last batch returned. `load_state_dict` may be called at
    any time, also between two batches; the next batch is then the saved one.
    """

    dataset: SavableDataset[T_batch]

    @abstractmethod
    def next_batch(self) -> T_batch:
        """Return the next batch of this rank. Raises StopIteration once at the end of an epoch."""

    @abstractmethod
    def run_state(self) -> RunState:
        """Return the position of this rank."""

    @abstractmethod
    def restore(self, saved: RunState, on_mismatch: OnMismatch) -> bool:
        """Move to a position of the whole run, or of this rank.

        Return False if the run starts from the beginning instead.
        """

    @abstractmethod
    def num_batches(self) -> int | None:
        """Return the maximal number of batches of this rank per iteration; None if endless."""

    @property
    @abstractmethod
    def last_batch(self) -> int | None:
        """The number in the run of the last micro-batch returned; None before the first."""

    @property
    @abstractmethod
    def stage(self) -> tuple[int, str] | None:
        """Number and name of the stage of the last batch returned; None before the first."""

    @property
    def leaves(self) -> list[str]:
        """The ids of all leaves of the run; `__leaf__` in a batch counts in this list."""
        return self.dataset.leaves

    @abstractmethod
    def stats(self) -> Stats:
        """Return the statistics of this rank so far. Reads no data, changes nothing."""

    @abstractmethod
    def starvation(self) -> str:
        """Return why the trainer waited in the last seconds, in words. Costs nothing."""

    @abstractmethod
    def close(self) -> None:
        """Stop worker processes, as at the end of `with`. They start again with the next batch."""

    def __iter__(self) -> LoaderIterator[T_batch]:
        return LoaderIterator(self)

    def with_progress(
        self, *, total: int | None = None, console: Console | None = None
    ) -> LoaderIterator[T_batch]:
        """Iterate as `for batch in loader`, and show the progress on the terminal.

        total: batches of this rank in the iteration, for a loader that cannot know it (endless).
        console: a rich console; by default standard error. If it is not a terminal, progress is
        logged once a minute instead (INFO).
        """
        from rich.console import Console  # noqa: PLC0415 - as above

        iter(self)  # may move to the beginning, and `num_batches` depends on the position
        console = console or Console(stderr=True)
        return ProgressIterator(self, total or self.num_batches(), console)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self, *, scope: Scope = "rank") -> dict[str, Any]:
        """Return the position of this rank, or of the run. Reads no data, changes nothing.

        scope: "run" returns the position of the whole run on every rank. The state of one rank then
        restores any number of ranks, as trainers need that keep the state of one. It is a
        collective over the data-parallel group, which all ranks must call.
        """
        if scope not in get_args(Scope):
            raise SpecError(f"scope: must be 'rank' or 'run', got {scope!r}.")
        own, config = self.run_state().to_dict(), self.dataset.worker_config
        if scope == "rank" or config.world_size == 1:
            return own
        if not config.has_group():
            raise SpecError(
                f"state_dict: scope='run' collects the states of {config.world_size} ranks, but "
                f"there is no process group of as many. Initialize torch.distributed, and pass "
                f"WorkerConfig(data_parallel_group=...) if it has more ranks."
            )
        gathered: list[Any] = [None] * config.world_size
        distributed.all_gather_object(gathered, own, group=config.data_parallel_group)
        return merge_states(gathered)

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a saved position: of this rank, or of the whole run.

        on_mismatch: what to do if the tree was edited since: "error" lists the differences;
        "keep_matching" continues unchanged leaves and starts the others at 0; "restart" starts
        from the beginning. Raises StateMissingError, StateMismatchError or StateIncompleteError,
        and then nothing has moved.

        An empty dict before the first batch is a fresh start: it moves nothing, as trainers expect
        that load what a new run has not saved.
        """
        if state == {} and self.last_batch is None:
            return
        saved = RunState.from_dict(state)
        config = self.dataset.worker_config
        own = saved.hosted == (config.rank, config.world_size)
        self.restore(saved if own else merge([saved]), on_mismatch)

    def can_restore_sample(self) -> bool:
        """Return False: a single sample cannot be restored from its key."""
        return False

    def restore_sample(self, restore_key: Any) -> Any:
        """Raise SpecError: a loader is restored as a whole."""
        raise SpecError(
            f"restore_sample: batches are made of a position of the run, not of keys, got "
            f"{restore_key!r}. Restore a state; the key is (leaf id, epoch, index of the sample)."
        )

    def start(self) -> None:
        """Do nothing, for programs of Energon 8: workers start with the first batch."""

    def shutdown(self, in_del: bool = False) -> None:
        """Stop worker processes; as `close`."""
        self.close()

    def with_restored_state_rank(self, state: Any) -> Self:
        """Move to a position this rank saved, and return the loader."""
        self.restore_state_rank(state)
        return self

    def with_restored_state_global(self, state: Any, *, src_rank: int | None = None) -> Self:
        """Move to a position of the whole run, and return the loader."""
        self.restore_state_global(state, src_rank=src_rank)
        return self

    def config(self) -> Any:
        """Return the settings that determine the stream, as plain data."""
        return self.dataset.config()

    def __len__(self) -> int:
        """Return the number of batches of this rank in one pass over the data."""
        return len(self.dataset)

    def __bool__(self) -> bool:
        return True

    def save_state(self, dst_rank: int) -> dict[str, Any] | None:
        """Return `save_state_global(dst_rank)`."""
        return self.save_state_global(dst_rank)

    def restore_state(self, state: Any) -> None:
        """Call `restore_state_global(state)`."""
        self.restore_state_global(state)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the position of the run, so that what one rank saves restores any number of them.

        A collective over the data-parallel group of the `WorkerConfig`, which all its ranks must
        call. It is the position of this rank alone, which restores as many ranks, if there is no
        such group, or if ranks are not at one place of the run, which is logged.
        """
        if not self.dataset.worker_config.has_group():
            return self.state_dict()
        try:
            return self.state_dict(scope="run")
        except StateMismatchError as error:
            log.warning("save_state_rank: the state restores this number of ranks only. %s", error)
            return self.state_dict()

    def restore_state_rank(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a position that `save_state_rank` returned; as `load_state_dict`."""
        self.load_state_dict(state, on_mismatch=on_mismatch)

    def save_state_global(self, global_dst_rank: int = 0) -> dict[str, Any] | None:
        """Return the position of the whole run on rank `global_dst_rank`, None on the others.

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
        """Move to a position of the whole run, saved on any number of ranks.

        state: a global state, or the states of all ranks that saved, in a list. With `src_rank`, a
        rank of the data-parallel group, only that rank needs to pass it; the others receive it.
        """
        config = self.dataset.worker_config
        if src_rank is not None and config.world_size > 1:
            sent = [state]
            group = config.data_parallel_group
            source = src_rank if group is None else distributed.get_global_rank(group, src_rank)
            distributed.broadcast_object_list(sent, src=source, group=group)
            state = sent[0]
        states = state if isinstance(state, Sequence) and len(state) else [state]
        self.restore(merge([RunState.from_dict(one) for one in states]), on_mismatch)


def merge_states(states: Sequence[Any]) -> dict[str, Any]:
    """Return the state of the whole run from the states of its ranks, in any order."""
    return merge([RunState.from_dict(state) for state in states]).to_dict()
