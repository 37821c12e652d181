"""A tree as it is written in YAML, with nested files written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from energy_data.config.kind_join import JoinDefinition
from energy_data.config.subset import percent
from energy_data.config.twigs import Branch, DatasetPart, Joined, Twig


def plain_tree(tree: Branch | Twig) -> dict[str, Any]:
    """Return a tree as it is written in YAML."""
    if isinstance(tree, Twig):
        return _plain_leaf(tree)
    children = []
    for child, part in zip(tree.children, tree.definition.parts, strict=True):
        children.append({**part.plain(), **plain_tree(child)})
    return tree.definition.plain(children)


def _plain_leaf(leaf: Twig) -> dict[str, Any]:
    plain = _plain_place(leaf.of, leaf.subflavors) if isinstance(leaf.of, DatasetPart) else {}
    if isinstance(leaf.definition, JoinDefinition) and not isinstance(leaf.of, DatasetPart):
        plain = _plain_join(leaf.of, leaf.definition)
    plain |= {"id": leaf.id}
    if leaf.epochs != 1:
        plain["shuffle_over_epochs_multiplier"] = leaf.epochs
    for name in ("tokens_per_sample", "max_repetitions"):
        if (said := getattr(leaf.definition, name)) is not None:
            plain[name] = said
    if leaf.aux:
        plain["aux"] = {name: store.plain() for name, store in leaf.aux.items()}
    subset = leaf.subset
    relative = {"range": [percent(subset.low), percent(subset.high)]}
    if not subset.is_absolute:
        return {**plain, "subset": relative} if subset.is_relative else plain
    if subset.end is not None:
        return {**plain, "subset": {"range": list(subset.bounds(subset.end))}}
    plain["subset"] = {"range": [subset.first, "end"]}
    # A part of a range whose end is not known takes two nodes to write.
    return {"concat": [plain], "subset": relative} if subset.is_relative else plain


def _plain_place(place: DatasetPart, subflavors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        "path": place.path,
        "split_part": place.split_part,
        "dataset_config": place.dataset_config,
        "split_config": place.split_config,
        "subflavors": dict(subflavors) or None,
    }
    return {name: value for name, value in plain.items() if value is not None}


def _plain_join(members: Sequence[Joined], definition: JoinDefinition) -> dict[str, Any]:
    written = [
        _plain_place(member.of, member.subflavors)
        | ({} if member.nonmatch == "error" else {"nonmatch": member.nonmatch})
        for member in members
    ]
    names = definition.join.names
    joiner = {} if definition.joiner is None else {"joiner": definition.joiner.plain()}
    return {"join": dict(zip(names, written, strict=True)) if names else written, **joiner}
