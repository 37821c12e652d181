"""Stages that end with their data (`on_exhausted: advance`): where that is.

Lanes have shares of unequal size, and all ranks must leave a stage at the same micro-batch. So a
stage ends, in whole steps, before the first micro-batch for which its lane has not enough samples
left. All of it is arithmetic: no lane has to tell another that it has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.stage import DataEnd, Stage
from energy_data.nodes.staged import context_of


@frozen(kw_only=True)
class Lanes:
    """What the lanes of a run have for a stage: one pass over its data, where that has an end."""

    begin: int  # the first micro-batch of the stage
    batches: tuple[int, ...]  # whole micro-batches of each lane
    samples: tuple[int, ...] | None  # of each lane; None: not known
    batch_size: int

    @property
    def end(self) -> int:
        """The first micro-batch of the run, from `begin` on, that cannot be made."""
        lanes = len(self.batches)
        return min(
            first + self.batches[first % lanes] * lanes
            for first in range(self.begin, self.begin + lanes)
        )

    def unread(self, end: int) -> int | None:
        """Return how many samples all lanes together have left at micro-batch `end`."""
        if self.samples is None:
            return None
        return sum(self.samples) - (end - self.begin) * self.batch_size


def lanes_of(stage: Stage, around: Context) -> Lanes:
    """Return what each lane has for a stage.

    around: of the run, with its seed and its number of lanes. Builds the order of every lane, some
    0.1 ms for each with few leaves; reads no data. Raises SpecError if it cannot be known.
    """
    contexts = [context_of(stage, around.in_lane(lane)) for lane in range(around.lanes)]
    batches = tuple(stage.of.items_per_lane(context) for context in contexts)
    of, samples = stage.of, None
    if isinstance(of, BatchSpec):
        samples = tuple(of.of.items_per_lane(context.under("of")) for context in contexts)
    size = of.batch_size if isinstance(of, BatchSpec) else 0
    return Lanes(begin=stage.begin, batches=batches, samples=samples, batch_size=size)


def ended(stage: Stage, around: Context) -> Stage:
    """Return the stage, ending with its data if they end before it does.

    Raises SpecError in words for one stage: if it cannot be known, or if there is not one step.
    """
    lanes = lanes_of(stage, around)
    step = stage.microbatches_per_step or 1
    end = stage.begin + (lanes.end - stage.begin) // step * step
    if stage.end is not None and stage.end <= end:
        return stage
    if end == stage.begin:
        raise SpecError(
            f"its data do not fill one step: of {step} micro-batches, only "
            f"{lanes.end - stage.begin} have all their samples before a lane of {around.lanes} has "
            f"none left. Give it more data, or take it out"
        )
    return evolve(stage, end=end, data_end=DataEnd(asked=stage.end, unread=lanes.unread(end)))


def ended_with_data(stages: Sequence[Stage], around: Context) -> tuple[Stage, ...]:
    """Return the stages, each ending with its data if these end first, and the next following it.

    Stages keep their lengths, but for that. around: `Context(seed=..., lanes=...)` of the run.
    Raises SpecError if where one ends cannot be known.
    """
    return tuple(_in_turn(stages, around))


def _in_turn(stages: Sequence[Stage], around: Context) -> Iterator[Stage]:
    begin = 0
    for stage in stages:
        end = None if stage.num_batches is None else begin + stage.num_batches
        try:
            made = ended(evolve(stage, begin=begin, end=end), around)
        except SpecError as error:
            raise SpecError(f"staged: stage {stage.name!r}: {error}.") from error
        yield made
        begin = made.end if made.end is not None else begin


__all__ = ["ended", "ended_with_data", "lanes_of"]
