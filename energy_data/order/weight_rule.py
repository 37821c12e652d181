"""Weights as they are written in YAML: a number, or a schedule over the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

from energy_data.core.recipe import InvalidValueError, Rule, ValueProblem
from energy_data.core.rules import MAX_COUNT, MAX_WEIGHT, NUMBER, SUFFIXES, did_you_mean, listed
from energy_data.order.schedule import CurveKind, Schedule, Unit

CURVES = get_args(CurveKind)
UNITS = get_args(Unit)
_PLACE = re.compile(r"(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?([KMBT]?)")
_EXAMPLE = "Write it like `weight: {linear: {0: 1, 10K: 3}}`."


def _weight(found: Any) -> float | Schedule:
    if not isinstance(found, dict):
        weight: float = NUMBER.accept(found)
        return weight
    if errors := list(_errors(found)):
        raise InvalidValueError(errors)
    ((curve, points),) = ((name, each) for name, each in found.items() if name in CURVES)
    knots = tuple((_place(name) or 0, weight) for name, weight in points.items())
    return Schedule(curve, knots, found.get("unit", "steps"))


def _errors(found: Mapping[str, Any]) -> Iterator[ValueProblem]:
    """Yield the problems of a schedule."""
    unknown = [name for name in found if name not in (*CURVES, "unit")]
    for name in unknown:
        near = did_you_mean(name, (*CURVES, "unit"))
        advice = f"Did you mean '{near}'?" if near else _EXAMPLE
        yield ValueProblem((name,), f"unknown key '{name}'. {advice}", at_key=True)
    curves = [name for name in found if name in CURVES]
    if len(curves) != 1 and not unknown:
        yield ValueProblem((), f"must have one of {listed(CURVES)}, found {{}}. {_EXAMPLE}")
    if "unit" in found and found["unit"] not in UNITS:
        near = did_you_mean(str(found["unit"]), UNITS)
        advice = f" Did you mean '{near}'?" if near else ""
        yield ValueProblem(("unit",), f"must be {listed(UNITS)}, found {{}}.{advice}")
    for curve in curves:
        yield from _errors_of_points(curve, found[curve])


def _errors_of_points(curve: str, points: Any) -> Iterator[ValueProblem]:
    if not isinstance(points, dict) or not points:
        problem = f"must be a mapping of places to weights, found {{}}. {_EXAMPLE}"
        yield ValueProblem((curve,), problem)
        return
    places = {name: _place(name) for name in points}
    for name, weight in points.items():
        if places[name] is None:
            problem = (
                "a place must be a whole number from 0, or one followed by K, M, B or T, found "
                f"'{name}'. {_EXAMPLE}"
            )
            yield ValueProblem((curve, name), problem, at_key=True)
        try:
            NUMBER.accept(weight)
        except ValueError:
            problem = f"must be {NUMBER.must_be}, found {{}}. {_EXAMPLE}"
            yield ValueProblem((curve, name), problem)
    for (_, one), (name, other) in pairwise(places.items()):
        if one is not None and other is not None and one >= other:
            problem = f"places must ascend, found {other:,} after {one:,}. Sort them."
            yield ValueProblem((curve, name), problem, at_key=True)


def _place(name: str) -> int | None:
    """Return the number that a key means: `1000`, `10K`, `1.5B`."""
    found = _PLACE.fullmatch(name)
    if found is None:
        return None
    number = Fraction(found[1] + (found[2] or "")) * SUFFIXES.get(found[3], 1)
    return int(number) if number.denominator == 1 and number <= MAX_COUNT else None


def shown_schedule(schedule: Schedule) -> str:
    """Return a schedule in a few words, for people."""
    points = ", ".join(f"{place:,}: {float(weight):g}" for place, weight in schedule.points)
    return f"{schedule.kind} {points} {schedule.unit}"


_POINTS = {
    "type": "object",
    "propertyNames": {"pattern": f"^{_PLACE.pattern}$"},
    "additionalProperties": NUMBER.schema,
    "minProperties": 1,
}
_CURVE = {
    "type": "object",
    "properties": {**dict.fromkeys(CURVES, _POINTS), "unit": {"enum": list(UNITS)}},
    "additionalProperties": False,
    "oneOf": [{"required": [curve]} for curve in CURVES],
}
WEIGHT = Rule(
    f"a number from 0 to {MAX_WEIGHT:g}, or a schedule of such numbers",
    {"anyOf": [NUMBER.schema, _CURVE]},
    _weight,
)
