"""The state of a run: plain data, small, versioned; read and checked here.

    format, version   "energy_data", 3
    seed, lanes       of the run; fixed for its life
    tree              what decides the stream (see `SavedTree`), packed
    start             [node path, cursor field, value] of a lane that has not started. An empty path
                      stands for the run: "clock", the first micro-batch of the round if none had
                      been left out; "gone", ids, fingerprints and grains of leaves that edits
                      removed (and in `places`, how often the lane has drawn each), and "back", what
                      the lane has drawn of these and not returned: number of the leaf, epoch,
                      sample number
    places            lane -> [the lane's next micro-batch, iterations finished, the first
                      micro-batch of this one, of each field that is not as in `start` its number
                      in `start` and its value, and a checksum of this row and all other keys]
    step              the position inside steps, see `StepPosition`; only of runs with docs_per_step

Values that are tuples are packed as text (see `pack`). Each rank saves its lanes; all else is the
same on all ranks. So the states of different ranks have different keys, their union is the state of
the run, and each rank of another number of ranks needs its lanes of it. That is how
`torch.distributed.checkpoint` saves and loads, key by key.
"""

from __future__ import annotations

import bz2
import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from attrs import field, frozen

from energy_data.core.cursor import State, as_tuples, is_count, shorten
from energy_data.errors import (
    StateError,
    StateIncompleteError,
    StateMismatchError,
    StateMissingError,
)
from energy_data.nodes.leaf_history import LeafHistory, are_references
from energy_data.order.grains import grain_size

T = TypeVar("T")

FORMAT = "energy_data"
VERSION = 4
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
SAVE_TOGETHER = "Save on all ranks after the same number of batches."
_OF_RUN = ""  # in place of the path of a node
MAX_BYTES = 1 << 26  # of a packed value, which is small; more is a bomb
MAX_INLINE = 64  # characters up to which a value is not compressed
MAX_LANES = 1 << 20  # far above any run; keeps a damaged number from taking all memory


@frozen
class RemovedLeaves:
    """What each lane has done to leaves that an edit removed, in case another adds them again."""

    prints: Mapping[str, str] = field(factory=dict)  # id -> first digits of the fingerprint
    grains: Mapping[str, Fraction] = field(factory=dict)  # id -> size of its grains
    lanes: Mapping[int, LeafHistory] = field(factory=dict)

    def past(self, lane: int) -> LeafHistory:
        """Return what a lane has done to each."""
        return self.lanes.get(lane, LeafHistory({}))

    def past_of(self, lane: int, prints: Mapping[str, str]) -> LeafHistory:
        """Return what a lane has done to those leaves that have these fingerprints."""
        return self.past(lane).of_leaves(dict(self.prints.items() & prints.items()))

    @property
    def listed(self) -> tuple[str, ...]:
        """The ids, each with its fingerprint and its grains, in one row."""
        rows = ((name, own, str(self.grains[name])) for name, own in sorted(self.prints.items()))
        return tuple(text for row in rows for text in row)

    def of_lane(self, lane: int) -> dict[str, Any]:
        """Return what a state has of a lane."""
        names, past = sorted(self.prints), self.past(lane)
        number = {name: place for place, name in enumerate(names)}
        gone = tuple(past.drawn.get(name, 0) for name in names)
        return {"gone": gone, "back": past.of_leaves(number).refs(number)}

    @classmethod
    def read(cls, listed: Any, of_lanes: Mapping[int, Mapping[str, Any]]) -> RemovedLeaves:
        """Return what `listed` and `of_lane` of each lane returned. ValueError if damaged."""
        if not isinstance(listed, tuple) or not all(isinstance(text, str) for text in listed):
            raise ValueError(f"leaves that are gone: {listed!r}")
        prints = dict(zip(listed[::3], listed[1::3], strict=True))
        grains = dict(zip(listed[::3], map(_grain, listed[2::3]), strict=True))
        lanes = {lane: _history(list(prints), of) for lane, of in of_lanes.items()}
        return cls(prints, grains, lanes)


def _grain(text: str) -> Fraction:
    draws, _, turns = text.partition("/")
    size = Fraction(int(draws), int(turns or 1))
    if size != grain_size(size):
        raise ValueError(f"grains of a leaf that is gone: {text!r}")
    return size


def _history(names: list[str], of_lane: Mapping[str, Any]) -> LeafHistory:
    counts, back = of_lane["gone"], of_lane["back"]
    if not isinstance(counts, tuple) or len(counts) != len(names) or not all(map(is_count, counts)):
        raise ValueError(f"draws of {len(names)} leaves that are gone: {counts!r}")
    if not are_references(back, len(names)):
        raise ValueError(f"samples of {len(names)} leaves that are gone: {back!r}")
    refs = ((names[place], epoch, number) for place, epoch, number in back)
    return LeafHistory(dict(zip(names, counts, strict=True)), refs)


