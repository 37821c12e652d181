"""The rules of steps over a run: one for all of it, or one for each of its stages.

Stages that count steps begin where the steps before have ended, which nobody knows before they
are there. So a run goes from stage to stage in the trainer's process: at a boundary the lanes are
at the place after the last micro-batch of the last step, whatever was drawn ahead, and from there
they are built anew, in the next stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from attrs import evolve, frozen

from energy_data.errors import SpecError
from energy_data.loading.run import Run
from energy_data.loading.step_known import Foreknown, Run_, foreknown, in_shares
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.quotas import seen_from
from energy_data.steps.rules import DocsPerStep, Rules

_ALIKE = ("emit", "timeout_s")


@frozen(kw_only=True)
class StepStage:
    """A part of the run in which one rule holds."""

    first: int  # step
    rules: DocsPerStep
    run: Run[Any]  # of this part alone; to ask what its micro-batches are like

    @property
    def foreknown(self) -> Foreknown | None:
        """What is known of its micro-batches, by their number in it."""
        return foreknown(self.run, self.rules)


@frozen
class StepStages:
    """All parts of a run, in their order."""

    stages: tuple[StepStage, ...]
    end: int | None = None  # the first step after them
    path: str | None = None  # of the stages in the tree; None: it has none that count steps
    counted: StagedSpec | None = None  # stages that count micro-batches

    @classmethod
    def of(cls, run: Run[Any], rules: Rules) -> StepStages:
        """Return the parts of a run. SpecError if the rules do not fit it."""
        ranks = run.worker_config.world_size
        found = stages_in_steps(run)
        if found is None:
            if not isinstance(rules, DocsPerStep):
                raise SpecError(
                    f"docs_per_step: rules by the names of stages ({', '.join(rules)}) are for "
                    f"stages that count steps; this run has none. Pass one rule."
                )
            whole = StepStage(first=0, rules=_resolved(rules, ranks), run=run)
            specs = (inner for _, inner in run.spec.walk() if isinstance(inner, StagedSpec))
            return cls((whole,), counted=next(specs, None))
        path, spec = found
        by_name = rules_of_stages(spec, rules)
        stages = tuple(
            StepStage(
                first=stage.begin,
                rules=_resolved(_from(by_name[stage.name], stage.begin), ranks),
                run=evolve(run, spec=stage.of, docs_per_step=None),
            )
            for stage in spec.stages
        )
        return cls(stages, spec.stages[-1].end, "/".join(("root", *path)))

    def number_at(self, step: int) -> int:
        """Return the number of the part that a step is in; one past the last: the run is over."""
        if self.end is not None and step >= self.end:
            return len(self.stages)
        return bisect_right(self.stages, step, key=lambda stage: stage.first) - 1

    def maker_of(self, batch: int) -> int | None:
        """Return the stage that makes a micro-batch of the run, if stages count these.

        In a ramp from pipeline to pipeline it is one of two, step by step. After the end it is
        none that there is: the last, and one more.
        """
        if self.counted is None:
            return None
        number = self.counted.stage_of(batch)
        ended = number == len(self.counted.stages)
        return number if ended else self.counted.maker_of(number, batch)

    def at(self, step: int) -> StepStage:
        """Return the part that a step is in; after the end, the last."""
        return self.stages[min(self.number_at(step), len(self.stages) - 1)]

    def ends_with(self, step: int) -> bool:
        """Return whether a step is the last of its part."""
        return self.number_at(step + 1) != self.number_at(step)


def stages_in_steps(run: Run[Any]) -> tuple[tuple[str, ...], StagedSpec] | None:
    """Return the stages of a run with their path, if they count steps."""
    for path, inner in run.spec.walk():
        if isinstance(inner, StagedSpec) and inner.counts_steps:
            return path, inner
    return None


def rules_of_stages(spec: StagedSpec, rules: Rules) -> dict[str, DocsPerStep]:
    """Return the rule of each stage, its steps counted from the stage's beginning.

    A single rule holds for the run: its target counts from there. SpecError if rules do not fit.
    """
    if isinstance(rules, DocsPerStep):
        found = {
            stage.name: evolve(rules, target=seen_from(rules.target, stage.begin))
            for stage in spec.stages
        }
    else:
        names = [stage.name for stage in spec.stages]
        if unknown := [name for name in rules if name not in names]:
            raise SpecError(
                f"docs_per_step: there is no stage {unknown[0]!r}, there are {', '.join(names)}."
            )
        like = next(iter(rules.values()), None)
        found = {stage.name: rules.get(stage.name) or _plain(stage, like) for stage in spec.stages}
    if faults := list(_wrong(found)):
        raise SpecError(faults)
    return found


def _plain(stage: Stage, like: DocsPerStep | None) -> DocsPerStep:
    """Return the rule of a stage whose steps are of one size."""
    if stage.microbatches_per_step is None:
        raise SpecError(
            f"docs_per_step: stage {stage.name!r} has no docs_per_step and no "
            f"microbatches_per_step, so nobody knows what its steps are. Give it one of them."
        )
    rules = DocsPerStep(target=stage.microbatches_per_step, count="microbatches")
    facts = (*_ALIKE, "lookahead")
    return rules if like is None else evolve(rules, **{n: getattr(like, n) for n in facts})


def _wrong(by_name: Mapping[str, DocsPerStep]) -> Iterator[str]:
    first = next(iter(by_name.values()))
    for name, rules in by_name.items():
        for fact in _ALIKE:
            if getattr(rules, fact) != getattr(first, fact):
                yield (
                    f"docs_per_step: {fact} is {getattr(rules, fact)!r} in stage {name!r}, and "
                    f"{getattr(first, fact)!r} in the first: it is of the run. Make them equal."
                )
        if rules.known is not None:
            yield (
                f"docs_per_step: stage {name!r} has `known`, but with which micro-batch of the run "
                f"a stage begins nobody knows beforehand. Leave it out."
            )


def _from(rules: DocsPerStep, first: int) -> DocsPerStep:
    """Return a rule that counts from step `first` as one that counts from the run's beginning."""
    return evolve(rules, target=seen_from(rules.target, -first))


