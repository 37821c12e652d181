"""Damages states: each value at each place replaced by wrong ones, for tests."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any

from energy_data.errors import EnergyDataError, StateError
from energy_data.loading.checkpoint.run_state import checksums

MISSING = object()
LIMIT_S = 60  # of one restore: above it, it hangs
_NUMBERS = (-1, 7, 10**9, 1 << 40, 1 << 52, 10**30, 1.5, math.nan, True)
_LISTS = ([], [1], [-1], ["a"], [None], [1 << 40], [10**30], [[1, 2]])
WRONG = (MISSING, None, "a", {}, *_NUMBERS, *_LISTS)


def as_saved(loader: Any) -> dict:
    return json.loads(json.dumps(loader.state_dict()))


def damaged(state: dict) -> Iterator[tuple[tuple, Any, dict]]:
    """Yield each damage: where, by what, and the damaged state."""
    for place in _places(state):
        value = _at(state, place)
        for wrong in (*WRONG, *_like(value)):
            yield place, wrong, _with(state, place, wrong)


def sampled(state: dict, count: int, seed: object) -> list[tuple[tuple, Any, dict]]:
    """Return some damages; the same for the same seed."""
    places = list(_places(state))
    chance = random.Random(str(seed))
    chosen = []
    for place in chance.choices(places, k=count):
        wrong = chance.choice((*WRONG, *_like(_at(state, place))))
        chosen.append((place, wrong, _with(state, place, wrong)))
    return chosen


def signed(state: Any) -> Any:
    """Return a state with the right checksums, so that its values are looked at."""
    try:
        rows = {lane: row[:-1] for lane, row in state["places"].items()}
        sums = checksums({name: v for name, v in state.items() if name != "places"}, rows)
        return {**state, "places": {lane: [*row, sums[lane]] for lane, row in rows.items()}}
    except (AttributeError, LookupError, TypeError, ValueError):
        return state


def check(make: Callable[[], Any], damages: Any, restore: Callable[[Any, Any], None]) -> int:
    """Restore each damaged state; return how many were refused.

    It is a StateError, and nothing has moved; or the value was one that a run could have saved, and
    the run goes on from there. A DataError then is as of a run whose data have changed.
    """
    refused, loader = 0, make()
    before = loader.state_dict()
    for place, wrong, state in damages:
        try:
            with _limited():
                try:
                    restore(loader, signed(state))
                except StateError:
                    refused += 1
                    assert loader.state_dict() == before
                    continue
                _go_on(loader)
        except Exception as error:
            shown = "missing" if wrong is MISSING else repr(wrong)[:80]
            raise AssertionError(f"{shown} at {place} of the state: {error!r}") from error
        loader = make()
        before = loader.state_dict()
    return refused


def _go_on(loader: Any) -> None:
    loader.state_dict()
    try:
        list(islice(iter(loader), 4))
    except EnergyDataError:
        return
    loader.stats()


@contextmanager
def _limited() -> Iterator[None]:
    def hangs(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    yield at
    if isinstance(value, dict | list):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[name], (*at, name))


def _at(value: Any, place: tuple) -> Any:
    for name in place:
        value = value[name]
    return value


def _with(state: dict, place: tuple, wrong: Any) -> Any:
    if not place:
        return None if wrong is MISSING else wrong
    changed = deepcopy(state)
    above = _at(changed, place[:-1])
    if wrong is MISSING:
        del above[place[-1]]
    else:
        above[place[-1]] = deepcopy(wrong)
    return changed


def _like(value: Any) -> list:
    """Values that are nearly right."""
    if isinstance(value, list):
        return [value[:-1], value + value[-1:], [value]]
    if isinstance(value, str):
        return [value[:-1], f"{value}x", ""]
    if isinstance(value, dict):
        return [{**value, "zz": 1}, dict(list(value.items())[1:])]
    return [value + 1] if type(value) is int else []
