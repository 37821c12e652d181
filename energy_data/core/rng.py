"""Random numbers for user functions: a pure function of the item, the same on every machine.

    rng = sample_rng()          # a numpy generator for the current sample
    rng = sample_rng("torch")   # a torch generator for it

Both are seeded by the seed of the run, the name of the function, and the identity of the sample
(leaf, epoch, index). They do not depend on ranks, workers, restarts or other samples.
`GlobalSeeds` seeds the global generators of `random`, numpy and torch for a block of code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from random import Random
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Generator

from energy_data.core.keys import key
from energy_data.core.lazy import cached_property
from energy_data.core.user_call import CALL, RESTORE_KEY, restore_key
from energy_data.errors import EnergyDataError, SpecError


@overload
def sample_rng(kind: Literal["numpy"] = "numpy") -> np.random.Generator: ...
@overload
def sample_rng(kind: Literal["torch"]) -> torch.Generator: ...
def sample_rng(
    kind: Literal["numpy", "torch"] = "numpy",
) -> np.random.Generator | torch.Generator:
    """Return a new generator for the item of the running user function.

    A second call within the same function call returns the same numbers again. The bit generators
    never change (Philox in numpy, Mersenne Twister in torch); what numpy and torch derive from the
    bits may change with their versions. Takes about 20 microseconds. Raises EnergyDataError outside
    of such a function.
    """
    seed = sample_seed()
    if kind == "numpy":
        return np.random.Generator(np.random.Philox(key=seed))
    return torch.Generator().manual_seed(seed)


def sample_seed() -> int:
    """Return 64 random bits for the item of the running user function.

    A list of samples has the bits of its first sample. An item without the identity of its sample
    (`__restore_key__`) is identified by its reference if it may have to be made again (it is packed
    or grouped), else by the number of the micro-batch.
    """
    function = CALL.function
    if function is None:
        raise EnergyDataError(
            "sample_rng: no function of a task encoder is running in this thread. Call it within "
            "`encode_sample`, `batch`, `encode_batch` or another function that a dataset runs."
        )
    call = function.call
    identity = tuple(_flat(restore_key(call.item) or call.reference or ()))
    if function.requires_identity and not identity:
        raise EnergyDataError(
            f"sample_rng: {function.name} asks for the numbers of a {type(call.item).__name__} "
            f"without the identity of its sample, so all items of a micro-batch would get the same "
            f"numbers. Keep the field {RESTORE_KEY} of samples in the items made of them."
        )
    identity = identity or (CALL.batch, *CALL.mark)
    return key(function.seed, function.name, *identity)


def _flat(parts: tuple[Any, ...]) -> Iterator[int | str]:
    for part in parts:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part if isinstance(part, int) else str(part)


class SampleRng:
    """Generators for one call of a user function, each made when it is first used.

    Within the call they continue, also from one part of a generator function to the next.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @cached_property
    def numpy(self) -> np.random.Generator:
        """A generator of numpy, as `sample_rng()` returns."""
        return np.random.Generator(np.random.Philox(key=self._seed))

    @cached_property
    def torch(self) -> Generator:
        """A CPU generator of torch, as `sample_rng("torch")` returns."""
        return Generator().manual_seed(self._seed)

    @cached_property
    def torch_cuda(self) -> Generator:
        """A generator on the current CUDA device."""
        return Generator("cuda").manual_seed(self._seed)

    @cached_property
    def random(self) -> Random:
        """A generator of Python."""
        return Random(self._seed)  # noqa: S311 - no secrets


def call_rng() -> SampleRng:
    """Return the generators of the running user function. Raises as `sample_rng` does."""
    function = CALL.function
    if function is None or function.call.rng is None:
        seed = sample_seed()
        assert function is not None, "it has a seed"
        function.call.rng = SampleRng(seed)
    found: SampleRng = function.call.rng
    return found


class GlobalSeeds:
    """Seeds the global (CPU) generators of `random`, numpy and torch: a context manager.

    On exit they are set back. Entered again, the same object continues where it stopped. The
    generators belong to the whole process, so worker threads cannot enter (SpecError).
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: _States | None = None
        self._outside: _States | None = None

    def __enter__(self) -> None:
        if CALL.in_worker_thread:
            raise SpecError(
                "restore_seeds: the function draws from the global generators, which all threads "
                "of this process share, and the loader uses worker threads. Draw from "
                "sample_rng() instead, or use worker processes: start_method='forkserver'."
            )
        self._outside = _get_states()
        if self._inside is not None:
            _set_states(self._inside)
            return
        random.seed(self._seed)
        np.random.seed(self._seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        assert self._outside is not None, "left before it was entered"
        self._inside = _get_states()
        _set_states(self._outside)


_States = tuple[Any, Any, torch.Tensor]


def _get_states() -> _States:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
