"""The tree of a split as rows, for people: what is drawn, how much, and where that is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from attrs import frozen

from energy_data.config.compile import mode_of
from energy_data.config.definitions import Mode, Share
from energy_data.config.diagnostics import Place
from energy_data.config.load import Metadataset
from energy_data.config.resolve import expand
from energy_data.config.twigs import Branch, Twig
from energy_data.core.spec import Spec
from energy_data.nodes.leaves import leaf_entries
from energy_data.order.schedule import Schedule


@frozen(kw_only=True)
class Row:
    """One node of a tree."""

    depth: int
    kind: str  # `path` for a dataset
    label: str  # of a dataset: its path as written; else its kind, with length or times
    share: Share | None  # the weight or the repetitions, as given
    fraction: float | None  # of all draws; None: it changes, or takes sizes that are not known
    num_samples: int | None  # of a dataset; None: not known
    id: str | None  # of a dataset
    place: Place


def describe_tree(
    metadataset: Metadataset,
    split: str,
    spec: Spec | None = None,
    *,
    mode: Mode | None = None,
) -> Iterator[Row]:
    """Yield the nodes of a split, parents first, nested files written out.

    spec: what `compile_split` or `compile_stream` returned for it; without, numbers of samples are
    not known, and only those fractions that need none. mode: as there.
    """
    sizes = {leaf.id: leaf.num_samples for _, leaf in leaf_entries(spec)} if spec else {}
    describer = _Describer(sizes, mode_of(split, mode))
    yield from describer.rows(
        expand(metadataset, split), 0, Fraction(1), endless=describer.mode == "train"
    )


class _Describer:
    def __init__(self, sizes: Mapping[str, int], mode: Mode) -> None:
        self.sizes, self.mode = sizes, mode

    def rows(
        self, tree: Branch | Twig, depth: int, fraction: Fraction | None, *, endless: bool
    ) -> Iterator[Row]:
        leaf_id = tree.id if isinstance(tree, Twig) else None
        yield Row(
            depth=depth,
            kind=tree.kind,
            label=tree.written if isinstance(tree, Twig) else tree.definition.label,
            share=tree.share,
            fraction=None if fraction is None else float(fraction),
            num_samples=None if leaf_id is None else self.sizes.get(leaf_id),
            id=leaf_id,
            place=tree.definition.place,
        )
        if isinstance(tree, Twig):
            return
        kind = tree.definition
        endless = (endless and (kind.weighs or kind.apart)) or kind.renews
        parts = self.parts(tree, endless=endless)
        for child, part in zip(tree.children, parts, strict=True):
            of_all = None if part is None or fraction is None else fraction * part
            yield from self.rows(child, depth + 1, of_all, endless=endless)

    def parts(self, tree: Branch, *, endless: bool) -> list[Fraction | None]:
        """Return which part of a node's draws each child has."""
        if len(tree.children) == 1 or tree.definition.apart:
            return [Fraction(1)] * len(tree.children)
        by_weight = endless and tree.definition.weighs
        of_tokens = getattr(tree.definition, "weight_unit", "samples") == "tokens"
        if by_weight and (
            of_tokens or any(isinstance(child.share, Schedule) for child in tree.children)
        ):
            return [Fraction(0) if child.share == 0 else None for child in tree.children]
        sizes = [
            Fraction(child.share or 0) if by_weight else self.drawn(tree, child)
            for child in tree.children
        ]
        total = sum(size for size in sizes if size is not None)
        if None in sizes:
            return [Fraction(0) if size == 0 else None for size in sizes]
        return [size / total if size is not None and total else None for size in sizes]

    def drawn(self, tree: Branch, child: Branch | Twig) -> Fraction | None:
        """Return how many draws of a child are in one pass of its parent."""
        size = None if child.share == 0 else self.size(child)
        return tree.definition.drawn(child.share, size, self.mode)

    def size(self, tree: Branch | Twig) -> Fraction | None:
        """Return the number of draws in one pass of a node."""
        if isinstance(tree, Twig):
            known = self.sizes.get(tree.id)
            return None if known is None else Fraction(known)
        return tree.definition.size([self.drawn(tree, child) for child in tree.children])
