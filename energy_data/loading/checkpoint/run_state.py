"""The state of a run: plain data, small, versioned; read, checked and merged here.

    format, version   "energy_data", 1
    seed, lanes       of the run; fixed for its life
    tree              what decides the stream (see `SavedTree`), packed
    start             [node path, cursor field, value] of a lane that has not begun. With "" for a
                      path it is of the run: "clock", the first micro-batch of the round, modulo
                      lanes; "gone", ids and fingerprints of leaves that edits removed (and in
                      `places`, how often the lane has drawn each), and "back", of these what the
                      lane has drawn and not given: number of the leaf, epoch, sample number
    places            lane -> [the lane's next micro-batch, iterations finished, the first
                      micro-batch of this one, and of each field that is not as at the start: its
                      number n in `start`, its value; or -1 - n, its value packed]
    step              the place inside steps, see `step_state`; only of runs with docs_per_step

Each rank saves its lanes; all else is the same on all ranks. So the states of different ranks have
different keys, their union is the state of the run, and of it each rank of another number of ranks
needs its lanes: which is how `torch.distributed.checkpoint` saves and loads, key by key. A state
describes the place after the last batch handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.cursor import State, as_tuples, is_count, shorten
from energy_data.errors import (
    StateError,
    StateIncompleteError,
    StateMismatchError,
    StateMissingError,
)
from energy_data.loading.checkpoint.codec import pack_value, unpack_value
from energy_data.loading.checkpoint.history import RemovedLeaves

FORMAT = "energy_data"
VERSION = 1
_TOGETHER = "Save on all ranks after the same number of batches."
_OF_RUN = ""  # in place of the path of a node
MAX_LANES = 1 << 20  # far above any run; keeps a damaged number from taking all memory


@frozen(kw_only=True)
class RunState:
    """A state, taken apart."""

    seed: int
    lanes: int
    tree: str
    epoch: int
    begun: int
    batch: int  # the next of these lanes
    clock: int  # the first micro-batch of the round: the same on all ranks, which `batch` is not
    hosted: tuple[int, int]  # (r, R): the lanes = r (mod R)
    places: dict[int, State]  # lane -> the state of its tree
    start: State  # of a tree whose lane has not begun
    step: dict[str, Any] | None = None
    gone: RemovedLeaves = field(factory=RemovedLeaves)  # leaves that edits removed

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        inside = {} if self.step is None else {"step": self.step}
        own = {
            "clock": self.clock % self.lanes,
            **({"gone": self.gone.listed, "back": ()} if self.gone.prints else {}),
        }
        start = {**self.start, _OF_RUN: own}
        return {
            "format": FORMAT,
            "version": VERSION,
            "seed": self.seed,
            "lanes": self.lanes,
            "tree": self.tree,
            "start": [[path, name, _plain(value)] for path, name, value in _fields(start)],
            "places": {
                str(lane): [
                    self.batch + (lane - self.batch) % self.lanes,
                    self.epoch,
                    self.begun,
                    *_differences(
                        {**self.places[lane], _OF_RUN: {**own, **self.gone.of_lane(lane)}},
                        start,
                    ),
                ]
                for lane in sorted(self.places)
            },
            **inside,
        }

    @classmethod
    def from_dict(cls, state: Any) -> RunState:
        """Return a state read back. Raises one of the three StateErrors that says what it is."""
        _check_form(state)
        try:
            return cls._of_lanes(state)
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            raise StateError(
                f"state: it is damaged ({type(error).__name__}: {error}). Use another checkpoint."
            ) from error

    @classmethod
    def _of_lanes(cls, state: Mapping[str, Any]) -> RunState:
        lanes = _count(state["lanes"])
        rows = {int(lane): row for lane, row in state["places"].items()}
        if not 0 < lanes <= MAX_LANES or not all(0 <= lane < lanes for lane in rows):
            raise ValueError(f"lanes {sorted(rows)} of {lanes}")
        start: State = {}
        for path, name, value in state["start"]:
            start.setdefault(_text(path), {})[_text(name)] = as_tuples(value)
        places = {lane: _changed(start, row[3:]) for lane, row in rows.items()}
        run = start.pop(_OF_RUN, {})
        of_lanes = {lane: place.pop(_OF_RUN, {}) for lane, place in places.items()}
        passes = {(_count(epoch), _count(begun)) for _, epoch, begun, *_ in rows.values()}
        batches = [_count(row[0]) for row in rows.values()]
        hosted = _hosted(sorted(rows), lanes)
        if wrong := [lane for lane, row in rows.items() if row[0] % lanes != lane]:
            raise ValueError(f"lane {wrong[0]} of {lanes} has no micro-batch {rows[wrong[0]][0]}")
        clock = _clock(run, min(batches), hosted[1], lanes)
        if len(passes) > 1 or max(batches) - min(batches) >= lanes or clock < 0:
            raise StateMismatchError(f"state: its lanes are at different places. {_TOGETHER}")
        ((epoch, begun),) = passes
        if begun > min(batches):
            raise ValueError(f"a pass that began at {begun}, at micro-batch {min(batches)}")
        return cls(
            seed=_whole(state["seed"]),
            lanes=lanes,
            tree=_text(state["tree"]),
            epoch=epoch,
            begun=begun,
            batch=min(batches),
            clock=clock,
            hosted=hosted,
            places=places,
            start=start,
            step=dict(state["step"]) if "step" in state else None,
            gone=RemovedLeaves.read(run.get("gone", ()), of_lanes),
        )


def _hosted(present: Sequence[int], lanes: int) -> tuple[int, int]:
    """Return (r, R) so that these are the lanes = r (mod R)."""
    ranks = lanes // max(len(present), 1)
    first = present[0] if present else 0
    if list(present) != list(range(first, lanes, ranks)) or first >= ranks:
        raise StateIncompleteError(
            f"state: it has {len(present)} of {lanes} lanes ({_listed(present)}), which are not "
            f"those of one rank. Pass the states of all ranks that saved; if "
            f"torch.distributed.checkpoint loaded it, make the loader with lanes={lanes}, as it "
            f"loads what the loader has."
        )
    return first, ranks


def _clock(run: Mapping[str, Any], batch: int, ranks: int, lanes: int) -> int:
    """Return the first micro-batch of the round, given the smallest one of the lanes of a rank.

    The state holds it modulo `lanes`, and no lane is further ahead than that.
    """
    first = run["clock"]
    if type(first) is not int or not 0 <= first < lanes:
        raise ValueError(f"clock, the start of the round, of {lanes} lanes: {first!r}")
    # A single rank hosts all lanes, so the smallest micro-batch is the clock itself.
    return batch if ranks == 1 else batch - (batch - first) % lanes


def _count(value: Any) -> int:
    if not is_count(value):
        raise ValueError(f"a number from 0 to 2**48 is expected, got {shorten(value)}")
    return int(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"a whole number is expected, got {shorten(value)}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is expected, got {shorten(value)}")
    return value


def _fields(place: State) -> Iterator[tuple[str, str, Any]]:
    for path, cursor in place.items():
        for name, value in cursor.items():
            yield path, name, value


def _differences(place: State, start: State) -> Iterator[Any]:
    """Yield the number and the value of each field of `place` that is not as in `start`."""
    for number, (path, name, before) in enumerate(_fields(start)):
        value = place[path][name]
        if value == before:
            continue
        packed = pack_value(value)
        yield from (number, _plain(value)) if packed is None else (-1 - number, packed)


def _changed(start: State, differences: Sequence[Any]) -> State:
    """Return the place that differs so from `start`."""
    place: State = {path: dict(cursor) for path, cursor in start.items()}
    names = [(path, name) for path, name, _ in _fields(start)]
    for number, value in zip(differences[::2], differences[1::2], strict=True):
        if number < 0:
            path, name = names[-1 - number]
            place[path][name] = unpack_value(value)
        else:
            path, name = names[number]
            place[path][name] = as_tuples(value)
    return place


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
    if state.get("version") != VERSION:
        raise StateMismatchError(
            f"state: it has format version {state.get('version')}, this energy_data reads "
            f"version {VERSION}. Load it with the version that saved it."
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
            (s.seed, s.lanes, s.tree, s.epoch, s.begun, s.hosted[1], s.step, s.gone.listed)
            for s in (first, state)
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
    gone = RemovedLeaves.merged(state.gone for state in states)
    return evolve(first, batch=batch, clock=batch, hosted=(0, 1), places=places, gone=gone)


def _common_batch(by_rank: Mapping[int, RunState]) -> int:
    """Return the first micro-batch that no rank has had; all before it were had."""
    ranks = len(by_rank)
    batch = min(state.batch for state in by_rank.values())
    for rank, state in by_rank.items():
        expected = batch + (rank - batch) % ranks
        if state.batch != expected:
            raise StateMismatchError(
                f"state: rank {rank} is at micro-batch {state.batch}, {expected} would fit the "
                f"others. {_TOGETHER}"
            )
    return batch


def _listed(ranks: Sequence[int], most: int = 8) -> str:
    text = ", ".join(str(rank) for rank in ranks[:most])
    return text if len(ranks) <= most else f"{text} and {len(ranks) - most} more"


def _plain(value: Any) -> Any:
    return [*map(_plain, value)] if isinstance(value, tuple) else value
