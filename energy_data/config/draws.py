"""The tree of a split as rows: what each node is, and its share of all draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import repeat
from typing import Any

from attrs import frozen

from energy_data.config.compile import Mode, mode_of
from energy_data.config.grammar import Origins
from energy_data.config.leaves import LeafUse
from energy_data.config.load import LoadedMetadataset
from energy_data.config.schema import is_below
from energy_data.config.staged import DocsPerStepSpec
from energy_data.config.yaml_nodes import Place
from energy_data.core.recipe import Rule, keys_of, share_of
from energy_data.core.spec import Spec
from energy_data.nodes.blend import BlendSpec, WeightedSpec
from energy_data.nodes.passes import EpochizeSpec
from energy_data.nodes.references import LeafSpec, OrderSpec, parts_of


@frozen(kw_only=True)
class TreeRow:
    """One node of a tree."""

    depth: int
    kind: str  # `path` for a dataset
    label: str  # of a dataset: its path as written; otherwise its kind, with its required keys
    share_key: str | None  # `weight` or `repetitions`, as its parent has it
    share: Any  # that number or schedule, as written; None: it has none
    fraction: float | None  # of all draws; None: it changes
    num_samples: int | None  # of a dataset; None: it is never drawn
    num_tokens: int | None  # of a dataset, in all its samples; None: not known
    id: str | None  # of a dataset
    place: Place


def describe_tree(metadataset: LoadedMetadataset, split: str, spec: OrderSpec) -> Iterator[TreeRow]:
    """Yield the nodes of a split, parents first, with nested files written out.

    spec: the result of `compile_split` for it.
    """
    describer = _Describer(metadataset.origins, mode_of(split))
    endless = describer.mode == "train"
    yield from describer.rows(metadataset.tree(split), spec, None, 0, Fraction(1), endless=endless)


def _label(tree: Spec) -> str:
    keys = keys_of(type(tree)).values() if is_below(type(tree)) else ()
    shown = [one for one in keys if isinstance(one.holds, Rule) and one.required]
    return ", ".join([tree.kind, *(f"{one.name} {getattr(tree, one.attribute)}" for one in shown)])


@frozen
class _Describer:
    origins: Origins
    mode: Mode

    def rows(
        self,
        tree: Spec,
        order: OrderSpec | None,  # what the node was compiled to; None: it is never drawn
        holder: Any,
        depth: int,
        fraction: Fraction | None,
        *,
        endless: bool,
    ) -> Iterator[TreeRow]:
        leaf = tree if isinstance(tree, LeafUse) else None
        recipe = tree if leaf is None else leaf.recipe
        opened = order.leaf if isinstance(order, LeafSpec) else None
        yield TreeRow(
            depth=depth,
            kind=recipe.kind,
            label=_label(tree) if leaf is None else leaf.written,
            share_key=getattr(holder, "share_key", None),
            share=share_of(holder),
            fraction=None if fraction is None else float(fraction),
            num_samples=None if opened is None else opened.num_samples,
            num_tokens=None if opened is None else opened.num_tokens,
            id=None if leaf is None else leaf.id,
            place=self.origins.of(recipe).place,
        )
        keeps_place = getattr(tree, "keeps_place", False)
        endless = (endless and keeps_place) or isinstance(tree, EpochizeSpec)
        below = _children(tree, order, endless=endless)
        for child, held in zip(tree.children.values(), tree.holders.values(), strict=True):
            is_left_out = self.mode == "val" and share_of(held) == 0
            own, part = (None, Fraction(0)) if is_left_out else next(below)
            of_all = None if part is None or fraction is None else fraction * part
            yield from self.rows(child, own, held, depth + 1, of_all, endless=endless)


def _children(
    tree: Spec, order: OrderSpec | None, *, endless: bool
) -> Iterator[tuple[OrderSpec | None, Fraction | None]]:
    """Yield what the children were compiled to, each with its part of the draws of the node.

    None: it is never drawn; the part changes.
    """
    if order is None:
        return repeat((None, Fraction(0)))
    if isinstance(tree, DocsPerStepSpec):  # the loader groups what is below
        return iter([(order, Fraction(1))])
    parts: Sequence[Fraction | None]
    if isinstance(order, WeightedSpec) and not endless:  # a pass takes one pass of each
        pairs = zip(order.ordered, order.parts, strict=True)
        parts = parts_of([of.size if part.weight else Fraction(0) for of, part in pairs])
    elif isinstance(order, BlendSpec) and order.own_units:
        parts = [Fraction(0) if part.weight == 0 else None for part in order.parts]
    else:
        parts = parts_of(order.shares)
    return zip(order.ordered, parts, strict=True)
