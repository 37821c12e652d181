"""Calls of users' functions: what they may ask for, and what follows when they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

from energy_data.core.context import Context
from energy_data.core.failures import OnFailure, describe
from energy_data.core.node import Cursor, ItemRef
from energy_data.core.running import RUNNING, Role
from energy_data.errors import SkipSample, add_note


class LeftOut:
    """In the place of what a function would have made of an item, had it not raised SkipSample."""

    def __bool__(self) -> bool:
        return False


LEFT_OUT: Final = LeftOut()


class Call:
    """One function of the user, in one lane.

    It is called with one item: a sample, or the list of what is packed or batched; and with the
    cursor that counts its failures, or a copy that counts for nothing. While it runs
    `sample_rng()` and the task encoder's `current_batch_index` and `cache` know the item. If it
    raises, and there is an OnFailure that puts up with it, SkipSample is raised in its place.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        context: Context,
        on_failure: OnFailure | None,
        doing: str,  # "encoding": what a note on an error says
        counter: str = "failures",  # the field of the cursor that counts failures in a row
        *,
        must_know: bool = False,  # see `Role`
    ) -> None:
        self.function, self.on_failure, self.doing = function, on_failure, doing
        self.name, self.counter = name_of(function), counter
        self.role = Role(context.seed, self.name, context.cache, must_know)

    def __call__(self, item: Any, cursor: Cursor, reference: ItemRef = ()) -> Any:
        """Return what the function makes of an item; `reference` is that of one that is marked."""
        RUNNING.role, RUNNING.item, RUNNING.reference = self.role, item, reference
        try:
            made = self.function(item)
        except SkipSample:
            raise
        except Exception as error:
            self._failed(error, item, cursor)
            raise SkipSample from error
        finally:
            RUNNING.role, RUNNING.item, RUNNING.reference = None, None, ()
        if self.on_failure is not None:
            setattr(cursor, self.counter, 0)
        return made

    def each(
        self, items: Iterable[Any], cursor: Cursor, references: Iterable[ItemRef] = repeat(())
    ) -> list[Any]:
        """Return what the function makes of each item, LEFT_OUT where it raises SkipSample.

        As one call after another, in two thirds of the time.
        """
        function, role, tolerant = self.function, self.role, self.on_failure is not None
        made: list[Any] = []
        try:
            for item, reference in zip(items, references):  # noqa: B905 - without end, if repeated
                RUNNING.role, RUNNING.item, RUNNING.reference = role, item, reference
                try:
                    made.append(function(item))
                except SkipSample:
                    made.append(LEFT_OUT)
                except Exception as error:  # noqa: BLE001 - `_failed` raises what is not put up with
                    self._failed(error, item, cursor)
                    made.append(LEFT_OUT)
                else:
                    if tolerant:
                        setattr(cursor, self.counter, 0)
        finally:
            RUNNING.role, RUNNING.item, RUNNING.reference = None, None, ()
        return made

    def parts(
        self, item: Any, cursor: Callable[[], Cursor], reference: ItemRef = ()
    ) -> Iterator[Any]:
        """Yield what a generator function makes of an item, part by part.

        It ends where the function raises what is put up with: what it gave before stays given.
        cursor: returns the cursor that counts, which may be another one from part to part.
        """
        made: Iterator[Any] | None = None
        while True:
            RUNNING.role, RUNNING.item, RUNNING.reference = self.role, item, reference
            try:
                made = self.function(item) if made is None else made
                part = next(made)
            except (StopIteration, SkipSample):
                return
            except Exception as error:  # noqa: BLE001 - `_failed` raises what is not put up with
                self._failed(error, item, cursor())
                return
            finally:
                RUNNING.role, RUNNING.item, RUNNING.reference = None, None, ()
            if self.on_failure is not None:
                setattr(cursor(), self.counter, 0)
            yield part

    def _failed(self, error: Exception, item: Any, cursor: Cursor) -> None:
        add_note(error, f"while {self.doing} {describe(item)}")
        if self.on_failure is None:
            raise error
        failures = getattr(cursor, self.counter) + 1
        setattr(cursor, self.counter, failures)
        self.on_failure.failed(self.name, error, item, failures)


class Measure:
    """A function of the user that says something about a document, or makes a part of it.

    While it runs `sample_rng()` knows the document, its first argument. Errors are its caller's.
    """

    def __init__(self, function: Callable[..., Any], context: Context) -> None:
        self.function = function
        self.reference: ItemRef = ()
        self.role = Role(context.seed, name_of(function), context.cache)

    def __call__(self, document: Any, *others: Any) -> Any:
        """Return what the function says. `reference` is that of the sample of the document."""
        RUNNING.role, RUNNING.item, RUNNING.reference = self.role, document, self.reference
        try:
            return self.function(document, *others)
        finally:
            RUNNING.role, RUNNING.item, RUNNING.reference = None, None, ()


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of a method, or of the class of what is called like one."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