@frozen(kw_only=True)
class RunState:
    """A state, read and checked."""

    seed: int
    lanes: int
    tree: str
    epoch: int
    epoch_start: int
    nexts: Mapping[int, int]  # lane -> its next micro-batch
    # The first micro-batch of the round if none had been left out: the same on all ranks.
    clock: int
    hosted: tuple[int, int]  # (r, R): the lanes = r (mod R)
    places: dict[int, State]  # lane -> the state of its tree
    start: State  # of a lane that has drawn nothing
    step: dict[str, Any] | None = None
    gone: RemovedLeaves = field(factory=RemovedLeaves)  # leaves that edits removed

    @property
    def batch(self) -> int:
        """The next micro-batch of these lanes."""
        return min(self.nexts.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        own: dict[str, Any] = {"clock": self.clock}
        if self.gone.prints:
            own |= {"gone": self.gone.listed, "back": ()}
        start, places = {**self.start, _OF_RUN: own}, self.places
        if self.gone.prints:
            places = {n: {**at, _OF_RUN: self.gone.of_lane(n)} for n, at in places.items()}
        state = {
            "format": FORMAT,
            "version": VERSION,
            "seed": self.seed,
            "lanes": self.lanes,
            "tree": self.tree,
            "start": [[path, name, _plain(value)] for path, name, value in _fields(start)],
            **({} if self.step is None else {"step": self.step}),
        }
        rows = {
            str(lane): [self.nexts[lane], self.epoch, self.epoch_start, *_differences(at, start)]
            for lane, at in sorted(places.items())
        }
        sums = checksums(state, rows)
        return {**state, "places": {lane: [*row, sums[lane]] for lane, row in rows.items()}}

    @classmethod
    def from_dict(cls, state: Any) -> RunState:
        """Return a state read back. Raises one of the three StateErrors that says what it is."""
        _check_form(state)
        try:
            return cls._of_lanes(state)
        except _DAMAGE as error:
            raise StateError(
                f"state: it is damaged ({type(error).__name__}: {error}). Use another checkpoint."
            ) from error

    @classmethod
    def _of_lanes(cls, state: Mapping[str, Any]) -> RunState:
        lanes = _count(state["lanes"])
        rows = {int(lane): row[:-1] for lane, row in state["places"].items()}
        if not 0 < lanes <= MAX_LANES or not all(0 <= lane < lanes for lane in rows):
            raise ValueError(f"lanes {sorted(rows)} of {lanes}")
        start: State = {}
        for path, name, value in state["start"]:
            start.setdefault(_typed(str, path), {})[_typed(str, name)] = _value(value)
        places = {lane: _changed(start, row[3:]) for lane, row in rows.items()}
        run = start.pop(_OF_RUN, {})
        of_lanes = {lane: place.pop(_OF_RUN, {}) for lane, place in places.items()}
        passes = {
            (_count(epoch), _count(epoch_start)) for _, epoch, epoch_start, *_ in rows.values()
        }
        nexts = {lane: _count(row[0]) for lane, row in rows.items()}
        hosted = _hosted(sorted(rows), lanes)
        if wrong := [lane for lane, row in rows.items() if row[0] % lanes != lane]:
            raise ValueError(f"lane {wrong[0]} of {lanes} has no micro-batch {rows[wrong[0]][0]}")
        _check_sums(state)
        if len(passes) > 1:
            raise StateMismatchError(f"state: its lanes are in different passes. {SAVE_TOGETHER}")
        ((epoch, epoch_start),) = passes
        return cls(
            seed=_typed(int, state["seed"]),
            lanes=lanes,
            tree=_typed(str, state["tree"]),
            epoch=epoch,
            epoch_start=epoch_start,
            nexts=nexts,
            clock=_count(run["clock"]),
            hosted=hosted,
            places=places,
            start=start,
            step=dict(state["step"]) if "step" in state else None,
            gone=RemovedLeaves.read(run["gone"], of_lanes) if "gone" in run else RemovedLeaves(),
        )


def checksums(state: Mapping[str, Any], rows: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """Return a checksum of each row together with what all ranks have in common.

    state: other keys than "places". 16 bits: they detect accidents, and a state must stay small.
    """
    start = zlib.crc32(json.dumps(state, sort_keys=True).encode())
    return {
        lane: zlib.crc32(json.dumps([lane, *row]).encode(), start) for lane, row in rows.items()
    }


def _check_sums(state: Mapping[str, Any]) -> None:
    rows = {lane: row[:-1] for lane, row in state["places"].items()}
    common = {name: value for name, value in state.items() if name != "places"}
    for lane, found in checksums(common, rows).items():
        if state["places"][lane][-1] != found:
            raise StateError(
                f"state: it is damaged: the checksum of lane {lane} does not fit. A value was "
                f"changed, or ranks saved after different numbers of batches. Use another "
                f"checkpoint."
            )


def _hosted(present: Sequence[int], lanes: int) -> tuple[int, int]:
    """Return (r, R) so that these are the lanes = r (mod R)."""
    ranks = lanes // max(len(present), 1)
    first = present[0] if present else 0
    if list(present) != list(range(first, lanes, ranks)) or first >= ranks:
        raise StateIncompleteError(
            f"state: it has {len(present)} of {lanes} lanes ({listed(present)}), which are not "
            f"those of one rank. Pass the states of all ranks that saved. If `dcp.load` of "
            f"torch.distributed.checkpoint loaded it, which loads the lanes that the loader has, "
            f"restore from `read_state(folder)` instead, or make the loader with lanes={lanes}."
        )
    return first, ranks


def _count(value: Any) -> int:
    if not is_count(value):
        raise ValueError(f"a number from 0 to 2**48 is expected, got {shorten(value)}")
    return int(value)


def _typed(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError(f"a value of type {kind.__name__} is expected, got {shorten(value)}")
    return value


def _fields(place: State) -> Iterator[tuple[str, str, Any]]:
    for path, cursor in place.items():
        for name, value in cursor.items():
            yield path, name, value


def _differences(place: State, start: State) -> Iterator[Any]:
    """Yield the number and the value of each field of `place` that is not as in `start`."""
    for number, (path, name, before) in enumerate(_fields(start)):
        value = place.get(path, {}).get(name, before)
        if value != before:
            yield from (number, _plain(value))


def _changed(start: State, differences: Sequence[Any]) -> State:
    """Return the place that differs so from `start`."""
    place: State = {path: dict(cursor) for path, cursor in start.items()}
    names = [(path, name) for path, name, _ in _fields(start)]
    for number, value in zip(differences[::2], differences[1::2], strict=True):
        path, name = names[_count(number)]
        place[path][name] = _value(value)
    return place


def _check_form(state: Any) -> None:
    if not state:
        raise StateMissingError(
            f"state: there is none, got {state!r}. Start without restoring, or look at "
            f"what was saved."
        )
    kinds = {type(one) for one in (state if isinstance(state, list | tuple) else [state])}
    if energons := [kind for kind in kinds if kind.__module__.startswith("megatron.energon")]:
        raise StateMismatchError(f"state: {of_energon(energons[0].__name__)}")
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


def of_energon(name: str) -> str:
    """Return why a state of Energon cannot be restored. name: its class."""
    return (
        f"it is a {name} of Energon: the contents of shuffle buffers and the positions of shuffled "
        f"workers. This package has another order, in which no place has the same samples behind "
        f"it, so nothing of it can be kept. Finish the epoch with Energon, or start the data "
        f"again: load the model alone, and pass another seed, so that the samples come in an order "
        f"of their own."
    )


def listed(things: Sequence[Any], most: int = 8) -> str:
    """Return some things for a message, the first ones if there are many."""
    text = ", ".join(map(str, things[:most]))
    return text if len(things) <= most else f"{text} and {len(things) - most} more"


def _plain(value: Any) -> Any:
    return pack(value) if isinstance(value, tuple) else value


def _value(plain: Any) -> Any:
    return as_tuples(unpack(plain)) if isinstance(plain, str) else plain


def pack(value: Any) -> str:
    """Return plain data as text: JSON, compressed if it is long. Equal data give equal text.

    A reference to a sample of a large dataset takes about 8 bytes.
    """
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return text if len(text) <= MAX_INLINE else b85encode(bz2.compress(text.encode())).decode()


def unpack(text: str) -> Any:
    """Return what `pack` packed, with lists for tuples. StateError if it is damaged."""
    try:
        if text.startswith("["):  # not a character of base 85
            return json.loads(text)
        engine, packed = bz2.BZ2Decompressor(), b85decode(text)
        data = engine.decompress(packed, MAX_BYTES)
        # A single character more is no byte more.
        if not engine.eof or engine.unused_data or len(text) != len(b85encode(packed)):
            raise ValueError("it is cut off, too long, or larger than any state")
        return json.loads(data)
    except (OSError, RecursionError, ValueError) as error:
        raise StateError(
            f"state: a packed part is damaged ({error}). Use another checkpoint."
        ) from error
