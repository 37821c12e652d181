"""What is told of the stages of a run: the plan when it begins, and each switch; by rank 0."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from energy_data.core.cursor import State
from energy_data.loading.run import Run
from energy_data.loading.stats import Counting
from energy_data.nodes.leaf_history import held
from energy_data.nodes.run_plan import RULE, SHOWN_LEAVES, Plan, PlannedStage, said_of_data
from energy_data.nodes.staged import StagedNode

log = logging.getLogger(__name__)

Places = Callable[[], Mapping[int, State]]


class Transitions:
    """Knows which stage was told of last. Costs one look-up per batch."""

    def __init__(self, run: Run[object], counting: Counting) -> None:
        self.plan = Plan(run.spec)
        # Replaced where stages count steps.
        self.stage_of: Callable[[int], PlannedStage | None] = self.plan.stage_of
        self.tells = self.plan.is_staged and run.worker_config.rank == 0
        self._counting = counting
        self._told: int | None = None  # number of a stage

    def anew(self) -> None:
        """Tell the plan again with the next batch: the run has begun, or was restored."""
        self._told = None

    def passed(self, batch: int, num_lanes: int, places: Places) -> None:
        """Note that micro-batch `batch` of the run was handed over.

        places: returns the place of each lane of this rank before it.
        """
        if not self.tells or not log.isEnabledFor(logging.INFO):
            return
        now = self.stage_of(batch)
        if now is None or now.number == self._told:
            return
        if self._told is None:
            for line in self.plan.lines():
                log.info("%s", line)
            log.info("micro-batch %s is of stage %r (%d)", f"{batch:,}", now.name, now.number + 1)
        else:
            for line in self._switched(batch, self._told, now.number, num_lanes, places()):
                log.info("%s", line)
        self._told = now.number

    def _switched(
        self, batch: int, before: int, number: int, num_lanes: int, places: Mapping[int, State]
    ) -> Iterator[str]:
        left, now = self.plan.stages[before], self.plan.stages[number]
        step = "" if now.first_step is None else f"Step {now.first_step:,}, "
        yield from (RULE, "STAGE TRANSITION", RULE)
        yield f"{step}micro-batch {batch:,}: {left.name!r} -> {now.name!r}"
        if told := said_of_data(left.stage):
            yield f"  {left.name!r} {told}"
        for change in self.plan.changes(number):
            yield f"  {change}"
        known = self._counting.leaves(places, num_lanes, {})
        drawn = [(one.leaf.id, known[one.leaf.id]) for one in now.leaves if one.leaf.id in known]
        if now.stage.on_enter == "continue":
            for leaf_id, stats in [pair for pair in drawn if pair[1].drawn][:SHOWN_LEAVES]:
                yield (
                    f"  leaf {leaf_id} goes on after {stats.drawn:,} samples of this rank "
                    f"({stats.epochs:.3g} of an epoch)"
                )
        if held_back := self._held(left.name, places, num_lanes):
            restarted = left.stage.on_enter == "restart"
            what = "are lost" if restarted else "go back to their leaves"
            yield f"  {held_back:,} samples of this rank were drawn and not returned: they {what}"
        yield RULE

    def _held(self, name: str, places: Mapping[int, State], num_lanes: int) -> int:
        """Return how many samples a stage has drawn and not returned."""
        return sum(1 for node in self._stages(places, num_lanes) for _ in held(node.children[name]))

    def _stages(self, places: Mapping[int, State], num_lanes: int) -> Iterator[StagedNode]:
        for root in self._counting.at(places, num_lanes).values():
            yield from (node for _, node in root.walk() if isinstance(node, StagedNode))
