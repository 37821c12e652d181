"""A saved run: its tree, and the nodes of its lanes where they were.

The nodes are those that ran, built from the specs in the state. They have no samples and no
functions of the user, but they report what they have drawn and hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.arrays import Int64s
from energy_data.core.context import Context
from energy_data.core.cursor import restore, save
from energy_data.core.cut import Cut
from energy_data.core.keys import key
from energy_data.core.node import Node
from energy_data.core.sample import Sample
from energy_data.core.spec import Spec
from energy_data.data.source import Source
from energy_data.errors import SampleError, SpecError, StateError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RemovedLeaves, RunState, pack, unpack
from energy_data.nodes.leaf import (
    Leaf,
    distinct_leaves,
    fingerprints_of,
    leaves_of,
    shared_leaf_ids,
)
from energy_data.nodes.leaf_history import LeafHistory, held
from energy_data.nodes.references import LeafSpec, ReferencesNode, ReferencesSpec
from energy_data.nodes.staged import StagedNode, StagedSpec

FEW_LEAVES = 200  # up to here sizes are saved also where only messages need them
FINGERPRINT_DIGITS = 5  # detects accidents, not attacks: a state must stay small
_UNKNOWN_SIZE = 1 << 40  # accepts every sample number of a leaf whose size was not saved


class SavedSource(Source):
    """The source of a leaf of a saved run: its size, cut and fingerprint, without samples."""

    def __init__(self, leaf: SavedLeaf, stride: int | None = None) -> None:
        self.leaf, self._cut = leaf, Cut(leaf.chunk, stride or leaf.chunk)

    def __len__(self) -> int:
        return (self.leaf.chunks or _UNKNOWN_SIZE) * self.cut.samples

    @property
    def cut(self) -> Cut:
        """How samples were cut from chunks."""
        return self._cut

    @property
    def fingerprint(self) -> str:
        """The first digits of the fingerprint of the leaf."""
        return self.leaf.fingerprint

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Raise TypeError."""
        raise TypeError(f"the source of a saved run has no samples, asked for {len(indices)}")


class SavedLeaf(NamedTuple):
    """A leaf of a saved run."""

    chunks: int | None  # how many it has; None: not saved
    chunk: int  # units of a chunk; mostly 1, a sample
    fingerprint: str  # the first digits

    @property
    def unit(self) -> str:
        """What its places are counted in."""
        return "samples" if self.chunk == 1 else "tokens"


