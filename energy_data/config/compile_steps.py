"""Compiling `docs_per_step`: over all of a split, or in stages, which then count steps."""

from __future__ import annotations

from collections.abc import Iterator

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_docs_per_step import DocsPerStepDefinition
from energy_data.config.kind_staged import StagedDefinition
from energy_data.config.step_size import FOR_STEPS
from energy_data.config.twigs import Branch, Twig
from energy_data.steps.rules import DocsPerStep
from energy_data.tasks.pipeline import Pipeline


def rules_of(tree: Branch | Twig) -> DocsPerStep | None:
    """Return what a node says of steps, if it is one that groups micro-batches."""
    definition = tree.definition
    if isinstance(definition, DocsPerStepDefinition):
        return definition.docs_per_step.rules()
    return None


def below_steps(tree: Branch | Twig) -> Branch | Twig:
    """Return the tree without a node at its top that groups micro-batches: the loader does."""
    if isinstance(tree, Branch) and isinstance(tree.definition, DocsPerStepDefinition):
        return tree.children[0]
    return tree


def rules_of_stages(tree: Branch | Twig, prefix: str = "") -> dict[str, DocsPerStep]:
    """Return the rules of the stages of a tree, by their names."""
    found: dict[str, DocsPerStep] = {}
    for name, child in _stages(tree):
        if (rules := rules_of(child)) is not None:
            found[prefix + name] = rules
        found |= rules_of_stages(child, f"{prefix}{name}.")
    return found


def counts_steps(tree: Branch | Twig, pipeline: Pipeline) -> bool:
    """Return whether the stages of a split count steps of any size.

    So they do if one of them says what its steps are; or if the split does, and there is nothing
    else by which steps could be counted.
    """
    below, rules = below_steps(tree), rules_of(tree)
    if rules_of_stages(below):
        return True
    if rules is None or not isinstance(below.definition, StagedDefinition):
        return False
    if below.definition.staged.unit != "steps":
        return False
    return rules.mode == "exact" or (
        pipeline.microbatches_per_step is None and not _has_step_size(below)
    )


def note_wrong_steps(tree: Branch | Twig, faults: Diagnostics) -> None:
    """Note what cannot be of stages that count steps, and of rules below rules."""
    below, is_grouped = below_steps(tree), rules_of(tree) is not None
    for staged in _staged(below):
        definition = staged.definition
        assert isinstance(definition, StagedDefinition)
        if (unit := definition.staged.unit) != "steps":
            problem = f"stages with `docs_per_step` are counted in steps, found {unit!r}."
            place, where = definition.places["staged"], f"{definition.where}.staged.unit"
            faults.report(place, where, f"{problem} Write `unit: steps`.")
        for _, child in _stages(staged):
            if not isinstance(child.definition, DocsPerStepDefinition):
                continue
            place, where = child.definition.places["docs_per_step"], child.definition.where
            if is_grouped:
                problem = "a `docs_per_step` stands over the stages already. Keep one of them."
                faults.report(place, where, problem)
            if isinstance(below_steps(child).definition, StagedDefinition):
                problem = "it groups the micro-batches of one stage, and holds stages."
                faults.report(place, where, f"{problem} Write it into each of them.")


def _stages(tree: Branch | Twig) -> list[tuple[str, Branch | Twig]]:
    if isinstance(tree, Branch) and isinstance(tree.definition, StagedDefinition):
        return list(zip(tree.definition.names, tree.children, strict=True))
    return []


def _staged(tree: Branch | Twig) -> Iterator[Branch]:
    """Yield the nodes of a tree that have stages, the outer first."""
    if isinstance(tree, Branch) and isinstance(tree.definition, StagedDefinition):
        yield tree
        for child in tree.children:
            yield from _staged(below_steps(child))


def _has_step_size(tree: Branch | Twig) -> bool:
    for each in _staged(tree):
        definition = each.definition
        assert isinstance(definition, StagedDefinition)
        staged = definition.staged
        said = [staged.microbatches_per_step, staged.global_batch_size]
        params = [name for part in staged.stages for name in part.params]
        if any(value is not None for value in said) or set(params) & set(FOR_STEPS):
            return True
    return False
