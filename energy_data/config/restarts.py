"""Datasets that would start again in a later stage, because they are read in another way there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import evolve

from energy_data.config.grammar import Origins
from energy_data.config.leaves import LeafUse, leaf_uses
from energy_data.config.staged import StageBounds
from energy_data.config.windows import without_lengths
from energy_data.config.yaml_nodes import Diagnostics

EPOCHS_KEY = "shuffle_over_epochs_multiplier"
# Parts of a default id that do not decide which samples a dataset has.
_KEYS = (EPOCHS_KEY, "columns", "cu_seqlens")


def report_restarts(
    stages: Iterable[StageBounds], origins: Origins, diagnostics: Diagnostics
) -> None:
    """Report datasets that restart in a later stage without being configured to.

    A dataset that is shuffled differently there, or read with other columns, is another leaf, and
    would silently restart.
    """
    continued = [bounds.stage for bounds in stages if bounds.stage.on_enter != "restart"]
    for key in _KEYS:
        known: dict[object, dict[Any, tuple[LeafUse, str]]] = {}
        for stage in continued:
            leaves = list(leaf_uses(stage.of))
            for leaf in leaves:
                value = _value(leaf, key)
                same = known.get(_rest(leaf, key), {value: (leaf, "")})
                other, name = next(iter(same.values()))
                both_named = leaf.keys.id is not None and other.keys.id is not None
                if value not in same and not both_named:
                    _report(key, leaf, other, name, origins, diagnostics)
            for leaf in leaves:
                same = known.setdefault(_rest(leaf, key), {})
                same.setdefault(_value(leaf, key), (leaf, stage.name))


def _value(leaf: LeafUse, key: str) -> Any:
    return leaf.epochs if key == EPOCHS_KEY else dict(leaf.parts[0].config).get(key)


def _rest(leaf: LeafUse, key: str) -> object:
    """Return what is equal for places that read the same samples, but for the key."""
    if key == EPOCHS_KEY:
        return leaf.data[:2]
    kept = [[pair for pair in without_lengths(part) if pair[0] != key] for part in leaf.parts]
    parts = [evolve(part, config=tuple(kept)) for part, kept in zip(leaf.parts, kept, strict=True)]
    return tuple(parts), *leaf.data[1:]


def _report(
    key: str,
    leaf: LeafUse,
    other: LeafUse,
    stage: str,
    origins: Origins,
    diagnostics: Diagnostics,
) -> None:
    origin = origins.of(leaf.recipe)
    place, where = origin.locate(key)
    if not where.endswith(key):
        place, where = origin.locate(leaf.recipe.kind)
    here, there = (_shown(_value(one, key)) for one in (leaf, other))
    way_out = "give it an `id:` in both" if key == EPOCHS_KEY else "give it another `id:` in each"
    problem = (
        f"{leaf.written}: its {key} is {here} here, and {there} in stage {stage!r} at "
        f"{origins.of(other.recipe).place}, so the dataset would start again. Make them equal, or "
        f"{way_out}, or write `on_enter: restart`."
    )
    diagnostics.report(place, origin.where, problem)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if value is None:
        return "null"
    return "true" if value is True else str(value)
