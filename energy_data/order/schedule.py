"""Weights that change over a run: curves over its steps, samples or tokens.

The x-axis of every curve is the number of samples that the run has drawn, micro-batch by
micro-batch: micro-batch g of `samples_per_microbatch` B has samples g B to (g + 1) B - 1, and is of
lane g mod lanes. So every draw of a lane has a place on the axis, the same for any number of ranks
and workers, and a knot at a step falls between two micro-batches.

Curves of the children of one blend are cut at all of their knots into *stretches*. Where all are
constant, a stretch has the exact integers that a blend of these constant weights has. Where some
change, it is cut into equal pieces of constant weights, each the mean share of its piece (Gauss'
rule of two points), so that counts follow the integral of the curves. Only sums, products and
quotients of doubles are used, and sums over children are of integers: the result is the same on
any machine.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import factorial, isfinite, isqrt, pi
from typing import Any, Literal, get_args

import numpy as np
from attrs import field, frozen
from attrs.converters import optional
from numpy.typing import NDArray

from energy_data.core.arrays import Int64s
from energy_data.core.recipe import (
    MAX_COUNT,
    MAX_WEIGHT,
    NUMBER,
    SUFFIXES,
    InvalidValueError,
    Rule,
    ValueProblem,
    did_you_mean,
    listed,
)
from energy_data.order.splits import exact_fraction, integer_weights
from energy_data.order.weighted import Stretch

Doubles = NDArray[np.float64]

CurveKind = Literal["step", "linear", "cosine"]
Unit = Literal["steps", "samples", "tokens"]
Weight = float | Fraction

MOST_PIECES = 512  # a power of two
_FINE = 1 << 36  # weights are integers of this scale before they are summed up
_SCALE = 1 << 32
_LOOKS = 64  # places at which the pace of change is measured
_GAUSS = (0.21132486540518712, 0.7886751345948128)  # 1/2 -+ 1 / sqrt(12)
_SINE = [(-1) ** n / factorial(2 * n + 1) for n in range(11)]


@frozen
class Schedule:
    """A weight that changes: its value at each knot, and how it gets from one to the next.

    Between knots it stays ("step") or goes to the next value in a straight line or half a cosine
    wave. Before the first knot and after the last it has their values.
    """

    kind: CurveKind
    points: tuple[tuple[int, Weight], ...]  # place, weight; places rise
    unit: Unit = "steps"
    per: Fraction = Fraction(1)  # what the weights are divided by

    def __attrs_post_init__(self) -> None:
        if self.kind not in ("step", "linear", "cosine"):
            raise ValueError(f"a schedule is 'step', 'linear' or 'cosine', got {self.kind!r}")
        if self.unit not in ("steps", "samples", "tokens"):
            raise ValueError(f"a schedule is in steps, samples or tokens, got {self.unit!r}")
        if not self.points or self.points[0][0] < 0:
            raise ValueError(f"a schedule needs points from 0 on, got {self.points}")
        for (place, _), (following, _) in pairwise(self.points):
            if place >= following:
                raise ValueError(f"points of a schedule must rise, got {place}, {following}")
        for place, weight in self.points:
            if not isfinite(weight) or weight < 0:
                raise ValueError(f"weight must be finite and >= 0, got {weight} at {place}")


@frozen(kw_only=True)
class Clock:
    """How steps and tokens of a run are counted in samples drawn.

    Samples count when they are drawn, also those that a filter or an error leaves out, and a pack
    counts as all samples in it. Where a micro-batch takes more or fewer draws than its
    size, give their mean as `samples_per_microbatch`.
    """

    samples_per_microbatch: int = 1
    microbatches_per_step: int | None = None  # of all ranks; None: schedules in steps are refused
    first_microbatch: int = 0  # the micro-batch of the run that is the first here
    # None: schedules in tokens are refused
    tokens_per_sample: Fraction | None = field(default=None, converter=optional(exact_fraction))

    def __attrs_post_init__(self) -> None:
        for name in ("samples_per_microbatch", "microbatches_per_step", "tokens_per_sample"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if self.first_microbatch < 0:
            raise ValueError(f"first_microbatch must be >= 0, got {self.first_microbatch}")

    def knows(self, unit: Unit) -> bool:
        """Return whether positions in this unit are known."""
        if unit == "steps":
            return self.microbatches_per_step is not None
        return unit == "samples" or self.tokens_per_sample is not None

    def samples(self, place: int, unit: Unit) -> Fraction:
        """Return how many samples the run has drawn at a place."""
        if unit == "samples":
            return Fraction(place)
        if unit == "steps":
            assert self.microbatches_per_step is not None
            return Fraction(place) * self.microbatches_per_step * self.samples_per_microbatch
        assert self.tokens_per_sample is not None
        return place / self.tokens_per_sample

    def draws(self, samples: Fraction, lane: int, lanes: int) -> int:
        """Return how many of the first `samples` samples of the run are draws of this lane."""
        size = self.samples_per_microbatch
        batch = int(samples // size)
        lane = (lane - self.first_microbatch) % lanes
        whole = -((lane - batch) // lanes) * size
        return whole + (-int(-(samples % size) // 1) if batch % lanes == lane else 0)


def check_weights(weights: Sequence[Weight | Schedule]) -> None:
    """Raise ValueError if these cannot be the weights of one blend.

    Schedules of one blend are in one unit, and some weight is > 0 everywhere.
    """
    units = sorted({weight.unit for weight in weights if isinstance(weight, Schedule)})
    if len(units) > 1:
        raise ValueError(
            f"schedules of one blend must be in one unit, got {' and '.join(units)}. Choose one"
        )
    curves = [_Curve.of(weight, lambda place, _: Fraction(place)) for weight in weights]
    for place in _knots(curves):
        if not any(curve.is_positive(place) for curve in curves):
            at = f" at {units[0].removesuffix('s')} {place}" if units else ""
            raise ValueError(
                f"some weight must be > 0, got {len(curves)} that are all 0{at}. Raise one"
            )


def stretches(weights: Sequence[Weight | Schedule], clock: Clock, lanes: int) -> list[Stretch]:
    """Return the stretches of a blend whose weights pass `check_weights`; the last has no end.

    A changing stretch has a power of two of pieces, up to `MOST_PIECES`, at least the root of N s:
    N draws of a lane, in which a share would change by s at its highest pace. So the number of
    draws of a lane before any place differs from the integral of the curve by less than an eighth
    of a draw, or N s / 2**21 for N s > 2**18.

    Some ms per hundred children and changing stretch.
    """
    curves = [_Curve.of(weight, clock.samples) for weight in weights]
    found: list[Stretch] = []
    for start, end in pairwise([*_knots(curves), None]):
        assert start is not None
        if end is None or all(curve.is_constant(start) for curve in curves):
            exact = integer_weights([curve.value(start) for curve in curves])
            stretch = Stretch(start, end, np.array([exact], np.int64))
        else:
            stretch = Stretch(start, end, _pieces(curves, start, end, lanes))
        if (
            found
            and len(stretch.weights) == 1
            and np.array_equal(found[-1].weights, stretch.weights)
        ):
            stretch = Stretch(found.pop().start, end, stretch.weights)
        found.append(stretch)
    return found


def _knots(curves: Sequence[_Curve]) -> list[Fraction]:
    return sorted({Fraction(0)}.union(*(curve.places for curve in curves)))


@frozen(eq=False)
class _Curve:
    """A weight along some axis."""

    kind: CurveKind
    places: tuple[Fraction, ...]
    values: tuple[Fraction, ...]

    @classmethod
    def of(cls, weight: Weight | Schedule, axis: Callable[[int, Unit], Fraction]) -> _Curve:
        if not isinstance(weight, Schedule):
            return cls("step", (Fraction(0),), (exact_fraction(weight),))
        places = tuple(axis(place, weight.unit) for place, _ in weight.points)
        values = tuple(exact_fraction(value) / weight.per for _, value in weight.points)
        return cls(weight.kind, places, values)

    def is_positive(self, knot: Fraction) -> bool:
        """Return whether it is > 0 at a knot of any curve."""
        before = self._before(knot)
        if self.is_constant(knot) or self.places[before] == knot:
            return self.values[before] > 0
        return any(self.values[before : before + 2])

    def is_constant(self, start: Fraction) -> bool:
        """Return whether it is constant from a knot of any curve to the next one."""
        before = self._before(start)
        if self.kind == "step" or start < self.places[0] or before + 1 == len(self.places):
            return True
        return self.values[before] == self.values[before + 1]

    def value(self, start: Fraction) -> Fraction:
        """Return the weight at such a knot, if it is constant from there on."""
        return self.values[self._before(start)]

    def at(self, start: Fraction, end: Fraction, parts: Doubles) -> Doubles:
        """Return the weights at these parts (0 to 1) of the way between two neighbouring knots."""
        if self.is_constant(start):
            return np.full(len(parts), float(self.value(start)))
        before = self._before(start)
        first, length = self.places[before], self.places[before + 1] - self.places[before]
        low, high = float((start - first) / length), float((end - first) / length)
        way = low + (high - low) * parts
        if self.kind == "cosine":
            way = _half_wave(way)
        one, other = float(self.values[before]), float(self.values[before + 1])
        return one + (other - one) * way

    def _before(self, place: Fraction) -> int:
        """Return the number of the last knot at or before a place, or of the first knot."""
        return max(bisect_right(self.places, place) - 1, 0)


def _pieces(curves: Sequence[_Curve], start: Fraction, end: Fraction, lanes: int) -> Int64s:
    """Return the mean shares of each piece as integers, [pieces, children]."""
    coarse = _shares(curves, start, end, (np.arange(_LOOKS) + 0.5) / _LOOKS)
    pace = np.abs(np.diff(coarse, axis=0)).max(initial=0) * _LOOKS
    changed = int(int((end - start) / lanes) * pace)
    pieces = min(MOST_PIECES, 1 << isqrt(changed).bit_length())
    shares = np.zeros((pieces, len(curves)))
    for node in _GAUSS:
        shares += _shares(curves, start, end, (np.arange(pieces) + node) / pieces)
    integers: Int64s = np.rint(shares * (_SCALE // 2)).astype(np.int64)
    integers += (integers == 0) & (shares > 0)
    return integers


def _shares(curves: Sequence[_Curve], start: Fraction, end: Fraction, parts: Doubles) -> Doubles:
    """Return the shares at these parts of the way between two neighbouring knots.

    [parts, children]
    """
    weights = np.stack([curve.at(start, end, parts) for curve in curves], axis=1)
    fine = np.rint(weights * (_FINE / weights.max())).astype(np.int64)
    fine += (fine == 0) & (weights > 0)
    shares: Doubles = fine / fine.sum(axis=1, keepdims=True)
    return shares


def _half_wave(way: Doubles) -> Doubles:
    """Return (1 - cos(pi x)) / 2 for x in [0, 1]: the square of sin(pi x / 2)."""
    angle = way * (pi / 2)
    square, sine = angle * angle, np.zeros(len(angle))
    for coefficient in reversed(_SINE):
        sine = sine * square + coefficient
    sine = sine * angle
    return sine * sine


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
