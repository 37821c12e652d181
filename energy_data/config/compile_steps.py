"""Compiling `docs_per_step`, which stands over all of a split."""

from __future__ import annotations

from typing import Any

from energy_data.config.builder import Builder
from energy_data.config.kind_docs_per_step import DocsPerStepDefinition
from energy_data.config.kind_staged import Staged, StagedDefinition
from energy_data.config.step_size import FOR_STEPS
from energy_data.config.twigs import Branch, Twig
from energy_data.order.step_rules import DocsPerStep


def rules_of(tree: Branch | Twig) -> DocsPerStep | None:
    """Return the rules of a node that groups micro-batches into steps, None for another."""
    definition = tree.definition
    if isinstance(definition, DocsPerStepDefinition):
        return definition.docs_per_step.rules()
    return None


def below_steps(tree: Branch | Twig) -> Branch | Twig:
    """Return the tree below a node that groups micro-batches; the loader does that."""
    if isinstance(tree, Branch) and isinstance(tree.definition, DocsPerStepDefinition):
        return tree.children[0]
    return tree


def counts_steps(tree: Branch | Twig, pipeline: Builder[Any]) -> bool:
    """Return whether the stages of a split count the steps of `docs_per_step`.

    They do with `unit: steps`, if steps are exact or nothing else gives the size of a step.
    """
    below, rules = below_steps(tree), rules_of(tree)
    if rules is None or not isinstance(below.definition, StagedDefinition):
        return False
    if below.definition.staged.unit != "steps":
        return False
    return rules.mode == "exact" or (
        pipeline.microbatches_per_step is None and not _has_step_size(below.definition.staged)
    )


def _has_step_size(staged: Staged) -> bool:
    sizes = [staged.microbatches_per_step, staged.global_batch_size]
    params = {name for part in staged.stages for name in part.params}
    return any(value is not None for value in sizes) or bool(params & set(FOR_STEPS))