def _resolved(rules: DocsPerStep, ranks: int) -> DocsPerStep:
    size = rules.round_size(ranks)
    if size % ranks:
        raise SpecError(
            f"docs_per_step: {ranks} ranks cannot deal out {size} shares of a step evenly. Use a "
            f"number of ranks that divides shares."
        )
    if rules.count == "microbatches" and any(target % size for _, target in rules.target):
        raise SpecError(
            f"docs_per_step: steps of {[target for _, target in rules.target]} micro-batches of "
            f"all ranks are not whole rounds of {size}. Make them multiples of it."
        )
    return evolve(rules, shares=size) if rules.mode == "exact" else rules


def for_steps(run: Run_, rules: Rules) -> Run_:
    """Return the run with its batches cut into shares of steps where these are exact."""
    found = stages_in_steps(run)
    if found is None:
        return in_shares(run, rules) if _is_exact(rules) else run
    path, spec = found
    by_name = rules_of_stages(spec, rules)
    if not any(map(_is_exact, by_name.values())):
        return run
    if path:
        raise SpecError(
            f"docs_per_step: mode 'exact' cuts the batches of stages, and a {run.spec.kind} "
            f"stands over them. Put it into the stages, or use mode 'at_least'."
        )
    stages = [_in_shares(run, stage, by_name[stage.name]) for stage in spec.stages]
    return evolve(run, spec=evolve(spec, stages=tuple(stages)))


def _in_shares(run: Run[Any], stage: Stage, rules: DocsPerStep) -> Stage:
    if not _is_exact(rules):
        return stage
    alone = evolve(run, spec=stage.of, docs_per_step=None)
    return evolve(stage, of=in_shares(alone, rules).spec)


def _is_exact(rules: Rules) -> TypeGuard[DocsPerStep]:
    return isinstance(rules, DocsPerStep) and rules.mode == "exact"
