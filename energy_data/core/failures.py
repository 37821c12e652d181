"""Failures of users' functions: who hears of them, and how many are put up with.

A function that fails has its item left out. The failures in a row, in one lane, are part of the
lane's state, so a run that is restored gives up where the run that was not would have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from attrs import field, frozen

from energy_data.core.sample import describe_source, get_source_info
from energy_data.errors import (
    EnergyDataError,
    FatalSampleError,
    SampleError,
)

log = logging.getLogger(__name__)

ErrorHandler = Callable[[Exception, Any, Sequence[Any] | None], None]
"""Called with the error, the item it came up with (a sample, a list of samples, or what is known of
one that could not be read) and its sources. What it raises ends the iteration."""

SYSTEM_ERRORS = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
)
"""Errors that are never a sample's fault."""


def log_exception(e: Exception, sample: Any, sources: Sequence[Any] | None = None) -> None:
    """Log an error with its traceback and where its sample came from; go on without the sample."""
    log.error("left out: %s", describe(sample), exc_info=e)


def reraise_exception(e: Exception, _sample: Any, _sources: Sequence[Any] | None = None) -> None:
    """Raise the error: the iteration ends with it."""
    raise e


@frozen
class OnFailure:
    """What follows when a function of the user raises."""

    handler: ErrorHandler = log_exception
    tolerance: int = 100  # failures in a row after which it is given up; 0: never
    _takes: int = field(init=False, eq=False, repr=False)  # arguments of the handler

    @_takes.default
    def _count(self) -> int:
        return len(signature(self.handler).parameters)

    def failed(self, name: str, error: Exception, item: Any, failures: int) -> None:
        """Report the failure of a function, the so-manieth in a row; raise what is too much.

        FatalSampleError: after `tolerance` failures in a row, and for errors of the system.
        """
        what = f"{describe(item)}: {type(error).__name__}: {error}"
        ours = isinstance(error, EnergyDataError) and not isinstance(error, SampleError)
        if ours or isinstance(error, SYSTEM_ERRORS):
            raise FatalSampleError(f"{name}: it cannot go on: {what}") from error
        if self._takes == 2:  # as handlers were in older versions of Energon
            self.handler(error, _key(item))  # type: ignore[call-arg, misc]  # see above
        else:
            self.handler(error, item, get_source_info(item))
        if 0 < self.tolerance <= failures:
            raise FatalSampleError(
                f"{name}: it failed {failures} times in a row, the last time with "
                f"{what}. Look at the function and the dataset, or raise its failure_tolerance."
            ) from error


def describe(item: Any) -> str:
    """Return in words what a function works on: a sample, or the first of a list."""
    return describe_source(item[0] if isinstance(item, list) and item else item)


def _key(item: Any) -> Any:
    first = item[0] if isinstance(item, list) and item else item
    return first.get("__key__") if isinstance(first, dict) else getattr(first, "__key__", None)
