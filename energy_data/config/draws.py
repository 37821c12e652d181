"""The tree of a split as rows: what each node is, and its share of all draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.config.compile import Mode, mode_of
from energy_data.config.grammar import Origins
from energy_data.config.leaves import LeafUse
from energy_data.config.load import LoadedMetadataset
from energy_data.config.schema import is_below
from energy_data.config.yaml_nodes import Place
from energy_data.core.recipe import Rule, keys_of, share_of
from energy_data.core.spec import Spec
from energy_data.nodes.blend import BlendSpec
from energy_data.nodes.leaf import leaf_entries
from energy_data.nodes.passes import EpochizeSpec, RepeatSpec
from energy_data.order.schedule import Schedule


@frozen(kw_only=True)
class TreeRow:
    """One node of a tree."""

    depth: int
    kind: str  # `path` for a dataset
    label: str  # of a dataset: its path as written; otherwise its kind, with its required keys
    share_key: str | None  # `weight` or `repetitions`, as its parent has it
    share: Any  # that number or schedule, as written; None: it has none
    fraction: float | None  # of all draws; None: it changes, or needs unknown sizes
    num_samples: int | None  # of a dataset; None: not known
    num_tokens: int | None  # of a dataset, in all its samples; None: not known
    id: str | None  # of a dataset
    place: Place


def describe_tree(
    metadataset: LoadedMetadataset,
    split: str,
    spec: Spec | None = None,
    *,
    mode: Mode | None = None,
) -> Iterator[TreeRow]:
    """Yield the nodes of a split, parents first, with nested files written out.

    spec: the result of `compile_split` or `compile_stream` for it. Without it, numbers of samples
    are not known, and only fractions that do not need them. mode: as there.
    """
    leaves = {leaf.id: leaf for _, leaf in leaf_entries(spec)} if spec else {}
    sizes = {leaf_id: leaf.num_samples for leaf_id, leaf in leaves.items()}
    tokens = {leaf_id: leaf.num_tokens for leaf_id, leaf in leaves.items()}
    describer = _Describer(sizes, tokens, mode_of(split, mode), metadataset.origins)
    endless = describer.mode == "train"
    yield from describer.rows(metadataset.tree(split), None, 0, Fraction(1), endless=endless)


def _label(tree: Spec) -> str:
    keys = keys_of(type(tree)).values() if is_below(type(tree)) else ()
    shown = [one for one in keys if isinstance(one.holds, Rule) and one.required]
    return ", ".join([tree.kind, *(f"{one.name} {getattr(tree, one.attribute)}" for one in shown)])


class _Describer:
    def __init__(
        self,
        sizes: Mapping[str, int],
        tokens: Mapping[str, int | None],
        mode: Mode,
        origins: Origins,
    ) -> None:
        self.sizes, self.tokens, self.mode, self.origins = sizes, tokens, mode, origins

    def rows(
        self, tree: Spec, holder: Any, depth: int, fraction: Fraction | None, *, endless: bool
    ) -> Iterator[TreeRow]:
        leaf = tree if isinstance(tree, LeafUse) else None
        recipe = tree if leaf is None else leaf.recipe
        yield TreeRow(
            depth=depth,
            kind=recipe.kind,
            label=_label(tree) if leaf is None else leaf.written,
            share_key=getattr(holder, "share_key", None),
            share=share_of(holder),
            fraction=None if fraction is None else float(fraction),
            num_samples=None if leaf is None else self.sizes.get(leaf.id),
            num_tokens=None if leaf is None else self.tokens.get(leaf.id),
            id=None if leaf is None else leaf.id,
            place=self.origins.of(recipe).place,
        )
        if leaf is not None:
            return
        keeps_place = getattr(tree, "keeps_place", False)
        endless = (endless and keeps_place) or isinstance(tree, EpochizeSpec)
        fractions = self.fractions(tree, endless=endless)
        children = zip(tree.children.values(), tree.holders.values(), fractions, strict=True)
        for child, own, share in children:
            of_all = None if share is None or fraction is None else fraction * share
            yield from self.rows(child, own, depth + 1, of_all, endless=endless)

    def fractions(self, tree: Spec, *, endless: bool) -> list[Fraction | None]:
        """Return the part of a node's draws that each child has."""
        holders = list(tree.holders.values())
        if len(holders) == 1 or tree.children_are_sequential:
            return [Fraction(1)] * len(holders)
        shares = list(map(share_of, holders))
        weighted = getattr(holders[0], "share_key", None) == "weight"
        if not (endless and weighted):
            sizes = self.draws(tree)
        elif (isinstance(tree, BlendSpec) and tree.weight_unit == "tokens") or any(
            isinstance(share, Schedule) for share in shares
        ):
            sizes = [Fraction(0) if share == 0 else None for share in shares]
        else:
            sizes = list(map(Fraction, shares))
        total = sum(size for size in sizes if size is not None)
        if None in sizes:
            return [Fraction(0) if size == 0 else None for size in sizes]
        return [size / total if size is not None and total else None for size in sizes]

    def draws(self, tree: Spec) -> list[Fraction | None]:
        """Return the draws of each child in one pass of its parent; None: not known."""
        found: list[Fraction | None] = []
        for child, holder in zip(tree.children.values(), tree.holders.values(), strict=True):
            share = share_of(holder)
            size = Fraction(0) if share == 0 else self.size(child)
            repeats = self.mode != "val" and getattr(holder, "share_key", "") == "repetitions"
            found.append(size * Fraction(str(share)) if repeats and size is not None else size)
        return found

    def size(self, tree: Spec) -> Fraction | None:
        """Return the draws in one pass of a node; None: not known."""
        if isinstance(tree, LeafUse):
            known = self.sizes.get(tree.id)
            return None if known is None else Fraction(known)
        if isinstance(tree, EpochizeSpec):
            return Fraction(tree.length)
        sizes = self.draws(tree)
        known_sizes = [size for size in sizes if size is not None]
        if tree.children_are_sequential or len(known_sizes) < len(sizes):
            return None
        passes = tree.times or 1 if isinstance(tree, RepeatSpec) else 1
        return sum(known_sizes, Fraction(0)) * passes
