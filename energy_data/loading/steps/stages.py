"""The stages of a run that is grouped into steps, and what the mode of steps changes in the run.

Stages that count steps begin where the steps before have ended, which is known only once the run is
there. The trainer's process then moves the run from stage to stage: at a boundary it moves the
lanes to the position after the last micro-batch of the last step, whatever was drawn ahead, and
builds them in the next stage.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, TypeVar

from attrs import evolve, frozen

from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.steps import exact, planner
from energy_data.loading.steps.planner import KnownCounts
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

T = TypeVar("T")


@frozen
class StepStages:
    """The stages of a run. A run without stages that count steps has one."""

    specs: tuple[Spec, ...]  # of each stage
    first_steps: tuple[int, ...] = (0,)
    end: int | None = None  # the first step after them
    counts_steps: bool = False
    counted: StagedSpec | None = None  # stages that count micro-batches

    @classmethod
    def of(cls, spec: Spec) -> StepStages:
        """Return the stages of a tree."""
        staged = next((inner for _, inner in spec.walk() if isinstance(inner, StagedSpec)), None)
        if staged is None or not staged.counts_steps:
            return cls((spec,), counted=staged)
        specs = tuple(stage.of for stage in staged.stages)
        first_steps = tuple(stage.begin for stage in staged.stages)
        return cls(specs, first_steps, staged.stages[-1].end, counts_steps=True)

    def number_at(self, step: int) -> int:
        """Return the number of the stage of a step; one past the last if the run is over."""
        if self.end is not None and step >= self.end:
            return len(self.specs)
        return bisect_right(self.first_steps, step) - 1

    def ends_with(self, step: int) -> bool:
        """Return whether a step is the last of its stage."""
        return self.number_at(step + 1) != self.number_at(step)

    def stage_of(self, batch: int) -> int | None:
        """Return the stage that makes a micro-batch of the run, if stages count micro-batches.

        After the end it is one more than the last.
        """
        return None if self.counted is None else self.counted.stage_of(batch)


def resolve_rules(rules: DocsPerStep, ranks: int) -> DocsPerStep:
    """Return the rules with the shares of mode "exact". SpecError if ranks do not fit them."""
    size = rules.round_size(ranks)
    if size % ranks:
        raise SpecError(
            f"docs_per_step: {ranks} ranks cannot divide {size} shares of a step evenly. Use a "
            f"number of ranks that divides shares."
        )
    if rules.count == "microbatches" and any(target % size for _, target in rules.target):
        raise SpecError(
            f"docs_per_step: steps of {[target for _, target in rules.target]} micro-batches of "
            f"all ranks are not whole rounds of {size}. Make them multiples of it."
        )
    return evolve(rules, shares=size) if rules.mode == "exact" else rules


def for_steps(dataset: SavableDataset[T], rules: DocsPerStep) -> SavableDataset[T]:
    """Return the dataset that a loader groups into steps: mode "exact" cuts its batches."""
    if rules.mode != "exact":
        return dataset
    shares = resolve_rules(rules, dataset.worker_config.world_size).round_size(0)
    return dataset.replace(spec=exact.cut_into_shares(dataset.spec, rules, shares))


def known_counts(spec: Spec, rules: DocsPerStep) -> KnownCounts | None:
    """Return the contents of micro-batches, or shares, if no data is needed to know them."""
    return exact.known_shares(spec) if rules.mode == "exact" else planner.known_counts(spec, rules)
