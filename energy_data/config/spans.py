"""The bounds of stages as they are written: put in order, checked, inferred where left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from attrs import frozen

from energy_data.config.diagnostics import Diagnostics, Place
from energy_data.nodes.stage import DEFAULT


@frozen(kw_only=True)
class Asked:
    """What is written of one stage."""

    name: str
    start: Fraction | None
    end: Fraction | None
    length: Fraction | None
    advances: bool  # it ends with its data, so the next may follow it without more being said
    place: Place
    places: Mapping[str, Place]
    where: str


@frozen(kw_only=True)
class Span:
    """A stage in its place."""

    name: str
    child: int  # its number among the children of the node
    start: Fraction
    end: Fraction | None  # None: it has none but that of its data


def spans(asked: Sequence[Asked], *, with_default: bool) -> list[Span]:
    """Return the stages in their order. What is asked must have passed `check_spans`."""
    begun = sorted(_begun(asked), key=lambda pair: pair[0])
    found = [
        Span(
            name=asked[number].name,
            child=number + with_default,
            start=start,
            end=_end(asked[number], start, _following(begun, at)),
        )
        for at, (start, number) in enumerate(begun)
    ]
    if with_default:
        found.insert(0, Span(name=DEFAULT, child=0, start=Fraction(0), end=begun[0][0]))
    return found


def _begun(asked: Sequence[Asked]) -> list[tuple[Fraction, int]]:
    """Return (start, number) of the stages whose start can be told."""
    begun: list[tuple[Fraction, int]] = []
    before: Fraction | None = Fraction(0)
    for number, stage in enumerate(asked):
        start = before if stage.start is None else stage.start
        if start is not None:
            begun.append((start, number))
        before = None if start is None else _end(stage, start, None)
        if before is None and stage.advances:
            before = start  # and then wherever it ends
    return begun


def _following(begun: Sequence[tuple[Fraction, int]], at: int) -> Fraction | None:
    """Return where the stage after number `at` begins, if that is said."""
    if at + 1 == len(begun) or begun[at + 1][0] == begun[at][0]:
        return None
    return begun[at + 1][0]


def _end(asked: Asked, start: Fraction, following: Fraction | None) -> Fraction | None:
    if asked.length is not None:
        return start + asked.length
    return following if asked.end is None else asked.end


def check_spans(
    asked: Sequence[Asked],
    faults: Diagnostics,
    *,
    with_default: bool,
    total: Fraction | None,
    unit: str,
    at: tuple[Place, str],
) -> None:
    """Note everything that is wrong with the names and the bounds of some stages."""
    check = _Check(faults, unit)
    check.names(asked, with_default=with_default)
    begun = check.begun(asked)
    begun.sort(key=lambda pair: pair[0])
    if not begun:
        return
    first, number = begun[0]
    if with_default and first == 0:
        problem = "`default` would never run, the first stage begins at 0. Take it out."
        faults.report(at[0], f"{at[1]}.default", problem)
    if first > 0 and not with_default:
        check.note(
            asked[number],
            "start",
            f"nothing is said of {unit} 0 to {_text(first)}. Begin at 0, or add a `default` to "
            "`staged` that fills the gap.",
        )
    for (start, one), (following, other) in pairwise(begun):
        check.neighbours(asked[one], start, asked[other], following)
    start, last = begun[-1]
    if total is not None:
        check.last(asked[last], _end(asked[last], start, None), total)
        for start, number in begun:
            if start >= total:
                problem = f"it would never run, {unit} end at {_text(total)}. Take it out."
                check.note(asked[number], "start", problem)


class _Check:
    def __init__(self, faults: Diagnostics, unit: str) -> None:
        self.faults, self.unit = faults, unit

    def note(self, asked: Asked, key: str, problem: str) -> None:
        place = asked.places.get(key, asked.place)
        where = f"{asked.where}.{key}" if key in asked.places else asked.where
        self.faults.report(place, where, f"stage {asked.name!r}: {problem}")

    def names(self, asked: Sequence[Asked], *, with_default: bool) -> None:
        known: dict[str, Asked] = {}
        for stage in asked:
            if with_default and stage.name == DEFAULT:
                problem = "the name is taken by what fills the gap at the front. Choose another."
                self.note(stage, "name", problem)
            first = known.setdefault(stage.name, stage)
            if first is not stage:
                place = first.places.get("name", first.place)
                self.note(stage, "name", f"the name is taken, found it at {place}. Choose another.")

    def begun(self, asked: Sequence[Asked]) -> list[tuple[Fraction, int]]:
        """Return (start, number) of each stage, and note those whose bounds cannot be."""
        begun = _begun(asked)
        starts = {number: start for start, number in begun}
        for number, stage in enumerate(asked):
            if stage.end is not None and stage.length is not None:
                self.note(stage, "for", "both `end` and `for` are given. Keep one.")
            start = starts.get(number)
            if start is None:
                problem = "where it begins cannot be told: give its `start`, or the `end` before."
                self.note(stage, "name", problem)
                continue
            end = _end(stage, start, None)
            if end is not None and end <= start:
                key = "for" if stage.end is None else "end"
                problem = (
                    f"it ends at {_text(end)}, before it has begun at {_text(start)}: it would "
                    "never run. Let it end later, or take it out."
                )
                self.note(stage, key, problem)
        return begun

    def neighbours(self, one: Asked, start: Fraction, other: Asked, following: Fraction) -> None:
        """Note it if there is a gap between two stages, or they overlap."""
        end = _end(one, start, following)
        said = f"it begins at {_text(following)}"
        if one.advances and one.end is None and one.length is None and other.start is None:
            return
        if start == following:
            problem = f"{said}, as stage {one.name!r} does. One of them would never run."
        elif end is not None and end < following:
            problem = (
                f"{said}, but stage {one.name!r} ends at {_text(end)}: nothing is said of "
                f"{self.unit} {_text(end)} to {_text(following)}. Close the gap."
            )
        elif end is not None and end > following:
            problem = (
                f"{said}, but stage {one.name!r} lasts until {_text(end)}: they overlap. Let one "
                "end where the other begins."
            )
        else:
            return
        self.note(other, "start", problem)

    def last(self, asked: Asked, end: Fraction | None, total: Fraction) -> None:
        if end is not None and end < total:
            problem = (
                f"it is the last and ends at {_text(end)}, the run at {_text(total)}. Leave its "
                "end out."
            )
            self.note(asked, "for" if asked.end is None else "end", problem)


def _text(amount: Fraction) -> str:
    return f"{int(amount):,}" if amount.denominator == 1 else f"{float(amount):g}"
