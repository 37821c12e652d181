"""`stateless`: marks a function of a task, and seeds the global generators for it."""

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
    """Declare that a function of a task depends on its arguments alone.

    Every function of a task must, or a restored run continues differently. Without arguments the
    decorator therefore changes nothing.

    Args:
        fn: The function, or method, where the decorator is used without parentheses.
        restore_seeds: The function draws from the global generators of `random`, numpy or torch.
            They are seeded for each call from the seed of the run and the current sample, and
            restored afterwards, so the augmentation of a sample is the same in any process.
            Not possible in worker threads (SpecError), which share these generators with the
            trainer. `energy_data.sample_rng()` needs no global state, and costs less.
        failure_tolerance: The run stops with FatalSampleError after this many failures in a row in
            one lane; 0: never. None: that of the task encoder, 100 by default.
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
    """Return the number of failures in a row after which the run stops; 0: never."""
    tolerance: int | None = getattr(fn, "__failure_tolerance__", default_failure_tolerance)
    return tolerance or 0


def _seeding(function: F) -> F:
    """Return the function with the global generators seeded for the current sample."""

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
