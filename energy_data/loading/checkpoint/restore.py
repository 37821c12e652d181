"""Continuing with an edited tree, or with edited stages: where each lane is then.

Leaves that stay continue where they were. What may change in the stages of a run follows `resume`:

`strict`    finished stages and the current stage must be unchanged; later stages may change, and a
            run that has ended may continue if its last stage is made longer
`ablation`  as strict, and a new stage may begin exactly where the state was saved

`on_mismatch="keep_matching"` accepts any other change that does not return to a finished stage.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from dataclasses import replace
from fractions import Fraction
from functools import partial
from operator import sub
from typing import Any

from energy_data.core.cursor import State, raise_if, restore, save
from energy_data.core.node import ItemRef, Node
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.diff import (
    Stages,
    differences,
    misfits,
    never_kept,
    same_above_order,
    stage_edits,
)
from energy_data.loading.checkpoint.run_state import RemovedLeaves, RunState, listed
from energy_data.loading.checkpoint.saved_run import SavedRun, SavedTree, order_trees
from energy_data.loading.lanes import Nodes
from energy_data.nodes.buffered import BufferedNode
from energy_data.nodes.leaf import leaves_of
from energy_data.nodes.leaf_history import LeafHistory
from energy_data.nodes.plan_cache import Offsets
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.stage import DEFAULT, Resume, Stage
from energy_data.nodes.staged import StagedNode

log = logging.getLogger(__name__)


def check_stages(saved: RunState, nodes: Nodes) -> None:
    """Raise StateError if the stages of restored lanes are elsewhere than the run is."""
    entered = {
        repr(cursor["entered"])
        for place in saved.places.values()
        for cursor in place.values()
        if "entered" in cursor
    }
    if len(entered) > 1:
        raise StateError(
            f"state: it is damaged: lanes have entered stages at {' and at '.join(sorted(entered))}"
            f". Use another checkpoint."
        )
    for lane, root in nodes.items():
        staged, due = _staged_of(root), saved.nexts[lane]
        if staged is None:
            return
        if staged.batch != due:
            raise StateError(
                f"state: it is damaged: lane {lane} is at micro-batch {due}, and its stages at "
                f"{staged.batch}. Use another checkpoint."
            )
        step = (saved.step or {}).get("step", -1)
        # A stage that begins with this step may not have been entered yet.
        begins = [stage.begin for stage in staged.spec.stages]
        fitting = {bisect_right(begins, step) - 1, bisect_left(begins, step) - 1}
        if staged.spec.counts_steps and staged.number not in fitting:
            raise StateError(
                f"state: it is damaged: lane {lane} is in stage {staged.number}, which does not "
                f"have step {step}. Use another checkpoint."
            )


def restore_edited(saved: RunState, packed: str, nodes: Nodes, *, keep: bool) -> RemovedLeaves:
    """Continue with a tree that differs from the saved one; return the leaves that it lacks.

    packed: our tree, as `SavedTree.pack` returns it. keep: whether leaves continue by their ids
    where the edit is not accepted otherwise. Raises StateMismatchError that lists every problem;
    then the nodes must not be used.
    """
    run, ours = SavedRun(saved), SavedTree.unpack(packed)
    is_finite = run.tree.is_finite or ours.is_finite
    if (now := Stages.of(ours)) is not None and not is_finite:
        _restore_stages(run, now, nodes, keep=keep)
    elif keep and not is_finite:
        _restore_leaves(run, ours, nodes)
    else:
        advice = (
            "A finite stream cannot continue after an edit. Finish the pass before it, or restore "
            "with on_mismatch='restart'."
            if is_finite
            else "Restore with on_mismatch='keep_matching' to let unchanged leaves continue where "
            "they were, or 'restart' to start from the beginning."
        )
        found = _lines(differences(run.tree, ours))
        raise StateMismatchError(
            f"state: the tree was edited since it was saved:\n{found}\n{advice}"
        )
    return run.removed(ours, nodes)


def _restore_leaves(run: SavedRun, ours: SavedTree, nodes: Nodes) -> None:
    """Move the order trees to where the leaves of the saved run were, lane by lane.

    A leaf is the same if its id, its samples and their order are; all others start at 0.
    """
    kept, lost = run.kept(ours), 0
    for lane, node in nodes.items():
        run.keep_grains(node, kept)
        before = run.before_edits(lane).drawn
        past = run.past(lane) if run.tree.staged else None
        for path, inner in node.walk():
            if isinstance(inner, ReferencesNode):
                known = {**before, **run.ledger(lane, path)} if past is None else past.drawn
                drawn = [known.get(leaf.id, 0) if leaf.id in kept else 0 for leaf in inner.leaves]
                _put(inner, drawn, run.state.clock)
        if past is None:
            lost += _move_pending(run, ours, kept, node, lane)
        else:
            lost += len(list(past.of_leaves(ours.leaves).waiting()))
    _warn(run, ours, kept, lost)


def _warn(run: SavedRun, ours: SavedTree, kept: Collection[str], lost: int) -> None:
    known = run.state.gone.prints.keys() | run.tree.leaves.keys()
    log.warning(
        "restored after an edit: leaves that continue where they were: %d; that are new: %d%s; "
        "that start again because their samples or their shuffling changed: %d%s",
        len(kept),
        *_counted(ours.leaves.keys() - known),
        *_counted(known & ours.leaves.keys() - kept),
    )
    if lost:
        log.warning(
            "restored after an edit: %d samples of other leaves or nodes were read and not "
            "returned yet; they are not returned unless their leaf starts again",
            lost,
        )


def _counted(names: Collection[str]) -> tuple[int, str]:
    """Return how many names there are, and the first of them for a message."""
    return len(names), f" ({listed(sorted(names))})" if names else ""


def _move_pending(
    run: SavedRun,
    ours: SavedTree,
    kept: Collection[str],
    root: Node[Any],
    lane: int,
    of: Callable[[str], bool] = lambda _: True,
) -> int:
    """Let the nodes of a lane continue with what was pending; return how many samples are lost.

    kept: ids of the leaves that continue. of: returns whether to move what the node at a path
    holds; others stay as they are.
    """
    nodes, saved = dict(root.walk()), order_trees(run.tree.spec)
    paths, lost = {node: path for path, node in nodes.items()}, 0

    def change(order: Node[Any], reference: ItemRef) -> ItemRef | None:
        assert isinstance(order, ReferencesNode)
        entry, epoch, index = reference
        before = leaves_of(saved[paths[order]].of)
        was, now = [leaf.id for leaf in before], [leaf.id for leaf in order.entries]
        leaf_id = was[entry]
        if leaf_id not in kept or leaf_id not in now:
            return None
        places = [place for place, name in enumerate(now) if name == leaf_id]
        place = places[min(was[:entry].count(leaf_id), len(places) - 1)]
        span = before[entry].cut.span(index)
        same = order.entries[place].cut.indices([(epoch, span)])
        return (place, *same[0]) if len(same) == 1 else None  # shorter windows cannot stand for it

    for path, before in run.node(lane).walk():
        if not isinstance(before, BufferedNode) or not before.cursor.pending or not of(path):
            continue
        node = nodes.get(path)
        if isinstance(node, BufferedNode) and same_above_order(run.tree, ours, path):
            node.cursor = replace(node.cursor, **vars(before.cursor))
            node.move(change)
            lost += node.cursor.lost - before.cursor.lost
            raise_if(path, partial(node.faults, node.cursor))
        else:
            lost += len(before.cursor.pending)
    return lost


def _put(node: ReferencesNode, drawn: list[int], batch: int) -> None:
    """Let an order tree continue after so many units of its leaves, at a micro-batch of the run."""
    clock = node.spec.clock
    if clock is not None and node.spec.of.follows_run:
        # Its weights must be those of this place of the run.
        batches = max(batch - clock.first_microbatch, 0)
        samples = Fraction(batches * clock.samples_per_microbatch)
        node.cursor.draws = clock.draws(samples, node.context.lane, node.context.lanes)
    at, none = node.cursor, Offsets()
    before = node.plan.ledger(at.draws, none).tolist() if at.draws else []
    offsets = tuple(map(sub, drawn, before)) if before else tuple(drawn)
    at.offsets, at.since = offsets if any(offsets) else (), at.draws


def _restore_stages(run: SavedRun, now: Stages, nodes: Nodes, *, keep: bool) -> None:
    """Continue with stages that were edited, or raise. keep: also by ids of leaves."""
    rule = None if keep else _stages_of(next(iter(nodes.values()))).spec.resume
    found = differences(run.tree, now.tree)
    if (before := Stages.of(run.tree)) is None:
        before = Stages.single(run.tree, now)
        found = [*stage_edits(before.stages, now.stages), *found]
    clock = clock_of(run.state, now)
    wrong = misfits(before, now, clock, rule or "ablation")
    if not wrong:
        _continue_stages(run, before, now, nodes, clock)
    elif rule is None and not (wrong := never_kept(before, now, clock)):
        _carry_leaves(run, before, now, nodes)
    else:
        raise StateMismatchError(_refused(wrong, clock, now, rule))
    for difference in found:
        log.info("restored after an edit: %s", difference)


def clock_of(saved: RunState, now: Stages) -> int:
    """Return where a state is, in what the stages count: the next micro-batch, or step.

    Raises StateMismatchError if the state does not have it.
    """
    if not now.counts_steps:
        return saved.clock
    if saved.step is None:
        raise StateMismatchError(
            "state: it was saved without docs_per_step, and the stages of this run count steps, so "
            "the number of finished steps is not known. Restore with on_mismatch='restart'."
        )
    if saved.step["index"]:
        raise StateMismatchError(
            f"state: the stages were edited, and the state was saved inside step "
            f"{saved.step['step']}. Restore a state saved at the end of a step."
        )
    return int(saved.step["step"])


def _refused(wrong: list[str], clock: int, now: Stages, rule: Resume | None) -> str:
    advice = (
        "Undo these changes, or restore with on_mismatch='keep_matching' to continue with the "
        "leaves that are known."
    )
    if rule is None:
        advice = "Undo these changes, or restore with on_mismatch='restart'."
    unit = "step" if now.counts_steps else "micro-batch"
    return (
        f"state: the stages were edited since it was saved, at {unit} {clock} of the run"
        f"{f' (resume: {rule})' if rule else ''}:\n{_lines(wrong)}\n{advice}"
    )


def _lines(problems: list[str], most: int = 40) -> str:
    """Return problems line by line, the first ones if there are many."""
    more = [f"and {len(problems) - most} more"] if len(problems) > most else []
    return "\n".join(f"  - {problem}" for problem in [*problems[:most], *more])


def _continue_stages(run: SavedRun, before: Stages, now: Stages, nodes: Nodes, clock: int) -> None:
    """Continue with all that was played as it was; what lies ahead is new."""
    kept = run.kept(now.tree)
    for lane, node in nodes.items():
        state = save(node)
        for path, cursor in _staged_place(run, now, lane).items():
            stage = before.of_path(path)
            if path in state and (stage is None or stage.begin < clock):
                state[path] = dict(cursor)
        known = LeafHistory({})
        if run.tree.staged is not None:
            known = _stages_of(run.node(lane)).carried().of_leaves(kept)
        # It is of the leaves before.
        state[now.path] = {**state[now.path], "carried": (), "returned": ()}
        restore(node, state)
        run.keep_grains(node, kept)
        _carry(node, now, known.with_others(run.state.gone.past_of(lane, now.tree.prints)))


def _carry(node: Node[Any], now: Stages, past: LeafHistory) -> StagedNode:
    """Let the stages of a lane continue after what was done to their leaves."""
    staged = _stages_of(node)
    staged.carry(past)
    raise_if(now.path, partial(staged.faults, staged.cursor))
    return staged


def _carry_leaves(run: SavedRun, before: Stages, now: Stages, nodes: Nodes) -> None:
    """Let leaves continue by their ids; nothing else of what was played is kept."""
    saved, ours, lost = run.state, now.tree, 0
    playing, restarting = now.at(saved.clock), _restarting(before, now, saved.clock)
    kept = run.kept(ours, restarting=restarting is not None)
    for lane, node in nodes.items():
        run.keep_grains(node, kept)
        past = run.past(lane)
        staged = _carry(node, now, past.of_leaves(kept))
        staged.cursor.taken = saved.nexts[lane] // saved.lanes
        lost += len(list(past.of_leaves(ours.continuing_leaves - kept).waiting()))
        own = {} if restarting is None else run.ledgers(lane)
        for path, inner in node.walk():
            if isinstance(inner, ReferencesNode) and now.of_path(path) is playing:
                known = {name: n for name, n in own.get(path, {}).items() if name in kept}
                # Otherwise `carry` has what its leaves have had. Weights that follow the run
                # continue at its place all the same.
                _put(inner, [known.get(leaf.id, 0) for leaf in inner.leaves], saved.clock)
        if restarting is not None:
            lost += _move_pending(
                run, ours, kept, node, lane, of=lambda path: now.of_path(path) is restarting
            )
    _warn(run, ours, kept, lost)


def _restarting(before: Stages, now: Stages, clock: int) -> Stage | None:
    """Return the stage that is played if it has its leaves in an order of its own, as before."""
    current = now.at(clock)
    if current is None or current.on_enter != "restart":
        return None
    known = ((stage.name, stage.on_enter, stage.seed) for stage in before.stages)
    return current if (current.name, "restart", current.seed) in known else None


def _staged_place(run: SavedRun, now: Stages, lane: int) -> State:
    """Return the place of a lane; if its tree had no stages, with the one stage `default`."""
    saved, place = run.state, run.state.places[lane]
    if run.tree.staged is not None:
        return place
    moved = {_below_default(path, now.path): at for path, at in place.items()}
    cursor: dict[str, Any] = {"taken": saved.nexts[lane] // saved.lanes, "carried": ()}
    return {now.path: cursor | ({"entered": ()} if now.counts_steps else {}), **moved}


def _below_default(path: str, root: str) -> str:
    """Return the path that a node has if the stage `default` is at `root`, where it was or not."""
    if path != root and not path.startswith(f"{root}/"):
        return path
    return f"{root}/{DEFAULT}{path.removeprefix(root)}"


def _staged_of(root: Node[Any]) -> StagedNode | None:
    return next((node for _, node in root.walk() if isinstance(node, StagedNode)), None)


def _stages_of(root: Node[Any]) -> StagedNode:
    staged = _staged_of(root)
    assert staged is not None
    return staged
