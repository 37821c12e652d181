"""Compiling a split: leaves are opened, and recipes become the specs that run."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, TypeAlias

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.leaves import LeafUse
from energy_data.config.load import LoadedMetadataset
from energy_data.config.opening import DEFAULT, Opener, OpenSource, Options
from energy_data.config.stage_lengths import B_co, Builder
from energy_data.config.staged import DocsPerStepSpec, StagedRecipe
from energy_data.config.stages import (
    StageCompiler,
    below_steps,
    counts_steps,
    stage_of_validation,
)
from energy_data.core.context import Context
from energy_data.core.recipe import parts_of, share_of, with_children
from energy_data.core.spec import Spec
from energy_data.data.files.stores import FileStore
from energy_data.data.source import Source
from energy_data.errors import DataError, SpecError
from energy_data.nodes.blend import BlendSpec, blend_by_tokens
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.references import LeafSpec, OrderSpec
from energy_data.order.schedule import Schedule
from energy_data.order.step_rules import DocsPerStep

Mode: TypeAlias = Literal["train", "val"]


def compile_split(
    metadataset: LoadedMetadataset,
    split: str,
    *,
    open_source: OpenSource,
    mode: Mode | None = None,
    options: Options = DEFAULT,
) -> OrderSpec:
    """Return the order tree of one split.

    mode: "train" draws from blends by weight and by repetitions; "val" plays their children one
    after another, once each, whatever their weights and repetitions. Children with 0 are never
    drawn in either. None: "train" for the split of that name, "val" for the others.

    options: code that is trusted, and what else holds for the whole tree.

    Every dataset is opened, and missing joins are computed. Raises SpecError with every problem, as
    `load_metadataset` does: no such split, datasets that are missing or empty, ids that clash.
    Raises StructureError for a damaged dataset.
    """
    tree = metadataset.tree(split, options.shuffle_over_epochs_multiplier)
    compiler = _Compiler(metadataset, Opener(open_source, options), mode_of(split, mode))
    spec = compiler.order(below_steps(tree))
    compiler.diagnostics.raise_if_any()
    assert spec is not None
    return spec


def compile_stream(
    metadataset: LoadedMetadataset,
    split: str,
    *,
    open_source: OpenSource,
    builder: Builder[B_co],
    mode: Mode | None = None,
    options: Options = DEFAULT,
    run: Context | None = None,
) -> B_co:
    """Return the batches of one split, as `builder` builds them, or its stages.

    run: its seed and its lanes, for stages that end with their data. Otherwise as `compile_split`.
    """
    tree = metadataset.tree(split, options.shuffle_over_epochs_multiplier)
    mode, opener = mode_of(split, mode), Opener(open_source, options)
    compiler = _Compiler(metadataset, opener, mode, finite=builder.finite)
    below = below_steps(tree)
    if mode == "train" and isinstance(below, StagedRecipe):
        spec = StageCompiler(
            staged=below,
            builder=builder,
            order=compiler.order,
            diagnostics=compiler.diagnostics,
            origins=metadataset.origins,
            run=run,
            counts_steps=counts_steps(tree, builder),
        ).spec()
        dataset = None if spec is None else builder.of(spec)
    else:
        order = compiler.order(below)
        dataset = None if order is None else builder.over(order)
    compiler.diagnostics.raise_if_any()
    assert dataset is not None
    return dataset


def steps_of(metadataset: LoadedMetadataset, split: str) -> DocsPerStep | None:
    """Return how a split groups its micro-batches into steps; None if it does not."""
    tree = metadataset.tree(split)
    return tree.rules if isinstance(tree, DocsPerStepSpec) else None


def mode_of(split: str, mode: Mode | None) -> Mode:
    """Return the mode of a split; None: by its name."""
    return mode or ("train" if split == "train" else "val")


class _Compiler:
    """Opens the leaves of a tree. A node with problems below it becomes None."""

    def __init__(
        self, metadataset: LoadedMetadataset, opener: Opener, mode: Mode, *, finite: bool = False
    ) -> None:
        self.origins, self.opener, self.mode, self.finite = (
            metadataset.origins,
            opener,
            mode,
            finite,
        )
        self.diagnostics = Diagnostics()

    def order(self, tree: Spec, *, has_place: bool = True) -> OrderSpec | None:
        """Return the order tree of a node. has_place: whether places of the run are known there."""
        if isinstance(tree, LeafUse):
            return self.leaf(tree)
        if isinstance(tree, StagedRecipe):
            return self.staged(tree)
        assert isinstance(tree, OrderSpec)
        if self.mode == "train":
            self.check_children(tree, has_place=has_place)
        has_place = has_place and tree.keeps_place
        children = [
            child for child, part in parts_of(tree) if self.mode == "train" or share_of(part) != 0
        ]
        orders = [self.order(child, has_place=has_place) for child in children]
        built = [order for order in orders if order is not None]
        if len(built) < len(orders):
            return None
        try:
            return self.built(tree, built)
        except SpecError as error:
            for problem in error.faults:
                self.origins.report(self.diagnostics, tree, tree.kind, problem)
            return None

    def built(self, tree: OrderSpec, orders: list[OrderSpec]) -> OrderSpec:
        """Return a node over opened children."""
        if self.mode == "val" and any(share_of(part) is not None for _, part in parts_of(tree)):
            return ConcatSpec(tuple(orders))
        spec = with_children(tree, orders)
        if isinstance(spec, BlendSpec) and spec.weight_unit == "tokens":
            return blend_by_tokens(spec.parts)
        return spec

    def staged(self, staged: StagedRecipe) -> OrderSpec | None:
        """Return the order of the stage that validation reads; None: problems were reported."""
        if self.mode == "val":
            stage = stage_of_validation(staged, self.diagnostics, self.origins)
            return None if stage is None else self.order(stage)
        origin = self.origins.of(staged)
        problem = "`staged` must be the outermost node: nothing else, and no stage, can contain it."
        self.diagnostics.report(
            origin.place, origin.where, f"{problem} Put the mixture into the stages."
        )
        return None

    def check_children(self, tree: OrderSpec, *, has_place: bool) -> None:
        """Report weights that change where places of the run are unknown, and misplaced mixes."""
        for child, part in parts_of(tree):
            origin = self.origins.of(child.recipe if isinstance(child, LeafUse) else child)
            if isinstance(share_of(part), Schedule) and not has_place:
                self.diagnostics.report(
                    origin.locate("weight")[0],
                    f"{origin.where}.weight",
                    "weights that change follow the run, and so cannot stand below a node that "
                    "counts passes. Put them above a concat, repeat or blend_epochized.",
                )
            if isinstance(child, OrderSpec) and child.only_root:
                problem = f"{child.kind} determines whole batches, so it must be the outermost node"
                self.diagnostics.report(
                    origin.place, origin.where, f"{problem}. Write a blend here."
                )

    def leaf(self, leaf: LeafUse) -> LeafSpec | None:
        source, stores = self.source(leaf), self.stores(leaf)
        if source is None or stores is None:
            return None
        if not len(source):
            problem = f"it has no samples, found 0 in {leaf}. Remove it, or check its split.yaml."
            self.report(leaf, problem)
            return None
        epochs = leaf.epochs if self.mode == "train" else 1
        if self.finite and epochs not in (1, None):
            self.report(
                leaf,
                "without repetition each sample comes once, so epochs cannot be mixed, found "
                f"{epochs}. Remove `shuffle_over_epochs_multiplier`, or pass repeat=True.",
                "shuffle_over_epochs_multiplier",
            )
            return None
        return LeafSpec(
            Leaf(
                id=leaf.id,
                source=source,
                aux=stores,
                epochs=epochs,
                tokens_per_sample=_exact(leaf.keys.tokens_per_sample),
                max_repetitions=_exact(leaf.keys.max_repetitions),
            )
        )

    def source(self, leaf: LeafUse) -> Source | None:
        """Return the source of a leaf; None: problems were reported."""
        try:
            return self.part(leaf)
        except SpecError as error:
            for problem in error.faults:
                self.report(leaf, problem)
            return None
        except DataError as error:
            origin = self.origins.of(leaf.recipe)
            place, _ = origin.locate(leaf.recipe.kind)
            error.add_note(f"{place}: {origin.where}: leaf {leaf.id!r}")
            raise

    def stores(self, leaf: LeafUse) -> dict[str, FileStore[bytes]] | None:
        """Return the files for the cookers of a leaf; None: problems were reported."""
        try:
            return self.opener.stores(leaf)
        except SpecError as error:
            for problem in error.faults:
                self.report(leaf, problem, "aux")
            return None

    def part(self, leaf: LeafUse) -> Source | None:
        """Return the samples of a leaf that are in its range; None: problems were reported."""
        if leaf.subset.is_full:
            return self.opener.samples(leaf, None)
        num_samples = len(self.opener.samples(leaf, None, {}))
        problem = f"it has no samples in the range {leaf.subset}"
        try:
            first, end = leaf.subset.bounds(num_samples)
        except ValueError as error:
            problem, first, end = str(error), 0, 0
        if first < end:
            return self.opener.samples(leaf, (first, end))
        problem = f"{problem}, found {num_samples} in {leaf}. Give a range within them."
        self.report(leaf, problem, "subset")
        return None

    def report(self, leaf: LeafUse, problem: str, key: str | None = None) -> None:
        """Report a problem of a leaf, at a key or at its kind."""
        origin = self.origins.of(leaf.recipe)
        place, _ = origin.locate(key or leaf.recipe.kind)
        self.diagnostics.report(place, origin.where, f"leaf {leaf.id!r}: {problem}")


def _exact(value: float | None) -> Fraction | None:
    """Return a number exactly as it is written."""
    return None if value is None else Fraction(str(value))
