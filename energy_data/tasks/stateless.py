"""Marks on functions of a task: what a run may assume of them, and what it does for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, overload

from energy_data.core.rng import GlobalSeeds, sample_seed
from energy_data.errors import SpecError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TOLERANCE = 100  # failures in a row, in one lane
_END = object()


@overload
def stateless(fn: F) -> F: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[F], F]: ...
def stateless(
    fn: F | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> F | Callable[[F], F]:
    """Say that a function of a task depends on its arguments alone.

    Every function of a task must, or a restored run goes on differently; so the mark changes
    nothing by itself, and its absence nothing either.

    Args:
        fn: The function, or method, where the decorator is used without parentheses.
        restore_seeds: The function draws from the global generators of `random`, numpy or torch.
            They are seeded for each call from the seed of the run and the current sample, and set
            back afterwards, so a sample has the same augmentation wherever and whenever it is made.
            Not possible in worker threads (SpecError), which share these generators with the
            trainer. `energy_data.sample_rng()` needs no global state, and costs less.
        failure_tolerance: After so many failures in a row in one lane the run stops with
            FatalSampleError; 0: never. None: as the task encoder says, 100 if it says nothing.
    """
    if failure_tolerance is not None and failure_tolerance < 0:
        raise SpecError(f"stateless: failure_tolerance must be >= 0, got {failure_tolerance}.")

    def marked(function: F) -> F:
        made = _seeding(function) if restore_seeds else function
        made.__stateless__ = True  # type: ignore[attr-defined]  # functions take any
        if failure_tolerance is not None:
            made.__failure_tolerance__ = failure_tolerance  # type: ignore[attr-defined]  # as above
        return made

    return marked if fn is None else marked(fn)


def get_failure_tolerance(
    fn: Callable[..., Any], default_failure_tolerance: int | None = DEFAULT_TOLERANCE
) -> int:
    """Return after how many failures in a row a function is given up; 0: never."""
    tolerance: int | None = getattr(fn, "__failure_tolerance__", default_failure_tolerance)
    return tolerance or 0


def _seeding(function: F) -> F:
    """Return the function, called with the global seeds of the sample at hand."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with GlobalSeeds(sample_seed()):
            return function(*args, **kwargs)

    @wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        seeds, items = GlobalSeeds(sample_seed()), function(*args, **kwargs)
        while True:
            with seeds:
                item = next(items, _END)
            if item is _END:
                return
            yield item

    return generate if inspect.isgeneratorfunction(function) else call  # type: ignore[return-value]  # called as `function` is
