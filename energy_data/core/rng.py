"""Randomness for functions of users: a function of what they work on, the same on every machine.

    rng = sample_rng()          # a numpy generator of the sample at hand
    rng = sample_rng("torch")   # a torch generator of it

Both are made of the seed of the run, the name of the function, and the identity of the sample:
leaf, epoch and index. So neither ranks, workers and restarts nor other samples matter.
`GlobalSeeds` sets the global seeds of `random`, numpy and torch for a block, and sets them back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch

from energy_data.core.keys import key
from energy_data.core.running import RESTORE_KEY, RUNNING, restore_key
from energy_data.core.turns import LostTurnError, begin_turn, end_turn
from energy_data.errors import EnergyDataError

T = TypeVar("T")


@overload
def sample_rng(kind: Literal["numpy"] = "numpy") -> np.random.Generator: ...
@overload
def sample_rng(kind: Literal["torch"]) -> torch.Generator: ...
def sample_rng(
    kind: Literal["numpy", "torch"] = "numpy",
) -> np.random.Generator | torch.Generator:
    """Return a fresh generator for what the running function of a task encoder works on.

    Asked twice in one call, it is the same generator again, at its beginning. The bits are the same
    for ever (Philox in numpy, Mersenne Twister in torch); what numpy and torch make of them may
    change with their versions. Some 20 microseconds. EnergyDataError outside of such a function.
    """
    seed = sample_seed()
    if kind == "numpy":
        return np.random.Generator(np.random.Philox(key=seed))
    return torch.Generator().manual_seed(seed)


def sample_seed() -> int:
    """Return 64 random bits of what the running function works on.

    A list (of what is packed or batched) has those of its first sample. An item that was made
    without the identity of its sample, `__restore_key__`, is told by its reference if it may have
    to be made again (it is packed or grouped), else by the micro-batch.
    """
    role = RUNNING.role
    if role is None:
        raise EnergyDataError(
            "sample_rng: no function of a task encoder is running in this thread. Call it within "
            "`encode_sample`, `batch`, `encode_batch` or another function that a dataset runs."
        )
    known = restore_key(RUNNING.item)
    identity = tuple(_flat(known)) if known else RUNNING.reference
    if role.must_know and not identity:
        raise EnergyDataError(
            f"sample_rng: {role.function} asks for the numbers of {_kind(RUNNING.item)} that does "
            f"not say which sample it is, so all of a micro-batch would have the same. Keep the "
            f"field {RESTORE_KEY} of samples in what is made of them."
        )
    identity = identity or (RUNNING.batch, *RUNNING.mark)
    return key(role.seed, role.function, *identity)


def _kind(item: Any) -> str:
    return f"a {type(item).__name__}"


def _flat(parts: tuple[Any, ...]) -> Iterator[int | str]:
    for part in parts:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part if isinstance(part, int) else str(part)


class GlobalSeeds:
    """A seeding of `random`, numpy's and torch's (CPU) global generators: a context.

    Within it they start from `seed`; outside they are as they were. Entered again, it goes on where
    it was left. One thread at a time is in one, see `energy_data.core.turns`.
    """

    def __init__(self, seed: int) -> None:
        self._inside: _States | None = None
        self._visits: list[_Visit] = []
        self._seed = seed

    def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Return what `work` gives within.

        A `with` is not left if a signal handler raises when it is about to be; this is.
        """
        before = len(self._visits)
        try:
            with self:
                return work(*args, **kwargs)
        except BaseException:
            for visit in reversed(self._visits[before:]):
                self._leave(visit)
            raise

    def __enter__(self) -> None:
        visit = _Visit(self)
        self._visits.append(visit)
        try:
            begin_turn(visit)
        except BaseException:
            self._leave(visit)
            raise

    def __exit__(self, *_: object) -> None:
        visit = self._visits[-1]
        try:
            self._inside = _states()
            self._leave(visit)
        except BaseException:
            self._leave(visit)
            raise

    def begin(self) -> None:
        """Set the generators: at the beginning, or where they were left."""
        if self._inside is not None:
            _put(self._inside)
            return
        random.seed(self._seed)
        np.random.seed(self._seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(self._seed)

    def _leave(self, visit: _Visit) -> None:
        """End a visit; nothing if it has ended."""
        if visit not in self._visits:
            return
        try:
            end_turn(visit)
        except LostTurnError:
            self._visits.remove(visit)
            raise
        self._visits.remove(visit)


class _Visit:
    """One stay in the generators as seeded, from when it is entered to when it is left."""

    def __init__(self, seeds: GlobalSeeds) -> None:
        self._seeds = seeds
        self._outside: _States | None = None

    def begin(self) -> None:
        self._outside = _states()
        self._seeds.begin()

    def put_back(self) -> None:
        if self._outside is not None:
            _put(self._outside)


_States = tuple[Any, Any, torch.Tensor]


def _states() -> _States:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _put(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