@frozen
class SavedTree:
    """What decides the stream of a run: specs without functions, and leaves by id."""

    spec: Spec
    leaves: Mapping[str, SavedLeaf]

    @staticmethod
    def pack(spec: Spec) -> str:
        """Return the tree as compact text. Specs that draw the same stream give equal text."""
        leaves = distinct_leaves(spec)
        number = {leaf.id: n for n, leaf in enumerate(leaves)}
        sized = len(leaves) <= FEW_LEAVES or any(
            getattr(inner, "needs_sizes", False) or getattr(inner, "deal", 0)
            for _, inner in spec.walk()
        )
        last = -1

        def data(of: Spec) -> Any:
            """Return a leaf as the step from the last one, mostly 1, which packs to nothing.

            With the units of its samples, if a chunk has several of these.
            """
            nonlocal last
            if not isinstance(of, LeafSpec):
                return of.to_dict(data)
            step, last = number[of.leaf.id] - last, number[of.leaf.id]
            return step if of.leaf.cut.samples == 1 else [step, of.leaf.cut.stride]

        tree, ids = data(spec), [leaf.id for leaf in leaves]
        chunks = [leaf.num_chunks if sized else None for leaf in leaves]
        sizes = [
            size if leaf.cut.chunk == 1 else [size, leaf.cut.chunk]
            for size, leaf in zip(chunks, leaves, strict=True)
        ]
        prints = "".join(one[:FINGERPRINT_DIGITS] for one in fingerprints_of(leaves))
        return pack([tree, ids, sizes, prints])

    @classmethod
    def unpack(cls, text: str) -> SavedTree:
        """Return the tree that `pack` packed. Raises StateError if it is damaged."""
        packed = unpack(text)
        try:
            tree, ids, sizes, digits = packed
            ends = range(FINGERPRINT_DIGITS, len(digits) + 1, FINGERPRINT_DIGITS)
            prints = [digits[end - FINGERPRINT_DIGITS : end] for end in ends]
            pairs = [size if isinstance(size, list) else [size, 1] for size in sizes]
            known = [
                SavedLeaf(chunks, chunk, own)
                for (chunks, chunk), own in zip(pairs, prints, strict=True)
            ]
            leaves = dict(zip(ids, known, strict=True))
            specs: dict[tuple[int, int | None], LeafSpec] = {}
            last = -1

            def spec(of: Any) -> Spec:
                nonlocal last
                step, stride = of if isinstance(of, list) else (of, None)
                if not isinstance(step, int):
                    return Spec.from_dict(of, spec)
                last += step
                if (last, stride) not in specs:
                    source = SavedSource(known[last], stride)
                    specs[last, stride] = LeafSpec(Leaf(id=ids[last], source=source))
                return specs[last, stride]

            return cls(spec(tree), leaves)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            NameError,
            RecursionError,
            TypeError,
            ValueError,
            SpecError,
        ) as error:
            raise StateError(
                f"state: its record of the tree is damaged ({error}). Use another checkpoint."
            ) from error

    def below(self, spec: Spec) -> SavedTree:
        """Return the tree below one of its specs."""
        return SavedTree(spec, {leaf.id: self.leaves[leaf.id] for leaf in leaves_of(spec)})

    def with_stages(self, spec: Spec) -> Spec:
        """Return new stages below the nodes above the stages of this tree, if both have stages."""
        if self.staged is None or not isinstance(spec, StagedSpec):
            return spec
        old = self.staged[1]

        def replaced(inner: Spec) -> Spec:
            if inner is old:
                return spec
            return inner.with_children(map(replaced, inner.children.values()))

        return replaced(self.spec)

    @cached_property
    def prints(self) -> dict[str, str]:
        """Digits of all that decides the samples of each leaf and their order, by id.

        A place in a leaf means the same samples only where they are equal.
        """
        orders: dict[str, set[str]] = {name: set() for name in self.leaves}
        continuing = self.continuing_leaves
        for continues, spec in self._pipelines:
            shared = shared_leaf_ids(spec)
            for path, tree in order_trees(spec).items():
                for leaf in leaves_of(tree.of):
                    if continues or leaf.id not in continuing:
                        # Several order trees over a leaf each have an order of their own.
                        own = path if leaf.id in shared else ""
                        shuffle = tree.shuffle
                        orders[leaf.id].add(f"{shuffle.window} {shuffle.sequence_length} {own}")
        return {
            name: f"{key(digits, *sorted(orders[name])):016x}"[:FINGERPRINT_DIGITS]
            for name, (_, _, digits) in self.leaves.items()
        }

    @property
    def _pipelines(self) -> list[tuple[bool, Spec]]:
        """The pipelines of the tree, each with whether its leaves continue where they were."""
        if self.staged is None:
            return [(True, self.spec)]
        return [(stage.on_enter == "continue", stage.of) for stage in self.staged[1].stages]

    @property
    def is_finite(self) -> bool:
        """Whether a pass over it ends."""
        return any(tree.deal for tree in order_trees(self.spec).values())

    @property
    def staged(self) -> tuple[str, StagedSpec] | None:
        """The path and the spec of its stages; None if it has none."""
        return next(
            ((path, spec) for path, spec in _paths(self.spec) if isinstance(spec, StagedSpec)), None
        )

    @property
    def continuing_leaves(self) -> set[str]:
        """The ids of leaves that continue where they were; stages restart the others."""
        return set(self.leaves) if self.staged is None else set(self.staged[1].leaf_ids)


def order_trees(spec: Spec) -> dict[str, ReferencesSpec]:
    """Return the order trees of a tree by their path."""
    return {path: inner for path, inner in _paths(spec) if isinstance(inner, ReferencesSpec)}


def _paths(spec: Spec) -> Iterator[tuple[str, Spec]]:
    return (("/".join(("root", *path)), inner) for path, inner in spec.walk())


def _order_nodes(root: Node[Any]) -> dict[str, ReferencesNode]:
    return {path: node for path, node in root.walk() if isinstance(node, ReferencesNode)}


Ledger = dict[str, int]
"""Leaf id -> number of its units that one lane has drawn."""


