"""Compiling a split: from definitions to the specs that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from energy_data.config.builder import B_co, Builder
from energy_data.config.compile_staged import staged_order, staged_stream
from energy_data.config.compile_steps import (
    below_steps,
    counts_steps,
    rules_of,
)
from energy_data.config.definitions import Definition, Mode
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_docs_per_step import DocsPerStepDefinition
from energy_data.config.kind_staged import StagedDefinition
from energy_data.config.load import Metadataset
from energy_data.config.opening import DEFAULT, Opener, OpenSource, Options
from energy_data.config.resolve import expand
from energy_data.config.twigs import Branch, Twig
from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.data.files.stores import FileStore
from energy_data.data.source import Source
from energy_data.errors import DataError, SpecError
from energy_data.nodes.leaf import LeafSpec
from energy_data.nodes.leaves import Leaf
from energy_data.nodes.references import OrderSpec
from energy_data.order.schedule import Schedule
from energy_data.order.step_rules import DocsPerStep


def compile_split(
    metadataset: Metadataset,
    split: str,
    *,
    open_source: OpenSource,
    mode: Mode | None = None,
    options: Options = DEFAULT,
) -> OrderSpec:
    """Return the spec of one split.

    mode: "train" draws from blends by weight and by repetitions; "val" plays their children one
    after another, once each, whatever their weights and repetitions. Children with 0 are never
    drawn in either. None: "train" for the split of that name, "val" for the others.

    options: code that is trusted, and more that holds for the whole tree.

    Every dataset is opened, and joins are computed that were not before. Raises SpecError with
    every fault, as `load_metadataset` does: no such split, datasets that are not there or empty,
    ids that clash. Raises StructureError for a damaged dataset.
    """
    tree = below_steps(expand(metadataset, split, options.shuffle_over_epochs_multiplier))
    compiler = _Compiler(Opener(open_source, options), mode_of(split, mode))
    spec = compiler.spec(tree)
    compiler.faults.raise_if_any()
    assert spec is not None
    return spec


def compile_stream(
    metadataset: Metadataset,
    split: str,
    *,
    open_source: OpenSource,
    pipeline: Builder[B_co],
    mode: Mode | None = None,
    options: Options = DEFAULT,
    run: Context | None = None,
) -> B_co:
    """Return the batches of one split, as `pipeline` builds them, or its stages.

    run: its seed and its lanes, for stages that end with their data. Otherwise as `compile_split`.
    """
    whole = expand(metadataset, split, options.shuffle_over_epochs_multiplier)
    opener = Opener(open_source, options)
    compiler = _Compiler(opener, mode_of(split, mode), finite=pipeline.finite, run=run)
    if compiler.mode == "train" and counts_steps(whole, pipeline):
        compiler.counts_steps = True
    dataset = compiler.stream(below_steps(whole), pipeline)
    compiler.faults.raise_if_any()
    assert dataset is not None
    return dataset


def steps_of(metadataset: Metadataset, split: str) -> DocsPerStep | None:
    """Return how a split groups its micro-batches into steps; None if it does not."""
    return rules_of(expand(metadataset, split))


def _misplaced(compiler: _Compiler, tree: Branch, *_: Builder[Any]) -> None:
    assert isinstance(tree.definition, DocsPerStepDefinition)
    tree.definition.note_misplaced(compiler.faults)


def mode_of(split: str, mode: Mode | None) -> Mode:
    """Return the mode that is meant."""
    return mode or ("train" if split == "train" else "val")


class AboveBatching(NamedTuple):
    """How a kind is compiled that stands above batching: what it gives, and what validation reads.

    Both return None if faults are noted.
    """

    stream: Callable[[_Compiler, Branch, Builder[Any]], Spec | None]
    order: Callable[[_Compiler, Branch], OrderSpec | None]


ABOVE_BATCHING: Mapping[type[Definition], AboveBatching] = {
    StagedDefinition: AboveBatching(staged_stream, staged_order),
    DocsPerStepDefinition: AboveBatching(_misplaced, _misplaced),
}
"""The kinds that stand above batching; all others are compiled by `Definition.compile`."""


class _Compiler:
    """Builds specs bottom-up. A node below which there are faults becomes None."""

    def __init__(
        self, opener: Opener, mode: Mode, *, finite: bool = False, run: Context | None = None
    ) -> None:
        self.opener, self.mode, self.finite, self.run = opener, mode, finite, run
        self.faults = Diagnostics()
        self.counts_steps = False  # whether stages count steps of any size

    def stream(self, tree: Branch | Twig, pipeline: Builder[B_co]) -> B_co | None:
        """Return the batches of a node."""
        above = ABOVE_BATCHING.get(type(tree.definition)) if self.mode == "train" else None
        if above is not None and isinstance(tree, Branch):
            stages = above.stream(self, tree, pipeline)
            return None if stages is None else pipeline.of(stages)
        order = self.spec(tree)
        return None if order is None else pipeline.over(order)

    def spec(self, tree: Branch | Twig, *, known: bool = True) -> OrderSpec | None:
        """Return the order tree of a node. known: whether it can tell how far the run is."""
        if isinstance(tree, Twig):
            return self.leaf(tree)
        if (above := ABOVE_BATCHING.get(type(tree.definition))) is not None:
            return above.order(self, tree)
        self.check_schedules(tree, known=known)
        self.check_outermost(tree)
        known = known and (tree.definition.weighs or tree.definition.renews)
        children = [child for child in tree.children if self.mode == "train" or child.share != 0]
        specs = [self.spec(child, known=known) for child in children]
        built = [spec for spec in specs if spec is not None]
        if len(built) < len(specs):
            return None
        shares = [child.share or 0 for child in children]
        try:
            return tree.definition.compile(built, shares, self.mode)
        except SpecError as error:
            definition = tree.definition
            for fault in error.faults:
                self.faults.report(definition.places[tree.kind], definition.where, fault)
            return None

    def check_schedules(self, tree: Branch, *, known: bool) -> None:
        """Note weights that change where nobody knows how far the run is."""
        for child in tree.children:
            if isinstance(child.share, Schedule) and self.mode == "train" and not known:
                part = child.definition
                self.faults.report(
                    part.places.get("weight", part.place),
                    f"{part.where}.weight",
                    "weights that change follow the run, and cannot below what is played in "
                    "passes. Put them above a concat, repeat or blend_epochized.",
                )

    def check_outermost(self, tree: Branch) -> None:
        """Note children that may not stand below another node."""
        for child in tree.children:
            if child.definition.outermost and self.mode == "train":
                part, kind = child.definition, child.kind
                problem = f"{kind} says what whole batches are of, so it is the outermost node"
                self.faults.report(part.place, part.where, f"{problem}. Write a blend here.")

    def leaf(self, twig: Twig) -> LeafSpec | None:
        source, stores = self.source(twig), self.stores(twig)
        if source is None or stores is None:
            return None
        if not len(source):
            self.note(
                twig,
                f"it has no samples, found 0 in {twig}. Take it out, or look at its split.yaml.",
            )
            return None
        epochs = twig.epochs if self.mode == "train" else 1
        if self.finite and epochs not in (1, None):
            self.note(
                twig,
                "without repetition each sample comes once, so epochs cannot be mixed, found "
                f"{epochs}. Leave `shuffle_over_epochs_multiplier` out, or pass repeat=True.",
                "shuffle_over_epochs_multiplier",
            )
            return None
        said = twig.definition
        leaf = Leaf(
            id=twig.id,
            source=source,
            aux=stores,
            epochs=epochs,
            tokens_per_sample=exact(said.tokens_per_sample),
            max_repetitions=exact(said.max_repetitions),
        )
        return LeafSpec(leaf)

    def source(self, twig: Twig) -> Source | None:
        """Return the source of a leaf. None: noted."""
        try:
            return self.part(twig)
        except SpecError as error:
            for fault in error.faults:
                self.note(twig, fault)
            return None
        except DataError as error:
            place, where = twig.definition.places[twig.kind], twig.definition.where
            error.add_note(f"{place}: {where}: leaf {twig.id!r}")
            raise

    def stores(self, twig: Twig) -> dict[str, FileStore[bytes]] | None:
        """Return the files beside the samples of a leaf. None: noted."""
        try:
            return self.opener.stores(twig)
        except SpecError as error:
            for fault in error.faults:
                self.note(twig, fault, "aux")
            return None

    def part(self, twig: Twig) -> Source | None:
        """Return the samples of a leaf that are in its range. None: noted."""
        if twig.subset.is_whole:
            return self.opener.samples(twig, None)
        num_samples = len(self.opener.samples(twig, None, {}))
        problem = f"it has no samples in the range {twig.subset}"
        try:
            first, end = twig.subset.bounds(num_samples)
        except ValueError as error:
            problem, first, end = str(error), 0, 0
        if first < end:
            return self.opener.samples(twig, (first, end))
        self.note(
            twig, f"{problem}, found {num_samples} in {twig}. Give a range within them.", "subset"
        )
        return None

    def note(self, twig: Twig, problem: str, key: str | None = None) -> None:
        definition = twig.definition
        place = definition.places.get(key or twig.kind, definition.place)
        self.faults.report(place, definition.where, f"leaf {twig.id!r}: {problem}")


def exact(said: float | None) -> Fraction | None:
    """Return a number as it is written; None: nothing is."""
    return None if said is None else Fraction(str(said))
