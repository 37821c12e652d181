"""Iterations over a loader: each has the loader's place, to be saved and loaded at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, TypeVar

T_batch = TypeVar("T_batch")
T_co = TypeVar("T_co", covariant=True)

OnMismatch = Literal["error", "keep_matching", "restart"]


class Batches(Protocol[T_co]):
    """What is iterated over: a loader."""

    def next_batch(self) -> T_co:
        """Return the next batch; StopIteration if there is none."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed over."""

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Go to a saved place."""


class LoaderIterator(Iterator[T_batch]):
    """One iteration over a loader; its place is the loader's."""

    def __init__(self, loader: Batches[T_batch]) -> None:
        self._loader = loader
        self._done = False

    def __next__(self) -> T_batch:
        if self._done:
            raise StopIteration
        try:
            return self._loader.next_batch()
        except StopIteration:
            self._done = True
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's place; see `Loader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Go to a saved place; the next batch of this iteration is the saved one."""
        self._done = False
        self._loader.load_state_dict(state, on_mismatch=on_mismatch)


class ShownIterator(LoaderIterator[T_batch]):
    """An iteration that somebody looks on at; what is shown begins anew at a place loaded."""

    def __init__(
        self,
        loader: Batches[T_batch],
        batches: LoaderIterator[T_batch],
        show: Callable[[Iterator[T_batch]], Iterator[T_batch]],
    ) -> None:
        super().__init__(loader)
        self._batches, self._show = batches, show
        self._shown = show(batches)

    def __next__(self) -> T_batch:
        try:
            return next(self._shown)
        except StopIteration:
            raise
        except BaseException:  # which has ended what is shown, and not what is iterated over
            self._shown = self._show(self._batches)
            raise

    def load_state_dict(self, state: Any, *, on_mismatch: OnMismatch = "error") -> None:
        """Go to a saved place; see `LoaderIterator.load_state_dict`."""
        self._batches.load_state_dict(state, on_mismatch=on_mismatch)
        self._shown = self._show(self._batches)
