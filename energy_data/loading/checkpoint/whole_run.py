"""The state of a whole run, from those of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from energy_data.errors import StateIncompleteError, StateMismatchError
from energy_data.loading.checkpoint.run_state import SAVE_TOGETHER, RunState, listed


def merge(states: Sequence[RunState]) -> RunState:
    """Return the state of the whole run from those of its ranks, in any order.

    Raises StateIncompleteError if ranks are missing, StateMismatchError if they are of different
    runs or places.
    """
    first = states[0]
    ranks = first.hosted[1]
    for state in states:
        ours, theirs = (
            (s.seed, s.lanes, s.tree, s.hosted[1], s.gone.listed) for s in (first, state)
        )
        if ours != theirs:
            raise StateMismatchError(
                f"state: rank {state.hosted[0]}'s is of another run or number of ranks than rank "
                f"{first.hosted[0]}'s. Restore states that were saved together."
            )
    by_rank = {state.hosted[0]: state for state in states}
    if missing := sorted(set(range(ranks)) - by_rank.keys()):
        raise StateIncompleteError(
            f"state: it covers {len(by_rank)} of {ranks} ranks, missing {listed(missing)}. Pass "
            f"the states of all ranks that saved."
        )
    _check_together(by_rank)
    places = {lane: place for state in states for lane, place in state.places.items()}
    lanes = {lane: past for state in states for lane, past in state.gone.lanes.items()}
    gone = evolve(first.gone, lanes=lanes)
    nexts = {lane: number for state in states for lane, number in state.nexts.items()}
    clock = min(nexts.values())  # what all ranks have left out is no round
    return evolve(first, nexts=nexts, clock=clock, hosted=(0, 1), places=places, gone=gone)


def _check_together(by_rank: Mapping[int, RunState]) -> None:
    """Raise StateMismatchError unless the ranks saved at one place of the run.

    That is after the same number of batches, or where no micro-batch is missing between them.
    """
    one, first = next(iter(by_rank.items()))
    for other, state in by_rank.items():
        if (first.epoch, first.epoch_start) != (state.epoch, state.epoch_start):
            raise StateMismatchError(
                f"state: rank {one} is in iteration {first.epoch} from micro-batch "
                f"{first.epoch_start} on, and rank {other} in iteration {state.epoch} from "
                f"{state.epoch_start} on. Save before the first rank ends an iteration or after "
                f"all have, let them end together (`even_batches`), or restore each rank from its "
                f"own state (`restore_state_rank`)."
            )
        if first.step != state.step:
            raise StateMismatchError(
                f"state: rank {one} and rank {other} are in different steps, or at different "
                f"micro-batches of one. {SAVE_TOGETHER}"
            )
    ranks, batch = len(by_rank), min(state.batch for state in by_rank.values())
    if all(state.batch == batch + (rank - batch) % ranks for rank, state in by_rank.items()):
        return
    behind, ahead = (way(by_rank, key=lambda rank: by_rank[rank].clock) for way in (min, max))
    if more := (by_rank[ahead].clock - by_rank[behind].clock) // ranks:
        raise StateMismatchError(
            f"state: rank {ahead} had returned {more} batches more than rank {behind}. "
            f"{SAVE_TOGETHER}"
        )
