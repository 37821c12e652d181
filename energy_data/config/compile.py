"""Compiling a split: leaves are opened, and recipes become the specs that run, within limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Literal, TypeAlias

from attrs import evolve, field, frozen

from energy_data.config.grammar import Origins
from energy_data.config.leaves import LeafUse, leaf_uses
from energy_data.config.load import LoadedMetadataset
from energy_data.config.opening import (
    B_co,
    Builder,
    Opener,
    OpenSource,
    Options,
    looked_at_together,
)
from energy_data.config.rules import FULL
from energy_data.config.staged import DocsPerStepSpec, StagedRecipe, below_steps
from energy_data.config.stages import StageCompiler, counts_steps
from energy_data.config.yaml_nodes import Diagnostics
from energy_data.core.context import Context
from energy_data.core.recipe import check_whole, share_of
from energy_data.core.spec import Spec
from energy_data.errors import DataError, SpecError
from energy_data.nodes.blend import BlendSpec, blend_by_tokens
from energy_data.nodes.leaf import Leaf, leaves_of
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.references import LeafSpec, OrderSpec, ReferencesSpec
from energy_data.nodes.staged import StagedSpec
from energy_data.order.schedule import Schedule
from energy_data.order.splits import exact_fraction
from energy_data.order.step_rules import DocsPerStep

Mode: TypeAlias = Literal["train", "val"]


def compile_split(
    metadataset: LoadedMetadataset,
    split: str,
    *,
    open_source: OpenSource,
    mode: Mode | None = None,
    options: Options | None = None,
) -> OrderSpec:
    """Return the order tree of one split.

    mode: "train" draws from blends by weight and by repetitions; "val" plays their children one
    after another, once each, whatever their weights and repetitions. Children with 0 are never
    drawn in either. None: "train" for the split of that name, "val" for the others.

    options: code that is trusted, and what else holds for the whole tree; None: the defaults, with
    the code that the environment allows.

    Every dataset is opened, and missing joins are computed. Raises SpecError with every problem, as
    `load` does: no such split, datasets that are missing or empty, ids that clash. Raises
    StructureError for a damaged dataset.
    """
    options = options or Options()
    tree = metadataset.tree(split, options.shuffle_over_epochs_multiplier)
    opener = Opener(open_source, options)
    compiler = _Compiler(
        metadataset.origins, opener, mode or mode_of(split), _measure(tree, options)
    )
    with looked_at_together(leaf_uses(tree)):
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
    options: Options | None = None,
    run: Context | None = None,
) -> B_co:
    """Return the training batches of one split, as `builder` builds them, or its stages.

    run: its seed and its lanes, for stages that end with their data. Otherwise as `compile_split`.
    """
    options = options or Options()
    tree = metadataset.tree(split, options.shuffle_over_epochs_multiplier)
    opener = Opener(open_source, options)
    compiler = _Compiler(metadataset.origins, opener, "train", _measure(tree, options))
    below = below_steps(tree)
    with looked_at_together(leaf_uses(tree)):
        if isinstance(below, StagedRecipe):
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


def mode_of(split: str) -> Mode:
    """Return the mode of a split, by its name."""
    return "train" if split == "train" else "val"


def _measure(tree: Spec, options: Options) -> Callable[[Leaf], Fraction | None]:
    """Return what has the mean tokens of a leaf, or measures it if weights in a tree need it."""
    if not any(
        isinstance(one, BlendSpec) and one.weight_unit == "tokens" for _, one in tree.walk()
    ):
        return lambda leaf: leaf.tokens_per_sample

    measured: dict[str, Fraction | None] = {}  # by id: several stages may draw from a leaf

    def mean(leaf: Leaf) -> Fraction | None:
        if leaf.mean_tokens is not None:
            return leaf.tokens_per_sample
        if leaf.id not in measured:
            measured[leaf.id] = options.measure(leaf)
        return measured[leaf.id]

    return mean


@frozen(eq=False)
class _Compiler:
    """Opens the leaves of a tree. A node with problems below it becomes None."""

    origins: Origins
    opener: Opener
    mode: Mode
    measure: Callable[[Leaf], Fraction | None]  # see `Options`
    diagnostics: Diagnostics = field(factory=Diagnostics)

    def order(self, tree: Spec, *, has_place: bool = True) -> OrderSpec | None:
        """Return the order tree of a node. has_place: whether places of the run are known there."""
        if isinstance(tree, LeafUse):
            return self.leaf(tree)
        assert isinstance(tree, OrderSpec)
        if isinstance(tree, StagedRecipe):
            origin = self.origins.of(tree)
            problem = "`staged` must be the outermost node of a split for training"
            advice = "Put the mixture into the stages, or give validation a mixture of its own."
            self.diagnostics.report(origin.place, origin.where, f"{problem}. {advice}")
            return None
        if self.mode == "train":
            self.check_children(tree, has_place=has_place)
        has_place = has_place and tree.keeps_place
        shares = {name: share_of(held) for name, held in tree.holders.items()}
        orders = [
            self.order(child, has_place=has_place)
            for name, child in tree.children.items()
            if self.mode == "train" or shares[name] != 0
        ]
        built = [order for order in orders if order is not None]
        if len(built) < len(orders):
            return None
        if self.mode == "val" and set(shares.values()) != {None}:
            return ConcatSpec(tuple(built))
        try:
            spec = tree.with_children(built)
            if isinstance(spec, BlendSpec) and spec.weight_unit == "tokens":
                spec = blend_by_tokens(spec.parts)
        except SpecError as error:
            at = self.origins.of(tree).locate_field(tree.kind)
            for problem in error.faults:
                self.diagnostics.report(*at, problem)
            return None
        return spec

    def check_children(self, tree: OrderSpec, *, has_place: bool) -> None:
        """Report weights that change where places of the run are unknown, and misplaced mixes."""
        for child, holder in zip(tree.children.values(), tree.holders.values(), strict=True):
            origin = self.origins.of(child.recipe if isinstance(child, LeafUse) else child)
            if isinstance(share_of(holder), Schedule) and not has_place:
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
        """Return a leaf with its dataset open; None: problems were reported."""
        epochs = leaf.epochs if self.mode == "train" else 1
        origin, key = self.origins.of(leaf.recipe), leaf.recipe.kind
        try:
            source = self.opener.samples(leaf)
            if leaf.subset != FULL:
                key = "subset"
                chunks = len(source) // source.cut.samples
                source = self.opener.samples(leaf, leaf.subset.bounds(chunks, str(leaf)))
            elif not len(source):
                problem = f"it has no samples, found 0 in {leaf}."
                raise SpecError(f"{problem} Remove it, or check its split.yaml.")
            key = "aux"
            stores = self.opener.stores(leaf) if leaf.aux else {}
        except SpecError as error:
            place, _ = origin.locate(key)
            for problem in error.faults:
                self.diagnostics.report(place, origin.where, f"leaf {leaf.id!r}: {problem}")
            return None
        except DataError as error:
            place, _ = origin.locate(key)
            error.add_note(f"{place}: {origin.where}: leaf {leaf.id!r}")
            raise
        tokens, repetitions = leaf.keys.tokens_per_sample, leaf.keys.max_repetitions
        found = Leaf(
            id=leaf.id,
            source=source,
            aux=stores,
            epochs=epochs,
            tokens_per_sample=None if tokens is None else exact_fraction(tokens),
            max_repetitions=None if repetitions is None else exact_fraction(repetitions),
            place=f"{origin.locate(leaf.recipe.kind)[0]}: {origin.where}",
        )
        return LeafSpec(evolve(found, tokens_per_sample=self.measure(found)))


def check_repetitions(spec: Spec, *, samples: int | None = None, tokens: int | None = None) -> None:
    """Raise SpecError if a run draws a leaf more often than its `max_repetitions` allow.

    The draws are counted from the orders, including weights that change. Stages that end are
    counted in full. A stream without an end is counted up to the budget. Without a budget it is not
    checked, and the run stops with an error at the first draw that exceeds the limit.

    Args:
        spec: The tree of batches of a run.
        samples: Samples that the run draws over all ranks.
        tokens: The same in tokens, from the mean lengths of the leaves; for runs without stages.
    """
    for name, value in (("budget_samples", samples), ("budget_tokens", tokens)):
        if value is not None:
            check_whole(name, value, 1)
    if samples is not None and tokens is not None:
        raise SpecError("budget: both `budget_samples` and `budget_tokens` are given. Keep one.")
    if all(leaf.max_repetitions is None for leaf in leaves_of(spec)):
        return
    if tokens is not None:
        trees = _trees(spec)
        if isinstance(spec, StagedSpec) or len(trees) != 1:
            raise SpecError("budget_tokens: the run has several mixtures. Give `budget_samples`.")
        samples = int(tokens / trees[0].of.mean_tokens)
    leaves: dict[str, Leaf] = {}
    drawn: Counter[str] = Counter()
    for tree, draws in _draws(spec, samples):
        node = tree.build(Context(lanes=1))
        node.cursor.draws = draws
        leaves |= {leaf.id: leaf for leaf in node.leaves}
        drawn.update(node.ledger())
    problems = [
        f"leaf {leaf.id!r}: the run draws {drawn[leaf.id] // leaf.cut.stride:,} samples of it, but "
        f"at most {most * leaf.cut.samples:,} are allowed: it has {leaf.num_samples:,}, "
        f"max_repetitions {float(leaf.max_repetitions or 0):g}. Lower its weight, shorten the run, "
        f"or allow more."
        for leaf in leaves.values()
        if (most := leaf.most_chunks) is not None and drawn[leaf.id] > most * leaf.cut.chunk
    ]
    if problems:
        raise SpecError(problems)


def _draws(spec: Spec, budget: int | None) -> Iterator[tuple[ReferencesSpec, int]]:
    """Yield the order trees of a run with the number of draws from each."""
    if not isinstance(spec, StagedSpec):
        trees = _trees(spec)
        if budget is not None and len(trees) == 1:
            yield trees[0], budget
        return
    for stage in spec.stages:
        trees = list(stage.order_trees)
        if len(trees) != 1:
            return  # nodes above reading decide how often each is drawn from
        clock = trees[0].clock
        size = clock.samples_per_microbatch if clock else int(stage.params.get("batch_size", 0))
        draws = None if stage.num_batches is None else stage.num_batches * size
        if budget is not None:
            draws = budget if draws is None else min(draws, budget)
            budget -= draws
        if not draws:
            return
        yield trees[0], draws


def _trees(spec: Spec) -> list[ReferencesSpec]:
    return [inner for _, inner in spec.walk() if isinstance(inner, ReferencesSpec)]
