"""Where a rank is in the run, and how it goes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from energy_data.core.node import State
from energy_data.loading.checkpoint.history import Gone
from energy_data.loading.epoch_end import last_whole_round
from energy_data.loading.lanes import Host, Nodes
from energy_data.loading.run import Run

T_batch = TypeVar("T_batch")


@dataclass
class Place:
    """Where the run is: micro-batch numbers, counted over all ranks."""

    epoch: int = 0  # iterations finished
    begun: int = 0  # the first micro-batch of this epoch
    batch: int = 0  # the next micro-batch; this rank's next is the first of its own from here on
    phase: int = 0  # rounds of all ranks begin at micro-batches = phase (mod ranks)

    def at(self, batch: int) -> Place:
        """Return the place of another micro-batch; a sixth of the work of `replace`, per batch."""
        return Place(self.epoch, self.begun, batch, self.phase)


class Placed(Generic[T_batch]):
    """What is somewhere in the run: a place, and lanes that are there. A part of `Loader`."""

    def __init__(self, dataset: Run[T_batch], host: Host) -> None:
        self.dataset, self._host = dataset, host
        self._num_lanes = dataset.worker_config.num_lanes
        self._place = Place()
        self._ended: set[int] = set()  # lanes
        self._uneven: tuple[int, int] | None = None  # see `last_whole_round`
        self._start: State = {}  # the place of a lane that has not begun
        self._gone = Gone()
        self._moves = 0
        self._arrive: Callable[[], None] | None = None  # at the place gone to, until it is done
        self._untold = False  # whether a pass has ended, and nobody was told

    @property
    def _next(self) -> int:
        """The number in the run of this rank's next micro-batch."""
        config, batch = self.dataset.worker_config, self._place.batch
        return batch + (config.rank - batch) % config.world_size

    def _build(self, num_lanes: int) -> None:
        """Begin at the beginning, with so many lanes in the run."""
        config = self.dataset.worker_config
        hosted = range(config.rank, num_lanes, config.world_size)
        nodes = self.dataset.build(hosted, num_lanes, profiler=self._host.profiler)
        start = self.dataset.start(num_lanes)

        def begin() -> None:
            self._gone, self._start = Gone(), start
            self._begin_run()

        self._move(nodes, num_lanes, Place(), begin)

    def _begin_run(self) -> None:
        """Do what else is to be done at the beginning of the run."""

    def _move(self, nodes: Nodes, num_lanes: int, place: Place, then: Callable[[], None]) -> None:
        """Go on elsewhere, with these lanes; all that knows of the place goes, or nothing.

        A signal handler may raise half-way. Whoever asks next then goes the whole way again, so
        what `then` does can be done twice.
        """
        uneven = last_whole_round(self.dataset, place.epoch, num_lanes)
        moves = self._moves + 1

        def arrive() -> None:
            self._num_lanes, self._place, self._ended, self._uneven = (
                num_lanes,
                place,
                set(),
                uneven,
            )
            self._moves, self._untold = moves, False
            self._host.adopt(nodes, num_lanes, self._next)
            then()

        self._arrive = arrive
        self._finish_move()

    def _finish_move(self) -> None:
        """Do what is left of a move that was interrupted; before the place is asked for."""
        if self._arrive is not None:
            self._arrive()
            self._arrive = None

    def _owe_end(self) -> None:
        self._untold = True

    def _tell_end(self) -> None:
        """Raise StopIteration if a pass has ended and nobody was told."""
        if self._untold:
            self._untold = False
            raise StopIteration

    def _begin_epoch(self, then: Callable[[], None]) -> None:
        """Go on in the next pass, from where the lanes are in this one."""
        places = self._host.states()
        nodes = self.dataset.build(places, self._num_lanes, profiler=self._host.profiler)
        for lane, node in nodes.items():
            node.load_state_dict(places[lane])
            node.rewind()
        self._move(nodes, self._num_lanes, Place(epoch=self._place.epoch + 1), then)
