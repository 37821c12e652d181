"""The interface of a loader of one rank: iterate, save, restore, report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

from rich.console import Console
from torch import distributed

from energy_data.errors import SpecError
from energy_data.loading.checkpoint.run_state import RunState, merge
from energy_data.loading.iteration import LoaderIterator, OnMismatch, ShownIterator
from energy_data.loading.progress import with_progress
from energy_data.loading.run import Run
from energy_data.loading.stats import Stats

T_batch = TypeVar("T_batch")


class RankLoader(ABC, Generic[T_batch]):
    """Gives the batches of one rank, and saves and restores its position.

    A state describes the position after the last batch handed out. `load_state_dict` may be called
    at any time, also between two batches; the next batch is then the saved one.
    """

    dataset: Run[T_batch]

    @abstractmethod
    def next_batch(self) -> T_batch:
        """Return the next batch of this rank. StopIteration at the end of an epoch, once."""

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
        """Return how many batches an iteration gives this rank at most; None if it has no end."""

    @property
    @abstractmethod
    def last_batch(self) -> int | None:
        """The number in the run of the last micro-batch handed out; None before the first."""

    @property
    @abstractmethod
    def stage(self) -> tuple[int, str] | None:
        """Number and name of the stage of the last batch handed out; None before the first."""

    @abstractmethod
    def stats(self) -> Stats:
        """Return what this rank has done so far. Reads no data, changes nothing."""

    @abstractmethod
    def starvation(self) -> str:
        """Return in words what held up the trainer in the last seconds. Costs nothing."""

    @abstractmethod
    def close(self) -> None:
        """Stop worker processes, as at the end of `with`. They start again with the next batch."""

    def __iter__(self) -> LoaderIterator[T_batch]:
        return LoaderIterator(self)

    def with_progress(
        self, *, total: int | None = None, console: Console | None = None
    ) -> LoaderIterator[T_batch]:
        """Iterate as `for batch in loader`, and show the progress on the terminal.

        total: batches of this rank in the iteration, where the loader cannot know (endless).
        console: a rich console; by default standard error. Where it is no terminal, progress is
        logged (INFO) once a minute instead.
        """

        def shown(batches: Iterator[T_batch]) -> Iterator[T_batch]:
            return with_progress(batches, self.starvation, total or self.num_batches(), console)

        return ShownIterator(self, iter(self), shown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank. Reads no data, changes nothing."""
        return self.run_state().to_dict()

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a saved position: of this rank, or of the whole run.

        on_mismatch: what to do if the tree was edited since: "error" lists what differs;
        "keep_matching" lets unchanged leaves continue and starts the others at 0; "restart" starts
        from the beginning. Raises StateMissingError, StateMismatchError or StateIncompleteError,
        and then nothing has moved.
        """
        saved = RunState.from_dict(state)
        config = self.dataset.worker_config
        own = saved.hosted == (config.rank, config.world_size)
        self._restore(saved if own else merge([saved]), on_mismatch)

    def save_state_rank(self) -> dict[str, Any]:
        """Return the position of this rank; as `state_dict`."""
        return self.state_dict()

    def restore_state_rank(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Move to a position this rank saved; as `load_state_dict`."""
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

    def _restore(self, saved: RunState, on_mismatch: OnMismatch) -> None:
        if on_mismatch not in ("error", "keep_matching", "restart"):
            raise SpecError(
                f"on_mismatch: must be 'error', 'keep_matching' or 'restart', got {on_mismatch!r}."
            )
        self.restore(saved, on_mismatch)


def merge_states(states: Sequence[Any]) -> dict[str, Any]:
    """Return the state of the whole run from the states of its ranks, in any order."""
    return merge([RunState.from_dict(state) for state in states]).to_dict()
