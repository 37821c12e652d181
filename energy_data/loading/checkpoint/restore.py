"""Going on after the stages of a run were edited: what may change, and where each lane is then.

`strict`    finished stages and the current stage must be unchanged; later stages may change, and a
            run that has ended may continue if its last stage is made longer
`ablation`  as strict, and a new stage may begin exactly where the state was saved

`on_mismatch="keep_matching"` accepts any other change that does not return to a finished stage:
leaves continue by their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from attrs import evolve

from energy_data.core.cursor import State, is_count, raise_if, restore, save, shorten, wrong_kinds
from energy_data.core.spec import Spec
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.ledger import Ledgers, Pending, put
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.stages import Plan, Row, edits
from energy_data.loading.checkpoint.tree import TreeRecord, differences
from energy_data.loading.lanes import Nodes
from energy_data.nodes.leaf_history import LeafHistory, StagedCursor
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.stage import DEFAULT, Resume
from energy_data.nodes.staged import StagedNode, StagedSpec

log = logging.getLogger(__name__)


def check_stages(saved: RunState) -> None:
    """Raise StateError if the stages of a lane are not at the micro-batch of the lane."""
    found = {
        lane: (path, cursor)
        for lane, place in saved.places.items()
        for path, cursor in place.items()
        if "carried" in cursor
    }
    at = {lane: _at(saved, lane, path, cursor) for lane, (path, cursor) in found.items()}
    entered = {lane: at["entered"] for lane, (_, at) in found.items() if "entered" in at}
    if entered:
        _check_entered(saved, entered)
    for lane, place in at.items():
        if place != (due := saved.batch + (lane - saved.batch) % saved.lanes):
            raise StateError(
                f"state: it is damaged: lane {lane} is at micro-batch {due}, and its stages at "
                f"{place}. Use another checkpoint."
            )


def _check_entered(saved: RunState, entered: Mapping[int, Any]) -> None:
    """Raise StateError if lanes are in other stages than the step of the run is."""
    plan, step = Plan.of(TreeRecord.unpack(saved.tree)), (saved.step or {}).get("step")
    if plan is None or not is_count(step):
        raise StateError(
            f"state: it is damaged: its stages count steps, and it is at step {shorten(step)}. Use "
            f"another checkpoint."
        )
    begun = sum(row.begin <= step for row in plan.rows) - 1
    # What begins with this step was not entered yet, or was.
    fitting = {begun, begun - (plan.rows[begun].begin == step)}
    counts = {len(each) if isinstance(each, list | tuple) else None for each in entered.values()}
    if len(set(map(repr, entered.values()))) > 1 or counts - fitting:
        lane, wrong = max(entered.items(), key=repr)
        raise StateError(
            f"state: it is damaged: lane {lane} has entered stages at {shorten(wrong)}, and step "
            f"{step} is of stage {begun}. Use another checkpoint."
        )


def _at(saved: RunState, lane: int, path: str, cursor: Mapping[str, Any]) -> int:
    """Return the micro-batch at which the stages of a lane are. StateError if it is damaged."""
    raise_if(path, lambda: wrong_kinds(StagedCursor, {"taken": cursor["taken"]}))
    return int(cursor["taken"]) * saved.lanes + lane


def fitted(saved: RunState, ours: TreeRecord, spec: Spec, nodes: Nodes, *, keep: bool) -> bool:
    """Continue with a tree whose stages were edited, or raise and move nothing.

    keep: whether leaves continue by their ids where `resume` does not accept the edit. Returns
    False if our tree has no stages. Raises StateMismatchError that lists every problem.
    """
    ours = TreeRecord.unpack(ours.pack())  # as a state has it
    now = Plan.of(ours)
    if now is None:
        return False
    record = TreeRecord.unpack(saved.tree)
    ledgers, before = Ledgers(saved), Plan.of(record)
    if before is None:
        saved = _staged(saved, now)
        before = Plan.plain(record, now)
    (staged,) = (inner for _, inner in spec.walk() if isinstance(inner, StagedSpec))
    clock = clock_of(saved, now)
    wrong = misfits(before, now, clock, "ablation" if keep else staged.resume)
    if not wrong:
        _continue(saved, before, now, nodes, clock)
    elif keep and not (wrong := _never_kept(before, now, clock)):
        _carry(saved, ledgers, (before, now), ours, nodes)
    else:
        raise StateMismatchError(_refused(wrong, clock, now, None if keep else staged.resume))
    for difference in (*edits(before, now), *differences(record, ours)):
        log.info("restored after an edit: %s", difference)
    return True


def clock_of(saved: RunState, now: Plan) -> int:
    """Return where a state is, in what the stages count: the next micro-batch, or step.

    Raises StateMismatchError if the state does not say.
    """
    if not now.counts_steps:
        return saved.clock
    if saved.step is None:
        raise StateMismatchError(
            "state: it was saved without docs_per_step, and the stages of this run count steps, so "
            "nobody knows how many are over. Restore with on_mismatch='restart'."
        )
    if saved.step["index"]:
        raise StateMismatchError(
            f"state: the stages were edited, and the state was saved inside step "
            f"{saved.step['step']}. Restore a state saved at the end of a step."
        )
    return int(saved.step["step"])


def misfits(before: Plan, now: Plan, clock: int, rule: Resume) -> list[str]:
    """Return in sentences why a state at `clock` (micro-batch or step) cannot continue."""
    wrong = _around(before, now)
    for number, row in enumerate(before.rows):
        if row.begin < clock:
            wrong += _of_stage(number, row, before, now, clock, rule)
    return wrong


def _around(before: Plan, now: Plan) -> list[str]:
    return ["the nodes above the stages were edited"] if before.around != now.around else []


def _never_kept(before: Plan, now: Plan, clock: int) -> list[str]:
    """Return in sentences why leaves cannot continue by their ids either."""
    wrong = _around(before, now)
    if now.counts_steps:
        wrong.append("stages that count steps cannot be edited so: where each began is not known")
    current, over = now.at(clock), {row.name for row in before.rows if row.is_over(clock)}
    if before.at(clock) is None and before.rows[-1].end == clock:
        over.discard(before.rows[-1].name)  # the run has ended, and continues
    if current is not None and current.name in over:
        wrong.append(f"stage {current.name!r} is over, and would play again")
    return wrong


def _of_stage(
    number: int, row: Row, before: Plan, now: Plan, clock: int, rule: Resume
) -> Iterator[str]:
    """Yield what is wrong with a finished stage, or the current one."""
    name, kind = row.name, "over" if row.is_over(clock) else "being played"
    ours = now.rows[number] if number < len(now.rows) else None
    if ours is None or ours.name != name:
        known = [other.name for other in now.rows]
        moved = f"it is now number {known.index(name)}" if name in known else "it is gone"
        yield f"stage {name!r} is {kind} as number {number}, and {moved}"
        return
    if ours.begin != row.begin:
        yield f"stage {name!r} is {kind}; it began at {row.begin}, and now at {ours.begin}"
    if not (row is before.rows[-1] and row.end == clock and _is_longer(ours, clock)):
        yield from _of_end(row, ours, clock, rule)
    for key in ("on_enter", "seed", "microbatches_per_step"):
        was, is_ = getattr(row, key), getattr(ours, key)
        if was != is_ and not (key == "microbatches_per_step" and was is None):
            yield f"stage {name!r} is {kind}; its {key} was {was}, is {is_}"
    for key in sorted(row.params.keys() & ours.params.keys()):
        was, is_ = row.params[key], ours.params[key]
        if was != is_ and key != "microbatches_per_step":
            yield f"stage {name!r} is {kind}; its {key} was {was}, is {is_}"
    for difference in differences(before.alone(row), now.alone(ours)):
        yield f"stage {name!r} is {kind}; {difference}"


def _is_longer(ours: Row, clock: int) -> bool:
    """Return whether a run that ended at `clock` continues with its last stage."""
    return ours.end is None or ours.end > clock


def _of_end(row: Row, ours: Row, clock: int, rule: Resume) -> Iterator[str]:
    if row.end == ours.end:
        return
    if row.is_over(clock):
        yield f"stage {row.name!r} is over; it ended at {row.end}, and now at {ours.end}"
    elif ours.end is not None and ours.end < clock:
        yield f"stage {row.name!r} would have ended at {ours.end}, which the run has passed"
    elif ours.end == clock and rule == "strict":
        yield (
            f"stage {row.name!r} is being played and now ends here. To begin another stage at "
            f"this state, write `resume: ablation`"
        )


def _refused(wrong: list[str], clock: int, now: Plan, rule: Resume | None) -> str:
    advice = (
        "Undo these changes, or restore with on_mismatch='keep_matching' to continue with the "
        "leaves that are known."
    )
    if rule is None:
        advice = "Undo these changes, or restore with on_mismatch='restart'."
    lines = "\n".join(f"  - {problem}" for problem in wrong)
    unit = "step" if now.counts_steps else "micro-batch"
    return (
        f"state: the stages were edited since it was saved, at {unit} {clock} of the run"
        f"{f' (resume: {rule})' if rule else ''}:\n{lines}\n{advice}"
    )


def _continue(saved: RunState, before: Plan, now: Plan, nodes: Nodes, clock: int) -> None:
    """Go on with all that was played as it was; what lies ahead is new."""
    for lane, node in nodes.items():
        state = save(node)
        for path, cursor in saved.places[lane].items():
            row = before.row_of(path)
            if path in state and (row is None or row.begin < clock):
                state[path] = dict(cursor)
        known = before.carried(saved.places[lane].get(before.path, {}))
        # It is of the leaves before.
        state[before.path] = {**state[before.path], "carried": (), "returned": ()}
        restore(node, state)
        staged = _staged_of(node)
        gone = saved.gone.past_of(lane, now.leaves)
        gone = gone.of_leaves(gone.drawn.keys() - known.drawn.keys())
        staged.carry(
            LeafHistory({**gone.drawn, **known.drawn}, (*gone.waiting(), *known.waiting()))
        )
        raise_if(now.path, partial(staged.faults, staged.cursor))


def _carry(
    saved: RunState, ledgers: Ledgers, plans: tuple[Plan, Plan], ours: TreeRecord, nodes: Nodes
) -> None:
    """Let leaves go on by their ids; nothing else of what was played is kept."""
    before, now = plans
    kept = {
        leaf_id
        for leaf_id, (_, fingerprint) in now.leaves.items()
        if leaf_id in before.leaves and before.leaves[leaf_id][1] == fingerprint
    }
    kept |= saved.gone.past_of(next(iter(nodes)), now.leaves).drawn.keys() - before.leaves.keys()
    playing, restarting = now.at(saved.clock), _restarting(before, now, saved.clock)
    pending, others = Pending(ledgers, ours, kept), set(now.leaf_ids) - kept
    for lane, node in nodes.items():
        staged = _staged_of(node)
        staged.cursor.taken = saved.places[lane][before.path]["taken"]
        past = ledgers.past(lane)
        staged.carry(past.of_leaves(kept))
        raise_if(now.path, partial(staged.faults, staged.cursor))
        pending.lost += len(list(past.of_leaves(others).waiting()))
        own = {} if restarting is None else ledgers.of_lane(lane)
        for path, inner in node.walk():
            if isinstance(inner, ReferencesNode) and now.row_of(path) is playing:
                known = {name: n for name, n in own.get(path, {}).items() if name in kept}
                # Else what its leaves have had is in what is carried; weights that follow the run
                # go on at its place all the same.
                put(inner, [known.get(leaf.id, 0) for leaf in inner.leaves], saved.clock)
        if restarting is not None:
            pending.move(node, lane, of=lambda path: now.row_of(path) is restarting)
    log.warning(
        "restored although stages were edited: %d leaves go on where they were, the others begin%s",
        len(kept),
        f"; {pending.lost} samples were read and not given yet, of leaves or nodes that are gone "
        f"now; they are lost"
        if pending.lost
        else "",
    )


def _restarting(before: Plan, now: Plan, clock: int) -> Row | None:
    """Return the stage that is played if it has its leaves in an order of its own, as before."""
    current = now.at(clock)
    if current is None or current.on_enter != "restart":
        return None
    known = ((row.name, row.on_enter, row.seed) for row in before.rows)
    return current if (current.name, "restart", current.seed) in known else None


def _staged(saved: RunState, now: Plan) -> RunState:
    """Return a state of a tree without stages as that of one with the one stage `default`."""
    places: dict[int, State] = {}
    for lane, state in saved.places.items():
        moved = {_below_default(path, now.path): at for path, at in state.items()}
        taken = len(range(lane, saved.batch, saved.lanes))
        entered = {"entered": ()} if now.counts_steps else {}
        places[lane] = {now.path: {"taken": taken, "carried": (), **entered}, **moved}
    return evolve(saved, places=places)


def _below_default(path: str, root: str) -> str:
    """Return the path that a node has if the stage `default` is at `root`, where it was or not."""
    if path != root and not path.startswith(f"{root}/"):
        return path
    return f"{root}/{DEFAULT}{path.removeprefix(root)}"


def _staged_of(node: Any) -> StagedNode:
    (staged,) = (inner for _, inner in node.walk() if isinstance(inner, StagedNode))
    return staged
