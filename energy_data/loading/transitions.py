"""Logs the plan of stages at the start of a run, and each transition, on rank 0."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from energy_data.core.cursor import State
from energy_data.loading.stats import Counting
from energy_data.nodes.leaf_history import held
from energy_data.nodes.run_plan import RULE, SHOWN_LEAVES, Plan, PlannedStage, data_end_note
from energy_data.nodes.staged import StagedNode

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

Places = Callable[[], Mapping[int, State]]


class Transitions:
    """Logs each transition once. Costs one look-up per batch."""

    def __init__(self, dataset: SavableDataset[object], counting: Counting) -> None:
        self.plan = Plan(dataset.spec)
        # Replaced where stages count steps.
        self.stage_of: Callable[[int], PlannedStage | None] = self.plan.stage_of
        self.is_logged = self.plan.is_staged and dataset.worker_config.rank == 0
        self._counting = counting
        self._current: int | None = None  # number of the stage that was logged last

    def restart(self) -> None:
        """Log the plan again with the next batch, because the position was restored."""
        self._current = None

    def passed(self, batch: int, num_lanes: int, places: Places) -> None:
        """Log the transition, if micro-batch `batch` of the run is the first of a stage.

        places: returns the state of each lane of this rank before the micro-batch.
        """
        if not self.is_logged or not log.isEnabledFor(logging.INFO):
            return
        now = self.stage_of(batch)
        if now is None or now.number == self._current:
            return
        if self._current is None:
            for line in self.plan.lines():
                log.info("%s", line)
            log.info("micro-batch %s is of stage %r (%d)", f"{batch:,}", now.name, now.number + 1)
        else:
            for line in self._switched(batch, self._current, now.number, num_lanes, places()):
                log.info("%s", line)
        self._current = now.number

    def _switched(
        self, batch: int, before: int, number: int, num_lanes: int, places: Mapping[int, State]
    ) -> Iterator[str]:
        left, now = self.plan.stages[before], self.plan.stages[number]
        step = "" if now.first_step is None else f"Step {now.first_step:,}, "
        yield from (RULE, "STAGE TRANSITION", RULE)
        yield f"{step}micro-batch {batch:,}: {left.name!r} -> {now.name!r}"
        if text := data_end_note(left.stage):
            yield f"  {left.name!r} {text}"
        for change in self.plan.changes(number):
            yield f"  {change}"
        known = self._counting.leaves(places, num_lanes, {})
        drawn = [(one.leaf.id, known[one.leaf.id]) for one in now.leaves if one.leaf.id in known]
        if now.stage.on_enter == "continue":
            for leaf_id, stats in [pair for pair in drawn if pair[1].drawn][:SHOWN_LEAVES]:
                yield (
                    f"  leaf {leaf_id} continues after {stats.drawn:,} samples of this rank "
                    f"({stats.epochs:.3g} of an epoch)"
                )
        if held_back := self._held(left.name, places, num_lanes):
            restarted = left.stage.on_enter == "restart"
            what = "are lost" if restarted else "return to their leaves"
            yield f"  {held_back:,} samples of this rank were drawn and not used: they {what}"
        yield RULE

    def _held(self, name: str, places: Mapping[int, State], num_lanes: int) -> int:
        """Return the number of samples that a stage has drawn and not used in a batch."""
        return sum(1 for node in self._stages(places, num_lanes) for _ in held(node.children[name]))

    def _stages(self, places: Mapping[int, State], num_lanes: int) -> Iterator[StagedNode]:
        for root in self._counting.at(places, num_lanes).values():
            yield from (node for _, node in root.walk() if isinstance(node, StagedNode))
