"""Going on after the tree was edited: leaves that stayed continue where they were."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from operator import sub
from typing import Any

from attrs import evolve

from energy_data.core.context import Context
from energy_data.core.cursor import Problem, as_tuples, raise_if, restore, wrong_kinds
from energy_data.core.node import Change, ItemRef, Node
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.history import Gone
from energy_data.loading.checkpoint.remembered import remembered
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.stages import Plan
from energy_data.loading.checkpoint.tree import TreeRecord, built_order_trees, same_above_order
from energy_data.nodes.buffered import BufferedCursor, BufferedNode
from energy_data.nodes.leaf_history import LeafHistory, StagedCursor, StageHistory, held
from energy_data.nodes.leaves import leaf_entries
from energy_data.nodes.references import ReferencesNode, ReferencesSpec, follows_run

log = logging.getLogger(__name__)

Ledger = dict[str, int]
"""Leaf id -> number of samples one lane has drawn from it."""


class Ledgers:
    """How often each lane of a saved run had drawn each leaf of each of its order trees."""

    def __init__(self, state: RunState) -> None:
        self.record = TreeRecord.unpack(state.tree)
        self.state = state
        trees = self.record.order_trees()
        if any(tree.deal for tree in trees.values()):
            raise StateMismatchError(
                "state: a finite stream cannot go on after its tree was edited. Finish it first, "
                "or restore with on_mismatch='restart'."
            )
        self.trees = {path: trees[path] for path in built_order_trees(self.record.description)}
        self._plan = Plan.of(self.record)
        # Lanes have their tables in common.
        self._root = Context(seed=state.seed, lanes=state.lanes)
        self.had_stages = self._plan is not None
        needed = {*self.trees, *([self._plan.path] if self._plan else [])}
        for lane, place in state.places.items():
            if missing := sorted(needed - place.keys()):
                raise StateError(f"state: it is damaged: lane {lane} has no {', '.join(missing)}.")

    def of_lane(self, lane: int) -> dict[str, Ledger]:
        """Return the ledgers of a lane by the path of the order tree. Reads no data."""
        return {path: _drawn_by(self._tree(path, lane)) for path in self.trees}

    def past(self, lane: int) -> LeafHistory:
        """Return what a lane has done to the leaves of its run; what it held comes back to them.

        What the stages that restart their leaves have drawn, and hold, does not count.
        """
        past, before = self._since_edit(lane), self.before_edits(lane)
        return LeafHistory({**before.drawn, **past.drawn}, (*before.waiting(), *past.waiting()))

    def of_run(self, lane: int) -> Ledger:
        """Return how often a lane has drawn each leaf, of which several order trees are one."""
        return self.past(lane).drawn

    def _since_edit(self, lane: int) -> LeafHistory:
        """Return what a lane has done to its leaves since the last edit."""
        plan = self._plan
        if plan is None:
            return self._of_tree(lane)
        carried = plan.carried(self.state.places[lane][plan.path])
        nodes = self.remembered(lane).walk()
        staged = next(node for path, node in nodes if path == plan.path)
        staged.cursor = StagedCursor()
        return StageHistory(staged, plan.rows, lambda: carried).until_end(len(plan.rows) - 1)

    def _of_tree(self, lane: int) -> LeafHistory:
        ledgers = self.of_lane(lane)
        # Several order trees over a leaf have each an order of its own.
        times = Counter(chain.from_iterable(ledgers.values()))
        waiting = held(self.remembered(lane))
        return LeafHistory(_of_tree(ledgers, ""), (one for one in waiting if times[one[0]] == 1))

    def remembered(self, lane: int) -> Node[Any]:
        """Return the tree of a lane as far as it knows what it had drawn and not given."""
        return remembered(
            self.record.description,
            "root",
            self.state.places[lane],
            lambda path: self._tree(path, lane),
        )

    def _tree(self, path: str, lane: int) -> ReferencesNode:
        """Return an order tree where it was in a lane."""
        node = self.trees[path].build(self._context(path, lane))
        restore(node, {"root": self.state.places[lane][path]})
        return node

    def before_edits(self, lane: int) -> LeafHistory:
        """Return what a lane had done to leaves that edits took out; none of other samples."""
        gone, known = self.state.gone, self.record.leaves
        still = {name: known.get(name, (None, said)) for name, said in gone.prints.items()}
        return gone.past_of(lane, still)

    def is_kept(self, leaf_id: str, leaf: tuple[int | None, str]) -> bool:
        """Return whether a leaf is one that the run has drawn from, now or before an edit."""
        known = self.record.leaves.get(leaf_id)
        return known == leaf or (known is None and self.state.gone.prints.get(leaf_id) == leaf[1])

    def gone(self, ours: TreeRecord, lanes: Iterable[int]) -> Gone:
        """Return how far the leaves were that our tree does not have."""
        prints = {leaf_id: self.record.leaves[leaf_id][1] for leaf_id in _going_on(self.record)}
        prints = {**self.state.gone.prints, **prints}
        # A stage that restarts its leaves cannot keep how far they were.
        names = prints.keys() - _going_on(ours)
        return Gone.of(
            {name: prints[name] for name in names},
            {lane: self._and_before(lane) for lane in lanes} if names else {},
        )

    def _and_before(self, lane: int) -> LeafHistory:
        """Return the past of a lane, and that of leaves whose samples are others now."""
        before, past = self.state.gone.past(lane), self.past(lane)
        others = before.of_leaves(before.drawn.keys() - past.drawn.keys())
        return LeafHistory({**others.drawn, **past.drawn}, (*others.waiting(), *past.waiting()))

    def _context(self, path: str, lane: int) -> Context:
        """Return the context that an order tree was built in."""
        context = self._root.in_lane(lane)
        if self._plan is not None and (row := self._plan.row_of(path)) is not None:
            context = row.context(context)
        return evolve(context, path=tuple(path.split("/")[1:]))


def go_on(nodes: dict[int, Node[Any]], ours: TreeRecord, saved: Ledgers) -> None:
    """Set the order trees of `nodes` to where the saved run's leaves were, lane by lane.

    A leaf counts as the same if its id and its samples are; all others start at 0.
    """
    kept = {leaf_id for leaf_id, leaf in ours.leaves.items() if saved.is_kept(leaf_id, leaf)}
    pending = Pending(saved, ours, kept)
    for lane, node in nodes.items():
        before, ledgers = saved.before_edits(lane).drawn, saved.of_lane(lane)
        past = saved.past(lane) if saved.had_stages else None
        for path, inner in node.walk():
            if isinstance(inner, ReferencesNode):
                known = {**before, **_of_tree(ledgers, path)} if past is None else past.drawn
                drawn = [known.get(leaf.id, 0) if leaf.id in kept else 0 for leaf in inner.leaves]
                put(inner, drawn, saved.state.clock)
        if past is None:
            pending.move(node, lane)
        else:
            pending.lost += len(list(past.of_leaves(ours.leaves).waiting()))
    if pending.lost:
        log.warning(
            "restored after an edit: %d samples were read and not given yet, of leaves or nodes "
            "that are gone now; they are lost",
            pending.lost,
        )
    fresh = sorted(ours.leaves.keys() - kept)
    log.warning(
        "restored after an edit: %d leaves go on where they were, %d start at their beginning%s",
        len(kept),
        len(fresh),
        f" ({', '.join(fresh[:8])}{', ...' if len(fresh) > 8 else ''})" if fresh else "",
    )


class Pending:
    """What was pending in nodes that pack, group or take samples apart, for the edited tree."""

    def __init__(self, saved: Ledgers, ours: TreeRecord, kept: set[str]) -> None:
        self.saved, self.ours, self.kept = saved, ours, kept
        self.lost = 0
        self._entries = {path: _entries(tree) for path, tree in saved.trees.items()}

    def move(self, root: Node[Any], lane: int, of: Callable[[str], bool] = lambda _: True) -> None:
        """Let the nodes of a lane go on with what is pending of leaves that are kept.

        of: returns whether it is of the node at a path; others stay as they are.
        """
        nodes = dict(root.walk())
        paths = {id(node): path for path, node in nodes.items()}

        def change(order: Node[Any], reference: ItemRef) -> ItemRef | None:
            assert isinstance(order, ReferencesNode)
            was, now = self._entries[paths[id(order)]], _entries(order.spec)
            leaf_id = was[reference[0]]  # IndexError if damaged
            if leaf_id not in self.kept or leaf_id not in now:
                return None
            places = [place for place, name in enumerate(now) if name == leaf_id]
            which = was[: reference[0]].count(leaf_id)
            return (places[min(which, len(places) - 1)], *reference[1:])

        for path, cursor in self.saved.state.places[lane].items():
            if not cursor.get("pending") or not of(path):
                continue
            node = nodes.get(path)
            if isinstance(node, BufferedNode) and same_above_order(
                self.saved.record, self.ours, path
            ):
                raise_if(path, partial(self._moved, node, cursor, change))
            else:
                raise_if(path, partial(self._left_behind, cursor))

    def _moved(
        self, node: BufferedNode[Any], cursor: Mapping[str, Any], change: Change
    ) -> Iterator[Problem]:
        """Let a node go on with what was pending of leaves that are kept; yield what is damaged."""
        values = {name: as_tuples(value) for name, value in cursor.items()}
        wrong = list(wrong_kinds(type(node.cursor), values))
        yield from wrong
        if not wrong:
            node.cursor = replace(node.cursor, **values)
            yield from node.own_faults(node.cursor)
            node.move(change)
            self.lost += node.cursor.lost - values["lost"]
            yield from node.faults(node.cursor)

    def _left_behind(self, cursor: Mapping[str, Any]) -> Iterator[Problem]:
        """Count what was pending where our tree has no such node; yield what is damaged."""
        pending = as_tuples(cursor["pending"])
        yield from wrong_kinds(BufferedCursor, {"pending": pending})
        self.lost += len(pending)


def _going_on(record: TreeRecord) -> set[str]:
    """Return the leaves that go on where they were; those that a stage restarts do not."""
    plan = Plan.of(record)
    return set(record.leaves) if plan is None else set(plan.leaf_ids)


def _entries(tree: ReferencesSpec) -> list[str]:
    """Return the id of the leaf of each entry of an order tree."""
    return [leaf.id for _, leaf in leaf_entries(tree.of)]


def _drawn_by(tree: ReferencesNode) -> Ledger:
    return dict(zip((leaf.id for leaf in tree.leaves), tree.ledger().tolist(), strict=True))


def put(node: ReferencesNode, drawn: list[int], batch: int) -> None:
    """Let an order tree go on after so many draws of its leaves, at a micro-batch of the run."""
    clock = node.spec.clock
    if clock is not None and follows_run(node.spec.of):
        # Its weights are to be those of this place of the run.
        batches = max(batch - clock.first_microbatch, 0)
        samples = Fraction(batches * clock.samples_per_microbatch)
        node.cursor.draws = clock.draws(samples, node.context.lane, node.context.lanes)
    before = node.plan.ledger(node.cursor.draws, ()).tolist() if node.cursor.draws else []
    offsets = tuple(map(sub, drawn, before)) if before else tuple(drawn)
    node.cursor.offsets = offsets if any(offsets) else ()


def _of_tree(ledgers: dict[str, Ledger], path: str) -> Ledger:
    """Return the ledger for the order tree at `path`: its own, and what only others have drawn."""
    merged: Ledger = {}
    for ledger in ledgers.values():
        for leaf_id, drawn in ledger.items():
            merged[leaf_id] = max(drawn, merged.get(leaf_id, 0))
    return {**merged, **ledgers.get(path, {})}
