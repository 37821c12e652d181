"""A split as one mapping that stands alone: nested files written out, paths absolute, ids given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energy_data.config.kinds import is_below
from energy_data.config.leaves import DatasetPart, LeafUse
from energy_data.config.load import Metadataset
from energy_data.config.rules import STORES
from energy_data.core.recipe import Child, Children, Group, Rule, keys_of
from energy_data.core.spec import Spec


def resolve(metadataset: Metadataset, split: str) -> dict[str, Any]:
    """Return one split as a mapping that stands alone, for `load_metadataset`.

    Nested files are written out, paths are absolute, and every leaf has its id, so that the
    mapping compiles to the same tree. `describe_tree` reports where each leaf comes from.
    """
    return {"splits": {split: plain_node(metadataset.tree(split))}}


def plain_node(tree: Spec) -> dict[str, Any]:
    """Return a tree as it is written in YAML."""
    if isinstance(tree, LeafUse):
        return _plain_leaf(tree)
    keys = plain_keys(tree)
    return {tree.kind: keys} if is_below(type(tree)) else keys


def plain_keys(owner: Any) -> dict[str, Any]:
    """Return the keys of a recipe, a part or a group as they are written in YAML.

    Defaults are left out, except for weights and repetitions.
    """
    plain: dict[str, Any] = {}
    for name, one in keys_of(type(owner)).items():
        value = getattr(owner, one.attribute)
        is_share = name == getattr(owner, "share_key", None)
        if value is None or value == {} or (value == one.default and not is_share):
            continue
        if isinstance(one.holds, Child):
            plain[name] = plain_node(value)
        elif isinstance(one.holds, Children):
            bare = one.holds.part is None
            plain[name] = [
                plain_node(item) if bare else {**plain_keys(item), **plain_node(item.of)}
                for item in value
            ]
        elif isinstance(one.holds, Group):
            plain[name] = plain_keys(value)
        else:
            assert isinstance(one.holds, Rule)
            plain[name] = one.holds.plain(value)
    return plain


def _plain_leaf(leaf: LeafUse) -> dict[str, Any]:
    if isinstance(leaf.of, DatasetPart):
        plain = _plain_part(leaf.of, leaf.subflavors)
    else:
        plain = _plain_join(leaf)
    plain |= {"id": leaf.id}
    if leaf.epochs != 1:
        plain["shuffle_over_epochs_multiplier"] = leaf.epochs
    for name in ("tokens_per_sample", "max_repetitions"):
        if (value := getattr(leaf.keys, name)) is not None:
            plain[name] = value
    if leaf.aux:
        plain["aux"] = STORES.plain(leaf.aux)
    if (subset := leaf.subset.plain()) is not None:
        plain["subset"] = subset
    if leaf.subset.is_relative and leaf.subset.is_absolute and leaf.subset.end is None:
        # A part of a range without a known end takes two nodes to write.
        return {"concat": [plain], "subset": leaf.subset.plain_relative()}
    return plain


def _plain_part(part: DatasetPart, subflavors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        "path": part.path,
        "split_part": part.split_part,
        "dataset_config": part.dataset_config,
        "split_config": part.split_config,
        "subflavors": dict(subflavors) or None,
    }
    return {name: value for name, value in plain.items() if value is not None}


def _plain_join(leaf: LeafUse) -> dict[str, Any]:
    assert not isinstance(leaf.of, DatasetPart)
    recipe: Any = leaf.recipe
    written = [
        _plain_part(member.of, member.subflavors)
        | ({} if member.nonmatch == "error" else {"nonmatch": member.nonmatch})
        for member in leaf.of
    ]
    names = recipe.names
    joiner = {} if recipe.joiner is None else {"joiner": recipe.joiner.plain()}
    return {"join": dict(zip(names, written, strict=True)) if names else written, **joiner}
