"""Calls of user functions: what a function can ask about its item, and what happens if it fails.

A function that fails has its item skipped. The number of consecutive failures in a lane is part of
the lane's state, so a restored run gives up at the same failure as an uninterrupted one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from inspect import isgeneratorfunction, signature, unwrap
from typing import Any, Final

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor
from energy_data.core.node import ItemRef
from energy_data.core.profiler import Activity
from energy_data.core.sample import describe_source, first_of, get_source_info, sample_field
from energy_data.errors import (
    EnergyDataError,
    FatalSampleError,
    SampleError,
    SkipSample,
    SpecError,
    add_note,
)

log = logging.getLogger(__name__)

RESTORE_KEY = "__restore_key__"
"""The field of a sample that holds its identity: (leaf id, epoch, index in the leaf)."""

ErrorHandler = Callable[[Exception, Any, Sequence[Any] | None], None]
"""Called with the error, its item (a sample, a list of samples, or the known fields of a sample
that could not be read) and the item's sources. An error that it raises ends the iteration."""

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
"""Errors that are never caused by a sample."""


_LOGGED_IN_A_ROW = 3  # errors, each with its traceback

MAKING_BATCH = "making the batch that begins with"
MAKING_PACK = "making the pack that begins with"
MAKING_PACKS = "making packs, the first of which begins with"

_MAKES = {
    "encoding": "the sample",
    "splitting": "a value",
    "selecting from samples that begin with": "the groups",
    MAKING_BATCH: "the batch",
    MAKING_PACK: "the pack",
}
"""What the functions make that must not return None, by what they are doing."""


def gives_parts(encode: Callable[[Any], Any] | None) -> bool:
    """Return whether a function is a generator: it yields several samples for one."""
    while isinstance(encode, partial):
        encode = encode.func
    return encode is not None and isgeneratorfunction(unwrap(encode))


class Skipped:
    """Replaces the result of a function for an item that was skipped. Not true."""

    def __bool__(self) -> bool:
        return False


SKIPPED: Final = Skipped()


def log_exception(e: Exception, sample: Any, sources: Sequence[Any] | None = None) -> None:
    """Log an error with its traceback and the source of its sample; the sample is skipped."""
    log.error("skipped: %s", describe_source(sample), exc_info=e)


def handle_failure(handler: ErrorHandler, error: Exception, item: Any, failures: int) -> None:
    """Call a handler with an error; `failures` is the number of consecutive errors.

    `log_exception` logs the first ones only: what is broken for all items would fill the log.
    """
    if handler is log_exception and failures > _LOGGED_IN_A_ROW:
        if failures == _LOGGED_IN_A_ROW + 1:
            log.error("skipped: more items in a row; they are counted, and no longer logged")
    elif len(signature(handler).parameters) == 2:  # as in older versions of Energon
        handler(error, sample_field(first_of(item), "__key__"))  # type: ignore[call-arg]  # see above
    else:
        handler(error, item, get_source_info(item))


def reraise_exception(e: Exception, _sample: Any, _sources: Sequence[Any] | None = None) -> None:
    """Raise the error, which ends the iteration."""
    raise e


@frozen
class ErrorPolicy:
    """What happens when a user function raises."""

    handler: ErrorHandler = log_exception
    tolerance: int = 100  # consecutive failures before the run fails; 0: no limit

    def handle(self, name: str, error: Exception, item: Any, failures: int) -> None:
        """Pass a failure of the function `name` to the handler; `failures` are consecutive.

        Raises FatalSampleError after `tolerance` failures, and for errors of the system.
        """
        what = f"{describe_source(item)}: {type(error).__name__}: {error}"
        ours = isinstance(error, EnergyDataError) and not isinstance(error, SampleError)
        if ours or isinstance(error, SYSTEM_ERRORS):
            raise FatalSampleError(f"{name}: it cannot go on: {what}") from error
        handle_failure(self.handler, error, item, failures)
        if 0 < self.tolerance <= failures:
            raise FatalSampleError(
                f"{name}: it failed {failures} times in a row, the last time with "
                f"{what.rstrip('.')}. Look at the function and the dataset, or raise its "
                f"failure_tolerance."
            ) from error


