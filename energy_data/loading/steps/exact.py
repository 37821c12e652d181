"""Mode "exact": batches are cut into shares of steps."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.steps.counts import Counts, KnownCounts, makes_full_batches
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.nodes.share import ShareSpec
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep, share_size, target_from


def cut_into_shares(spec: Spec, rules: DocsPerStep, shares: int) -> Spec:
    """Return the tree with its batches cut into shares of steps; SpecError if that is impossible.

    The batches of stages that count steps are cut in each stage.
    """
    if not isinstance(spec, StagedSpec):
        _check_tree(spec)
        return _cut(spec, rules, shares, 0)
    if not spec.counts_steps:
        raise SpecError(
            "docs_per_step: mode 'exact' cuts the batches of stages that count steps; these count "
            "micro-batches, and would begin inside a step. Write `unit: steps` (in Python "
            "`Stage(counts='steps')`), or use mode 'at_least'."
        )
    stages = tuple(
        evolve(stage, of=_cut(stage.of, rules, shares, stage.begin)) for stage in spec.stages
    )
    return evolve(spec, stages=stages)


def _check_tree(spec: Spec) -> None:
    if any(isinstance(inner, StagedSpec) for _, inner in spec.walk()):
        raise SpecError(
            f"docs_per_step: mode 'exact' cuts the batches of stages, and a {spec.kind} "
            f"stands over them. Put it into the stages, or use mode 'at_least'."
        )


def _cut(spec: Spec, rules: DocsPerStep, shares: int, first_step: int) -> ShareSpec:
    ends = any(isinstance(each, ReferencesSpec) and each.deal for _, each in spec.walk())
    if not isinstance(spec, BatchSpec | GroupSpec) or ends or getattr(spec, "aligned", False):
        raise SpecError(
            "docs_per_step: mode 'exact' cuts the batches of an endless training stream (repeat="
            "True); this tree gives other ones. Use mode 'at_least'."
        )
    _check_packs(spec, rules)
    is_batch = isinstance(spec, BatchSpec)
    return ShareSpec(
        of=spec.of if is_batch else spec,
        batch_size=spec.batch_size or 1,
        collate=spec.collate if is_batch else None,
        target=target_from(rules.target, first_step),
        shares=shares,
        count="groups" if rules.count == "groups" else "documents",
        on_failure=spec.on_failure if is_batch else None,
        shows_none=isinstance(spec, BatchSpec) and spec.shows_none,
    )


def _check_packs(spec: BatchSpec | GroupSpec, rules: DocsPerStep) -> None:
    """Raise SpecError if a share of a step cannot be filled exactly."""
    if rules.count == "groups":
        if isinstance(spec, BatchSpec):
            raise SpecError(
                "docs_per_step: mode 'exact' with `count: groups` gives a number of batches of one "
                "group each, and nothing groups samples here. Give the task encoder a "
                "`batch_group_criterion`, or count documents."
            )
        return
    below = spec.of if isinstance(spec, BatchSpec) else spec
    for _, each in spec.of.walk():
        if isinstance(each, PackSpec | SelectPackSpec) and each is not below:
            raise SpecError(
                f"docs_per_step: mode 'exact' closes packs where a share of the step is full; the "
                f"{each.kind} of this tree closes packs by itself. Pack directly below the "
                f"batches, or use mode 'at_least'."
            )


def known_shares(spec: Any) -> KnownCounts | None:
    """Return the contents of shares if no data is needed to know them, else None."""
    if not isinstance(spec, ShareSpec) or not makes_full_batches(spec):
        return None

    def of_share(number: int) -> tuple[int, Counts]:
        size = share_size(number, spec.target, spec.shares)
        return -(-size // spec.batch_size), Counts(size, size, None, None, None)

    return of_share
