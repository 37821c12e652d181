"""Copies batches to a device, one ahead of the trainer, on a separate stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from energy_data.core.cursor import State
from energy_data.loading.epoch_end import with_values
from energy_data.loading.lanes import LaneRunner
from energy_data.loading.transport.cuda import Cuda


class _Copy(NamedTuple):
    """A micro-batch that is being copied to the device, or the error in its place."""

    batch: int
    items: Sequence[Any] = ()  # on the device
    tensors: Sequence[torch.Tensor] = ()  # of the items
    event: Any = None  # reached when the copies are done
    error: BaseException | None = None


class OnDevice(LaneRunner):
    """Returns the batches of another lane runner on a device.

    The next batch is copied while the trainer works on the current one. Its memory on the CPU is
    kept until the copy is done. The state of the run is that of the batch handed over, not of the
    one copied ahead.
    """

    def __init__(self, host: LaneRunner, device: torch.device, stride: int, cuda: Cuda) -> None:
        self.profiler = host.profiler
        self._host, self._device, self._stride, self._cuda = host, device, stride, cuda
        self._num_lanes = 1
        self._ended: set[int] = set()
        self._ahead: _Copy | None = None
        self._stream: Any = None
        self._copying: deque[tuple[Any, Any]] = deque()  # event, batch on the CPU kept until then

    @property
    def slots_in_use(self) -> int:  # noqa: D102
        return self._host.slots_in_use

    def adopt(self, places: Mapping[int, State], num_lanes: int, batch: int) -> None:  # noqa: D102
        self._ahead, self._ended, self._num_lanes = None, set(), num_lanes
        self._host.adopt(places, num_lanes, batch)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._host.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        return self._host.states(batch)

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        ahead = self._ahead
        if ahead is None or ahead.batch != batch:
            ahead = self._fetch(lane, batch)
        self._ahead = None
        if ahead.error is not None:
            if isinstance(ahead.error, StopIteration):
                self._ended.add(lane)
            raise ahead.error
        following = batch + self._stride
        if following % self._num_lanes not in self._ended:
            self._ahead = self._fetch(following % self._num_lanes, following)
        if ahead.items:
            self._cuda.await_copies(ahead.event, ahead.tensors, self._device)
        return ahead.items

    def close(self) -> None:  # noqa: D102
        self._copying.clear()
        self._host.close()

    def _fetch(self, lane: int, batch: int) -> _Copy:
        try:
            items = self._host.take(lane, batch)
        except (Exception, StopIteration) as error:  # noqa: BLE001 - raised when the trainer asks for the batch
            return _Copy(batch, error=error)
        if not items:
            return _Copy(batch)
        if self._stream is None:
            self._stream = self._cuda.stream(self._device)
        tensors: list[torch.Tensor] = []

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            tensors.append(self._cuda.copied(tensor, self._device, self._stream))
            return tensors[-1]

        on_device = with_tensors(items[0], copied)
        event = self._cuda.mark(self._stream)
        self._copying.append((event, items))
        while len(self._copying) > 1 and self._copying[0][0].query():
            self._copying.popleft()
        return _Copy(batch, [on_device], tensors, event)


def with_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with `change` applied to every tensor; containers keep their types."""
    return with_values(
        batch,
        lambda value: change(value) if isinstance(value, torch.Tensor) else value,
        into_lists=True,
    )