class Call:
    """What the running call of a function works on. Only one call of it runs."""

    __slots__ = ("at", "items", "references", "rng")

    def __init__(self) -> None:
        self.items: Sequence[Any] = ()  # samples, or lists of samples that are packed or batched
        self.references: Sequence[ItemRef] = ()  # of items without identity, as in states; or none
        self.at: int = 0  # which of them it is called with
        self.rng: Any = None  # the random generators of the item, once they were used

    @property
    def item(self) -> Any:
        """The item that it is called with."""
        return self.items[self.at]

    @property
    def reference(self) -> ItemRef:
        """The reference of the item; empty if it is not known."""
        return self.references[self.at] if self.references else ()


@frozen
class FunctionInfo:
    """The facts that all calls of one function in one lane share."""

    seed: int  # of the run
    name: str  # of the function; not its path in the tree, so that wrappers change no numbers
    cache: Any = field(default=None, eq=False, repr=False)  # the cache pool of the run
    requires_identity: bool = False  # items without an identity would all get the same numbers
    call: Call = field(factory=Call, eq=False, repr=False)


class CallContext(threading.local):
    """The call of a user function that runs in this thread."""

    function: FunctionInfo | None = None
    mark: tuple[int, ...] = ()  # of an item that has neither
    batch: int = 0  # number in the run of the micro-batch being made
    in_worker_thread: bool = False  # which shares the global generators with the trainer

    def enter(
        self,
        function: FunctionInfo,
        items: Sequence[Any],
        references: Sequence[ItemRef] = (),
        rng: Any = None,
    ) -> FunctionInfo | None:
        """Begin calls with some items, or continue one with its generators.

        Returns what ran before, for `leave`: a function may call others that run here.
        """
        outer, self.function, call = self.function, function, function.call
        call.items, call.references, call.at, call.rng = items, references, 0, rng
        return outer

    def leave(self, outer: FunctionInfo | None) -> None:
        """End the calls."""
        if self.function is not None:
            self.function.call.items = ()
        self.function = outer


CALL = CallContext()


