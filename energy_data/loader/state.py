"""The state of a run: plain data, small, versioned; read, checked and merged here.

    format, version   "energy_data", 2; 3 if it has a `step`
    seed, lanes       of the run; fixed for its life
    tree              what decides the stream (see `TreeRecord`), packed
    epoch             iterations finished
    begun, batch      micro-batch numbers: the epoch's first, and the next of this rank
    hosted            [r, R]: the lanes = r (mod R) are in here; a global state is [0, 1]
    places            node path -> cursor field -> its values, lane by lane
    step              the place inside steps, see `step_state`; only of runs with docs_per_step
    forgotten         leaf id -> draws of each lane, of leaves no longer in the tree; may be absent

A state of rank r of R is what this rank saves; the states of all ranks, merged, are the global
state. A state describes the place after the last batch handed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from energy_data.errors import (
    StateError,
    StateIncompleteError,
    StateMismatchError,
    StateMissingError,
)
from energy_data.loader.blob import pack_marks, pack_table, unpack_marks, unpack_table
from energy_data.node import State

FORMAT = "energy_data"
VERSION, STEPS_VERSION = 2, 3  # 3 has a `step`, beside which a reader of 2 would go on
READS = (1, 2, 3)  # 1 had no references to what is pending; else it is as 2
MAX_LANES = 1 << 20  # far above any run; keeps a damaged number from taking all memory


@frozen(kw_only=True)
class RunState:
    """A state, taken apart."""

    seed: int
    lanes: int
    tree: str
    epoch: int
    begun: int
    batch: int
    hosted: tuple[int, int]
    places: dict[int, State]  # lane -> the state of its tree
    step: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        inside = {} if self.step is None else {"step": self.step}
        return {
            "format": FORMAT,
            "version": STEPS_VERSION if inside else VERSION,
            "seed": self.seed,
            "lanes": self.lanes,
            "tree": self.tree,
            "epoch": self.epoch,
            "begun": self.begun,
            "batch": self.batch,
            "hosted": list(self.hosted),
            "places": _columns([self.places[lane] for lane in sorted(self.places)]),
            **inside,
        }

    @classmethod
    def from_dict(cls, state: Any) -> RunState:
        """Return a state read back. Raises one of the three StateErrors that says what it is."""
        _check_form(state)
        try:
            rank, ranks = state["hosted"]
            lanes = range(int(rank), int(state["lanes"]), int(ranks))
            if not 0 <= int(rank) < int(ranks) <= int(state["lanes"]) <= MAX_LANES:
                raise ValueError(f"rank {rank} of {ranks} with {state['lanes']} lanes")
            rows = _rows(state["places"], len(lanes))
            return cls(
                **{name: int(state[name]) for name in ("seed", "lanes", "epoch", "begun", "batch")},
                tree=str(state["tree"]),
                hosted=(int(rank), int(ranks)),
                places=dict(zip(lanes, rows, strict=True)),
                step=dict(state["step"]) if state["version"] == STEPS_VERSION else None,
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise StateError(
                f"state: it is damaged ({type(error).__name__}: {error}). Use another checkpoint."
            ) from error


def _check_form(state: Any) -> None:
    if not state:
        raise StateMissingError(
            f"state: there is none, got {state!r}. Start without restoring, or look at "
            f"what was saved."
        )
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise StateMismatchError(
            f"state: it is not a state of energy_data, got a {type(state).__name__}. Pass what "
            f"`state_dict()` or `save_state_rank()` returned."
        )
    if state.get("version") not in READS:
        raise StateMismatchError(
            f"state: it has format version {state.get('version')}, this energy_data reads "
            f"{READS[0]} to {READS[-1]}. Load it with the version that saved it."
        )


def merge(states: Sequence[RunState]) -> RunState:
    """Return the state of the whole run from those of its ranks, in any order.

    Raises StateIncompleteError if ranks are missing, StateMismatchError if they are of different
    runs or places.
    """
    if len(states) == 1 and states[0].hosted == (0, 1):
        return states[0]
    first = states[0]
    ranks = first.hosted[1]
    for state in states:
        ours, theirs = (
            (s.seed, s.lanes, s.tree, s.epoch, s.begun, s.hosted[1], s.step) for s in (first, state)
        )
        if ours != theirs:
            raise StateMismatchError(
                f"state: rank {state.hosted[0]}'s is of another run, epoch, step or number of "
                f"ranks than rank {first.hosted[0]}'s. Restore states that were saved together."
            )
    by_rank = {state.hosted[0]: state for state in states}
    if missing := sorted(set(range(ranks)) - by_rank.keys()):
        raise StateIncompleteError(
            f"state: it covers {len(by_rank)} of {ranks} ranks, missing {_listed(missing)}. Pass "
            f"the states of all ranks that saved."
        )
    batch = _common_batch(by_rank)
    places = {lane: place for state in states for lane, place in state.places.items()}
    return evolve(first, batch=batch, hosted=(0, 1), places=places)


def _common_batch(by_rank: Mapping[int, RunState]) -> int:
    """Return the first micro-batch that no rank has had; all before it were had."""
    ranks = len(by_rank)
    batch = min(state.batch for state in by_rank.values())
    for rank, state in by_rank.items():
        expected = batch + (rank - batch) % ranks
        if state.batch != expected:
            raise StateMismatchError(
                f"state: rank {rank} is at micro-batch {state.batch}, {expected} would fit the "
                f"others. Save on all ranks after the same number of batches."
            )
    return batch


def _listed(ranks: Sequence[int], most: int = 8) -> str:
    text = ", ".join(str(rank) for rank in ranks[:most])
    return text if len(ranks) <= most else f"{text} and {len(ranks) - most} more"


def _columns(places: Sequence[State]) -> dict[str, dict[str, Any]]:
    """Return the places of several lanes, field by field; tables of integers are packed."""
    columns: dict[str, dict[str, Any]] = {}
    for path, cursor in places[0].items():
        fields = {name: [place[path][name] for place in places] for name in cursor}
        columns[path] = {name: _column(values) for name, values in fields.items()}
    return columns


def _column(values: list[Any]) -> Any:
    if any(values) and all(_are_integers(value) for value in values):
        if len(set(map(len, values))) == 1:
            return pack_table(values)
    elif any(values) and all(_are_marks(value) for value in values):
        return pack_marks(values)
    if all(value == values[0] for value in values):
        return {"all": _plain(values[0])}
    return [_plain(value) for value in values]


def _are_integers(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(v) is int for v in value)


def _are_marks(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(mark, tuple) for mark in value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _rows(columns: Mapping[str, Mapping[str, Any]], lanes: int) -> list[State]:
    rows: list[State] = [{path: {} for path in columns} for _ in range(lanes)]
    for path, fields in columns.items():
        for name, column in fields.items():
            for row, value in zip(rows, _values(column, lanes), strict=True):
                row[path][name] = tuple(value) if isinstance(value, list) else value
    return rows


def _values(column: Any, lanes: int) -> Sequence[Any]:
    if isinstance(column, Mapping):
        if "all" in column:
            return [column["all"]] * lanes
        return unpack_marks(column) if "marks" in column else unpack_table(dict(column))
    return list(column)
