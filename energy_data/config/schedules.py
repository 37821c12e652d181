"""Weights that change over a run, as they are written in YAML."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

from energy_data.config.diagnostics import Place, did_you_mean, listed
from energy_data.config.rules import MAX_COUNT, SUFFIXES, Rule, WrongInsideError, number
from energy_data.config.yaml_nodes import NUMBERED, Value
from energy_data.order.schedule import Schedule, Unit

UNITS = get_args(Unit)
_PLACE = re.compile(r"(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?([KMBT]?)")
_EXAMPLE = "Write it like `weight: {linear: {0: 1, 10K: 3}}`."

_Faults = list[tuple[Place, str, str]]


def weight(maximum: float) -> Rule:
    """Return the rule of a number >= 0, or a schedule of such numbers."""
    plain = number(maximum)

    def accept(value: Value) -> float | Schedule:
        if isinstance(value.data, dict):
            return _schedule(value, value.data, plain)
        found: float = plain.accept(value)
        return found

    points = {
        "type": "object",
        "propertyNames": {"pattern": f"^{_PLACE.pattern}$"},
        "additionalProperties": plain.schema,
        "minProperties": 1,
    }
    curve = {
        "type": "object",
        "properties": {**dict.fromkeys(NUMBERED, points), "unit": {"enum": list(UNITS)}},
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in NUMBERED],
    }
    says = f"{plain.says}, or a schedule of such numbers"
    return Rule(says, {"anyOf": [plain.schema, curve]}, accept)


def plain_schedule(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as it is written in YAML."""
    points = {str(place): weight for place, weight in schedule.points}
    return {schedule.kind: points, **({} if schedule.unit == "steps" else {"unit": schedule.unit})}


def shown_schedule(schedule: Schedule) -> str:
    """Return a schedule in few words, for people."""
    points = ", ".join(f"{place:,}: {float(weight):g}" for place, weight in schedule.points)
    return f"{schedule.kind} {points} {schedule.unit}"


def _schedule(value: Value, data: dict[str, Value], plain: Rule) -> Schedule:
    kinds = [name for name in data if name in NUMBERED]
    faults: _Faults = []
    for name in data:
        if name not in (*NUMBERED, "unit"):
            near = did_you_mean(name, (*NUMBERED, "unit"))
            advice = f"Did you mean '{near}'?" if near else _EXAMPLE
            faults.append((value.keys[name], "", f"unknown key '{name}'. {advice}"))
    if len(kinds) != 1 and not faults:
        problem = f"must have one of {listed(NUMBERED)}, found {value.describe()}. {_EXAMPLE}"
        faults.append((value.place, "", problem))
    unit = _unit(data, faults)
    points = [point for kind in kinds for point in _points(kind, data[kind], plain, faults)]
    if faults:
        raise WrongInsideError(faults)
    return Schedule(kinds[0], tuple(points), unit)  # type: ignore[arg-type]  # it is one of NUMBERED


def _unit(data: dict[str, Value], faults: _Faults) -> Unit:
    value = data.get("unit")
    if value is None:
        return "steps"
    if value.data in UNITS:
        return value.data  # type: ignore[return-value]  # it is one of UNITS
    near = did_you_mean(str(value.data), UNITS)
    advice = f" Did you mean '{near}'?" if near else ""
    problem = f"must be {listed(UNITS)}, found {value.describe()}.{advice}"
    faults.append((value.place, ".unit", problem))
    return "steps"


def _points(
    kind: str, value: Value, plain: Rule, faults: _Faults
) -> list[tuple[int, float | Fraction]]:
    if not isinstance(value.data, dict) or not value.data:
        problem = f"must be a mapping of places to weights, found {value.describe()}. {_EXAMPLE}"
        faults.append((value.place, f".{kind}", problem))
        return []
    points = []
    for name, each in value.data.items():
        place = _place(name)
        if place is None:
            says = "a place must be a whole number from 0, or one with K, M, B or T behind it"
            faults.append((value.keys[name], f".{kind}", f"{says}, found '{name}'. {_EXAMPLE}"))
        try:
            weight = plain.accept(each)
        except ValueError:
            problem = f"must be {plain.says}, found {each.describe()}. {_EXAMPLE}"
            faults.append((each.place, f".{kind}.{name}", problem))
        else:
            points.append((place or 0, weight))
    for (one, _), (other, _), name in zip(*_neighbours(points), list(value.data)[1:], strict=False):
        if one >= other and not faults:
            problem = f"places must rise, found {other:,} after {one:,}. Put them in order."
            faults.append((value.keys[name], f".{kind}", problem))
    return points


def _neighbours(points: list[Any]) -> tuple[list[Any], list[Any]]:
    pairs = list(pairwise(points))
    return [one for one, _ in pairs], [other for _, other in pairs]


def _place(name: str) -> int | None:
    """Return the number that a key means: `1000`, `10K`, `1.5B`."""
    found = _PLACE.fullmatch(name)
    if found is None:
        return None
    number = Fraction(found[1] + (found[2] or "")) * SUFFIXES.get(found[3], 1)
    return int(number) if number.denominator == 1 and number <= MAX_COUNT else None
