"""Going on after the tree was edited: leaves that stayed continue where they were."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import sub
from typing import Any

from attrs import evolve

from energy_data.context import Context
from energy_data.damage import Fault, refuse, wrong_kinds
from energy_data.errors import StateError, StateMismatchError
from energy_data.leaves import leaf_entries
from energy_data.loader.gone import Gone
from energy_data.loader.stages import Plan
from energy_data.loader.state import RunState
from energy_data.loader.tree import TreeRecord, same_above_order
from energy_data.node import Change, Mark, Node, as_tuples
from energy_data.pending import PendingCursor, PendingNode
from energy_data.references import ReferencesNode, ReferencesSpec, follows_run

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
        self.trees = trees
        self._plan = Plan.of(self.record)
        needed = {*trees, *([self._plan.path] if self._plan else [])}
        for lane, place in state.places.items():
            if missing := sorted(needed - place.keys()):
                raise StateError(f"state: it is damaged: lane {lane} has no {', '.join(missing)}.")

    def of_lane(self, lane: int) -> dict[str, Ledger]:
        """Return the ledgers of a lane by the path of the order tree. Reads no data."""
        ledgers = {}
        for path, tree in self.trees.items():
            node = tree.build(self._context(path, lane))
            node.load_state_dict({"root": self.state.places[lane][path]})
            ids = [leaf.id for leaf in node.leaves]
            ledgers[path] = dict(zip(ids, node.ledger().tolist(), strict=True))
        return ledgers

    def of_stages(self, lane: int) -> Ledger | None:
        """Return the ledger of a lane over all stages that go on with their leaves.

        None: the run had no stages.
        """
        if self._plan is None:
            return None
        total = self._plan.carried(self.state.places[lane][self._plan.path])
        for path, ledger in self.of_lane(lane).items():
            row = self._plan.row_of(path)
            if row is not None and row.on_enter == "continue":
                for leaf_id, drawn in ledger.items():
                    total[leaf_id] = total.get(leaf_id, 0) + drawn
        return total

    def of_run(self, lane: int) -> Ledger:
        """Return how often a lane has drawn each leaf, of which several order trees are one."""
        of_stages = self.of_stages(lane)
        known = _of_tree(self.of_lane(lane), "") if of_stages is None else of_stages
        return {**self.before_edits(lane), **known}

    def before_edits(self, lane: int) -> Ledger:
        """Return how often a lane had drawn leaves that edits took out; none of other samples."""
        return {
            leaf_id: drawn
            for leaf_id, drawn in self.state.gone.all_of(lane).items()
            if self.record.leaves.get(leaf_id, (None, self.state.gone.prints[leaf_id]))[1]
            == self.state.gone.prints[leaf_id]
        }

    def is_kept(self, leaf_id: str, leaf: tuple[int | None, str]) -> bool:
        """Return whether a leaf is one that the run has drawn from, now or before an edit."""
        known = self.record.leaves.get(leaf_id)
        return known == leaf or (known is None and self.state.gone.prints.get(leaf_id) == leaf[1])

    def gone(self, ours: TreeRecord, lanes: Iterable[int]) -> Gone:
        """Return how far the leaves were that our tree does not have."""
        prints = {leaf_id: self.record.leaves[leaf_id][1] for leaf_id in _going_on(self.record)}
        prints = {**self.state.gone.prints, **prints}
        # A stage that restarts its leaves cannot keep how far they were.
        names = sorted(prints.keys() - _going_on(ours))
        drawn = {}
        for lane in lanes if names else ():
            known = {**self.state.gone.all_of(lane), **self.of_run(lane)}
            drawn[lane] = tuple(known.get(name, 0) for name in names)
        return Gone({name: prints[name] for name in names}, drawn)

    def _context(self, path: str, lane: int) -> Context:
        """Return the context that an order tree was built in."""
        context = Context(seed=self.state.seed, lane=lane, lanes=self.state.lanes)
        if self._plan is not None and (row := self._plan.row_of(path)) is not None:
            context = row.context(context)
        return evolve(context, path=tuple(path.split("/")[1:]))


def go_on(nodes: dict[int, Node[Any, Any]], ours: TreeRecord, saved: Ledgers) -> None:
    """Set the order trees of `nodes` to where the saved run's leaves were, lane by lane.

    A leaf counts as the same if its id and its samples are; all others start at 0.
    """
    kept = {leaf_id for leaf_id, leaf in ours.leaves.items() if saved.is_kept(leaf_id, leaf)}
    pending = Pending(saved, ours, kept)
    for lane, node in nodes.items():
        ledgers = saved.of_lane(lane)
        for path, inner in node.walk():
            if isinstance(inner, ReferencesNode):
                known = saved.of_stages(lane) or _of_tree(ledgers, path)
                known = {**saved.before_edits(lane), **known}
                drawn = [known.get(leaf.id, 0) if leaf.id in kept else 0 for leaf in inner.leaves]
                put(inner, drawn, saved.state.clock)
        pending.move(node, lane)
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

    def move(self, root: Node[Any, Any], lane: int) -> None:
        """Let the nodes of a lane go on with what is pending of leaves that are kept."""
        nodes = dict(root.walk())
        paths = {id(node): path for path, node in nodes.items()}

        def change(order: Node[Any, Any], reference: Mark) -> Mark | None:
            assert isinstance(order, ReferencesNode)
            was, now = self._entries[paths[id(order)]], _entries(order.spec)
            leaf_id = was[reference[0]]  # IndexError if damaged
            if leaf_id not in self.kept or leaf_id not in now:
                return None
            places = [place for place, name in enumerate(now) if name == leaf_id]
            which = was[: reference[0]].count(leaf_id)
            return (places[min(which, len(places) - 1)], *reference[1:])

        for path, cursor in self.saved.state.places[lane].items():
            if not cursor.get("pending"):
                continue
            node = nodes.get(path)
            if isinstance(node, PendingNode) and same_above_order(
                self.saved.record, self.ours, path
            ):
                refuse(path, partial(self._moved, node, cursor, change))
            else:
                refuse(path, partial(self._left_behind, cursor))

    def _moved(
        self, node: PendingNode[Any], cursor: Mapping[str, Any], change: Change
    ) -> Iterator[Fault]:
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

    def _left_behind(self, cursor: Mapping[str, Any]) -> Iterator[Fault]:
        """Count what was pending where our tree has no such node; yield what is damaged."""
        pending = as_tuples(cursor["pending"])
        yield from wrong_kinds(PendingCursor, {"pending": pending})
        self.lost += len(pending)


def _going_on(record: TreeRecord) -> set[str]:
    """Return the leaves that go on where they were; those that a stage restarts do not."""
    plan = Plan.of(record)
    return set(record.leaves) if plan is None else set(plan.leaf_ids)


def _entries(tree: ReferencesSpec) -> list[str]:
    """Return the id of the leaf of each entry of an order tree."""
    return [leaf.id for _, leaf in leaf_entries(tree.of)]


def put(node: ReferencesNode, drawn: list[int], batch: int) -> None:
    """Let an order tree go on after so many draws of its leaves, at a micro-batch of the run."""
    clock = node.spec.clock
    if clock is not None and follows_run(node.spec.of):
        # Its weights are to be those of this place of the run.
        batches = max(batch - clock.first_microbatch, 0)
        samples = Fraction(batches * clock.samples_per_microbatch)
        node.cursor.draws = clock.draws(samples, node.context.lane, node.context.lanes)
    before = node.plan.ledger(node.cursor.draws, ()).tolist() if node.cursor.draws else []
    node.cursor.offsets = tuple(map(sub, drawn, before)) if before else tuple(drawn)


def _of_tree(ledgers: dict[str, Ledger], path: str) -> Ledger:
    """Return the ledger for the order tree at `path`: its own, and what only others have drawn."""
    merged: Ledger = {}
    for ledger in ledgers.values():
        for leaf_id, drawn in ledger.items():
            merged[leaf_id] = max(drawn, merged.get(leaf_id, 0))
    return {**merged, **ledgers.get(path, {})}