class SavedRun:
    """A saved run whose tree is no longer ours, lane by lane."""

    def __init__(self, state: RunState) -> None:
        self.state, self.tree = state, SavedTree.unpack(state.tree)
        shared = shared_leaf_ids(self.tree.spec)
        # Lanes have their tables in common.
        self._root = Context(seed=state.seed, lanes=state.lanes, shared_leaves=shared)
        self._nodes: dict[int, Node[Any]] = {}

    def node(self, lane: int) -> Node[Any]:
        """Return the root of a lane, where it was. Raises StateError if the state is damaged."""
        if lane not in self._nodes:
            self._nodes[lane] = self._restored(lane)
        return self._nodes[lane]

    def _restored(self, lane: int) -> Node[Any]:
        try:
            root = self.tree.spec.build(self._root.in_lane(lane))
        except (AttributeError, LookupError, TypeError, ValueError, SpecError) as error:
            raise StateMismatchError(
                f"state: the tree of the saved run cannot be built again without its functions "
                f"({type(error).__name__}: {error}). Undo the edit, or restore with "
                f"on_mismatch='restart'."
            ) from error
        place, own = self.state.places[lane], save(root)
        for path, names in own.items():
            if missing := sorted(names.keys() - place.get(path, {}).keys()):
                raise StateMismatchError(
                    f"state: it does not fit its own tree: lane {lane} has no "
                    f"{', '.join(missing)} of {path}. It is damaged: use another checkpoint."
                )
        restore(root, {path: {name: place[path][name] for name in own[path]} for path in own})
        return root

    def ledgers(self, lane: int) -> dict[str, Ledger]:
        """Return how many units a lane has drawn of each leaf, by the path of the order tree."""
        return {
            path: node.ledger()
            for path, node in self.node(lane).walk()
            if isinstance(node, ReferencesNode)
        }

    def ledger(self, lane: int, path: str = "") -> Ledger:
        """Return how many units a lane has drawn of each leaf, for the order tree at a path.

        Leaves that it did not have are counted as others have drawn them.
        """
        merged: Ledger = {}
        ledgers = self.ledgers(lane)
        for ledger in ledgers.values():
            for leaf_id, drawn in ledger.items():
                merged[leaf_id] = max(drawn, merged.get(leaf_id, 0))
        return {**merged, **ledgers.get(path, {})}

    def past(self, lane: int) -> LeafHistory:
        """Return what a lane has done to the leaves of its run, and returns what it held.

        Leaves of stages that restart them do not count.
        """
        return self._since_edit(lane).with_others(self.before_edits(lane))

    def _since_edit(self, lane: int) -> LeafHistory:
        """Return what a lane has done to its leaves since the last edit."""
        root = self.node(lane)
        for _, node in root.walk():
            if isinstance(node, StagedNode):
                return node.history(len(node.spec.stages))
        # Several order trees over a leaf each have an order of their own.
        times = Counter(chain.from_iterable(self.ledgers(lane).values()))
        return LeafHistory(self.ledger(lane), (one for one in held(root) if times[one[0]] == 1))

    def before_edits(self, lane: int) -> LeafHistory:
        """Return what a lane had done to leaves that edits removed; none of other samples."""
        gone = self.state.gone
        return gone.past_of(lane, {**gone.prints, **self.tree.prints})

    def keep_grains(self, root: Node[Any], kept: Collection[str]) -> None:
        """Deal these leaves to the lanes as the run did, in the order trees below `root`."""
        before = _order_nodes(self._first_lane)
        for path, node in _order_nodes(root).items():
            known = {**self.grains, **(before[path].grains if path in before else {})}
            node.keep_grains({name: known[name] for name in kept if name in known})

    @cached_property
    def grains(self) -> dict[str, Fraction]:
        """The size of the grains in which each leaf is dealt to the lanes, by id."""
        found = dict(self.state.gone.grains)
        staged = self.tree.staged and dict(self._first_lane.walk())[self.tree.staged[0]]
        assert staged is None or isinstance(staged, StagedNode)
        for tree in staged.continued_trees() if staged else _order_nodes(self._first_lane).values():
            found |= tree.grains
        return found

    @property
    def _first_lane(self) -> Node[Any]:
        return self.node(min(self.state.places))

    def kept(self, ours: SavedTree, *, restarting: bool = False) -> set[str]:
        """Return the leaves of our tree that continue where the run was, now or before an edit.

        restarting: whether those of stages that restart their leaves do so too.
        """
        known = {**self.state.gone.prints, **self.tree.prints}
        same = {name for name, own in ours.prints.items() if known.get(name) == own}
        if restarting:
            return same
        before = self.tree.continuing_leaves | (self.state.gone.prints.keys() - self.tree.leaves)
        return same & before & ours.continuing_leaves

    def removed(self, ours: SavedTree, lanes: Iterable[int]) -> RemovedLeaves:
        """Return how far the leaves were that our tree does not have."""
        continuing = self.tree.continuing_leaves
        prints = {name: own for name, own in self.tree.prints.items() if name in continuing}
        prints = {**self.state.gone.prints, **prints}
        # A stage that restarts its leaves cannot keep how far they were.
        names = prints.keys() - ours.continuing_leaves
        if not names:
            return RemovedLeaves()
        # Also of leaves whose samples are others now: how far they were with those before.
        pasts = {
            lane: self.past(lane).with_others(self.state.gone.past(lane)).of_leaves(names)
            for lane in lanes
        }
        grains = {name: self.grains[name] for name in names}
        return RemovedLeaves({name: prints[name] for name in names}, grains, pasts)