class UserCall:
    """One user function in one lane.

    It is called with an item (a sample, or a list of samples that are packed or batched) and the
    cursor that counts its failures. During the call, `sample_rng()` and the task encoder's
    `current_batch_index` and `cache` know the item. An item is skipped if the function raises
    SkipSample, or another error that its ErrorPolicy tolerates.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        context: Context,
        doing: str,  # "encoding": for the note on an error
        activity: Activity | None = None,  # that its time belongs to; None: it is not measured
        *,
        on_failure: ErrorPolicy | None = None,  # None: errors are raised
        counter: str = "failures",  # the field of the cursor that counts consecutive failures
        requires_identity: bool = False,  # see `FunctionInfo`
    ) -> None:
        self.function, self.on_failure, self.doing = function, on_failure, doing
        self.name, self.counter, self.makes = name_of(function), counter, _MAKES.get(doing)
        self.info = FunctionInfo(context.seed, self.name, context.cache, requires_identity)
        self.trace, self.profiler, self.activity = context.trace, context.profiler, activity

    def __call__(self, item: Any, cursor: Cursor, reference: ItemRef = ()) -> Any:
        """Return the function's result for an item, or SKIPPED."""
        return self.each([item], cursor, (reference,))[0]

    def each(
        self, items: list[Any], cursor: Cursor, references: Sequence[ItemRef] = ()
    ) -> list[Any]:
        """Replace each item of a list by the function's result, SKIPPED where it was skipped.

        Returns the list. An item is freed once its result is there: a block is not held twice, and
        fewer objects are held at once, which is what the garbage collector counts.
        """
        function, call = self.function, self.info.call
        counts = self.on_failure is not None  # whether the cursor may have failures to forget
        began, outer = time.perf_counter(), CALL.enter(self.info, items, references)
        try:
            for at, item in enumerate(items):
                if self.trace is not None:  # the item may kill the process
                    self.trace(describe_source(item))
                call.at, call.rng = at, None
                try:
                    if (made := function(item)) is None and self.makes:
                        raise self._none("return")
                    items[at] = made
                except SkipSample:
                    items[at] = SKIPPED
                except Exception as error:  # noqa: BLE001 - `_failed` raises what is not tolerated
                    self._failed(error, item, cursor)
                    items[at] = SKIPPED
                    counts = True
                else:
                    if counts:
                        setattr(cursor, self.counter, 0)
                        counts = False
        finally:
            CALL.leave(outer)
            call.items = ()  # also if the function entered another one
            if self.activity is not None:
                self.profiler.add(self.activity, time.perf_counter() - began)
        return items

    def parts(
        self, item: Any, cursor: Callable[[], Cursor], reference: ItemRef = ()
    ) -> Iterator[Any]:
        """Yield the items that a generator function makes of one item.

        Ends where the function raises a tolerated error; earlier parts stay valid.
        cursor: Returns the cursor that counts failures; it may change between two parts.
        """
        made: Iterator[Any] | None = None
        rng = None
        if self.trace is not None:
            self.trace(describe_source(item))
        while True:
            began = time.perf_counter()
            outer = CALL.enter(self.info, (item,), (reference,), rng)
            try:
                made = self.function(item) if made is None else made
                part = next(made)
                if part is None and self.makes:
                    raise self._none("yield")
            except (StopIteration, SkipSample):
                return
            except Exception as error:  # noqa: BLE001 - `_failed` raises what is not tolerated
                self._failed(error, item, cursor())
                return
            finally:
                rng = self.info.call.rng
                CALL.leave(outer)
                if self.activity is not None:
                    self.profiler.add(self.activity, time.perf_counter() - began)
            if self.on_failure is not None:
                setattr(cursor(), self.counter, 0)
            yield part

    def _none(self, verb: str) -> SampleError:
        """Return the error for a function that returned, or yielded, None."""
        name = (CALL.function or self.info).name  # `BatchAndEncode` calls two functions
        what = f"{name}: it {verb}ed None. {verb.capitalize()} {self.makes}"
        return SampleError(f"{what}, or raise SkipSample to leave it out.")

    def _failed(self, error: Exception, item: Any, cursor: Cursor) -> None:
        add_note(error, f"while {self.doing} {describe_source(item)}")
        if self.on_failure is None or isinstance(error, SpecError):
            raise _not_an_end(error, self.name, item)
        failures = getattr(cursor, self.counter) + 1
        setattr(cursor, self.counter, failures)
        self.on_failure.handle(self.name, error, item, failures)


class Measure:
    """A user function that measures a document or cuts a part of it.

    During the call, `sample_rng()` knows the document, the first argument. Errors are not handled.
    """

    def __init__(self, function: Callable[..., Any], context: Context) -> None:
        self.function = function
        self.reference: ItemRef = ()  # of the sample of the document
        self.info = FunctionInfo(context.seed, name_of(function), context.cache)

    def __call__(self, document: Any, *others: Any) -> Any:
        """Return the function's result."""
        outer = CALL.enter(self.info, (document,), (self.reference,))
        try:
            return self.function(document, *others)
        except StopIteration as error:
            raise _not_an_end(error, self.info.name, document) from error
        finally:
            CALL.leave(outer)


def _not_an_end(error: Exception, name: str, item: Any) -> Exception:
    """Return an error to raise: a StopIteration of a function would end the stream silently."""
    if not isinstance(error, StopIteration):
        return error
    found = FatalSampleError(
        f"{name}: it raised StopIteration for {describe_source(item)}. Give `next` a default, or "
        f"catch it."
    )
    found.__cause__ = error
    return found


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function or method, or of the class of another callable."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def restore_key(item: Any) -> tuple[Any, ...] | None:
    """Return the identity of a sample, or of the first sample of a list; None if it has none.

    Reading sets it to (leaf id, epoch, index in the leaf). A sample made of several samples has
    their identities, nested.
    """
    found = sample_field(first_of(item), RESTORE_KEY)
    return found if isinstance(found, tuple) and found else None
