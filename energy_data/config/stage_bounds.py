"""The bounds of stages: sorted, checked, and inferred where they are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

from attrs import frozen

from energy_data.config.diagnostics import Diagnostics, Place
from energy_data.nodes.stage import DEFAULT


@frozen(kw_only=True)
class WrittenBounds:
    """The bounds of one stage, as written."""

    name: str
    start: Fraction | None
    end: Fraction | None
    length: Fraction | None
    advances: bool  # it ends with its data, so the next stage needs no `start`
    place: Place
    places: Mapping[str, Place]
    where: str


@frozen(kw_only=True)
class StageBounds:
    """The bounds of one stage, in `unit`."""

    name: str
    child: int  # index among the children of the node
    start: Fraction
    end: Fraction | None  # None: none but that of its data


def bounds_of(asked: Sequence[WrittenBounds], *, with_default: bool) -> list[StageBounds]:
    """Return the bounds in order. `asked` must have passed `check_bounds`."""
    begun = sorted(_begun(asked), key=lambda pair: pair[0])
    found = [
        StageBounds(
            name=asked[number].name,
            child=number + with_default,
            start=start,
            end=_end(asked[number], start, _following(begun, at)),
        )
        for at, (start, number) in enumerate(begun)
    ]
    if with_default:
        found.insert(0, StageBounds(name=DEFAULT, child=0, start=Fraction(0), end=begun[0][0]))
    return found


def _begun(asked: Sequence[WrittenBounds]) -> list[tuple[Fraction, int]]:
    """Return (start, number) of the stages whose start is known."""
    begun: list[tuple[Fraction, int]] = []
    before: Fraction | None = Fraction(0)
    for number, stage in enumerate(asked):
        start = before if stage.start is None else stage.start
        if start is not None:
            begun.append((start, number))
        before = None if start is None else _end(stage, start, None)
        if before is None and stage.advances:
            before = start  # and then where its data end
    return begun


def _following(begun: Sequence[tuple[Fraction, int]], at: int) -> Fraction | None:
    """Return where the stage after number `at` begins, if that is known."""
    if at + 1 == len(begun) or begun[at + 1][0] == begun[at][0]:
        return None
    return begun[at + 1][0]


def _end(asked: WrittenBounds, start: Fraction, following: Fraction | None) -> Fraction | None:
    if asked.length is not None:
        return start + asked.length
    return following if asked.end is None else asked.end


def check_bounds(
    asked: Sequence[WrittenBounds],
    faults: Diagnostics,
    *,
    with_default: bool,
    total: Fraction | None,
    unit: str,
    at: tuple[Place, str],
) -> None:
    """Report every problem of the names and the bounds of stages."""
    check = _Check(faults, unit)
    check.names(asked, with_default=with_default)
    begun = check.begun(asked)
    begun.sort(key=lambda pair: pair[0])
    if not begun:
        return
    first, number = begun[0]
    if with_default and first == 0:
        problem = "`default` would never run, the first stage begins at 0. Remove it."
        faults.report(at[0], f"{at[1]}.default", problem)
    if first > 0 and not with_default:
        check.note(
            asked[number],
            "start",
            f"no stage covers {unit} 0 to {_text(first)}. Begin at 0, or add a `default` to "
            "`staged`.",
        )
    for (start, one), (following, other) in pairwise(begun):
        check.neighbours(asked[one], start, asked[other], following)
    start, last = begun[-1]
    if total is not None:
        check.last(asked[last], _end(asked[last], start, None), total)
        for start, number in begun:
            if start >= total:
                problem = f"it would never run, the run ends at {_text(total)} {unit}. Remove it."
                check.note(asked[number], "start", problem)


class _Check:
    def __init__(self, faults: Diagnostics, unit: str) -> None:
        self.faults, self.unit = faults, unit

    def note(self, asked: WrittenBounds, key: str, problem: str) -> None:
        place = asked.places.get(key, asked.place)
        where = f"{asked.where}.{key}" if key in asked.places else asked.where
        self.faults.report(place, where, f"stage {asked.name!r}: {problem}")

    def names(self, asked: Sequence[WrittenBounds], *, with_default: bool) -> None:
        known: dict[str, WrittenBounds] = {}
        for stage in asked:
            if with_default and stage.name == DEFAULT:
                problem = "the name is that of `default`. Choose another."
                self.note(stage, "name", problem)
            first = known.setdefault(stage.name, stage)
            if first is not stage:
                place = first.places.get("name", first.place)
                self.note(stage, "name", f"the name is taken at {place}. Choose another.")

    def begun(self, asked: Sequence[WrittenBounds]) -> list[tuple[Fraction, int]]:
        """Return (start, number) of each stage, and report invalid bounds."""
        begun = _begun(asked)
        starts = {number: start for start, number in begun}
        for number, stage in enumerate(asked):
            if stage.end is not None and stage.length is not None:
                self.note(stage, "for", "both `end` and `for` are given. Keep one.")
            start = starts.get(number)
            if start is None:
                problem = "its beginning is not known. Give its `start`, or the `end` before it."
                self.note(stage, "name", problem)
                continue
            end = _end(stage, start, None)
            if end is not None and end <= start:
                key = "for" if stage.end is None else "end"
                problem = (
                    f"it ends at {_text(end)}, but begins at {_text(start)}. Let it end later, or "
                    "remove it."
                )
                self.note(stage, key, problem)
        return begun

    def neighbours(
        self, one: WrittenBounds, start: Fraction, other: WrittenBounds, following: Fraction
    ) -> None:
        """Report a gap or an overlap of two stages."""
        end = _end(one, start, following)
        begins = f"it begins at {_text(following)}"
        if one.advances and one.end is None and one.length is None and other.start is None:
            return
        if start == following:
            problem = f"{begins}, as stage {one.name!r} does. One of them would never run."
        elif end is not None and end < following:
            problem = (
                f"{begins}, but stage {one.name!r} ends at {_text(end)}: no stage covers "
                f"{self.unit} {_text(end)} to {_text(following)}. Close the gap."
            )
        elif end is not None and end > following:
            problem = (
                f"{begins}, but stage {one.name!r} ends at {_text(end)}: they overlap. Let one end "
                "where the other begins."
            )
        else:
            return
        self.note(other, "start", problem)

    def last(self, asked: WrittenBounds, end: Fraction | None, total: Fraction) -> None:
        if end is not None and end < total:
            problem = (
                f"it is the last and ends at {_text(end)}, but the run at {_text(total)}. Remove "
                "its end."
            )
            self.note(asked, "for" if asked.end is None else "end", problem)


def _text(amount: Fraction) -> str:
    return f"{int(amount):,}" if amount.denominator == 1 else f"{float(amount):g}"
