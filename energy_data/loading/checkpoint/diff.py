"""How two trees differ, in words, and which edits of stages a state cannot continue after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from energy_data.core.cursor import shorten
from energy_data.core.recipe import share_of
from energy_data.core.spec import Spec
from energy_data.loading.checkpoint.saved_run import SavedLeaf, SavedTree
from energy_data.nodes.blend import WeightedSpec
from energy_data.nodes.many import MultiChildSpec
from energy_data.nodes.references import LeafSpec, OrderSpec, ReferencesSpec
from energy_data.nodes.stage import DEFAULT, Resume, Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.schedule import Schedule, shown_schedule


def differences(saved: SavedTree, ours: SavedTree) -> list[str]:
    """Return how two trees differ, in words of the YAML and of the arguments, the leaves first.

    Empty only if they draw the same samples in the same order.
    """
    gone = [f"leaf {leaf_id!r} is gone" for leaf_id in saved.leaves.keys() - ours.leaves.keys()]
    new = [f"leaf {leaf_id!r} is new" for leaf_id in ours.leaves.keys() - saved.leaves.keys()]
    changed = [
        f"leaf {leaf_id!r} has other samples{_sizes(saved.leaves[leaf_id], leaf)}"
        for leaf_id, leaf in ours.leaves.items()
        if saved.leaves.get(leaf_id, leaf).fingerprint != leaf.fingerprint
    ]
    found = [*sorted(gone), *sorted(new), *changed, *_edits(saved.spec, ours.spec, "")]
    if not found and _above_leaves(saved.spec) != _above_leaves(ours.spec):
        found = ["the same leaves are drawn in another order"]
    return list(dict.fromkeys(found))


def _sizes(saved: SavedLeaf, ours: SavedLeaf) -> str:
    if saved.chunk != ours.chunk:
        lengths = f"{saved.chunk} tokens, and are {ours.chunk}"
        return f": its longest windows were {lengths} (`max_seq_len`)"
    was, now = saved.chunks, ours.chunks
    return "" if None in (was, now) else f": it had {was}, and has {now}"


def _above_leaves(spec: Spec) -> Any:
    return spec.leaf.id if isinstance(spec, LeafSpec) else spec.to_dict(_above_leaves)


def _edits(saved: Spec, ours: Spec, where: str) -> Iterator[str]:
    """Yield how two specs and what is below them differ, in words; leaves are compared by id.

    where: The part of the tree, for the beginning of each sentence.
    """
    if saved.kind != ours.kind:
        yield f"{where}{_shown(saved)} became {_shown(ours)}"
        return
    if isinstance(saved, LeafSpec) and isinstance(ours, LeafSpec):
        lengths = [one.leaf.cut.stride for one in (saved, ours)]
        if saved.leaf.id == ours.leaf.id and lengths[0] != lengths[1]:
            which = f"{where}windows of leaf {saved.leaf.id!r}"
            yield f"{which} began every {lengths[0]} tokens, now every {lengths[1]}"
        return
    if isinstance(saved, StagedSpec) and isinstance(ours, StagedSpec):
        yield from stage_edits(saved.stages, ours.stages)
    else:
        was, now = _settings(saved), _settings(ours)
        for name in was:
            if name in now and was[name] != now[name]:
                yield f"{where}{name} was {shorten(was[name])}, is {shorten(now[name])}"
    yield from _edits_below(saved, ours, where)


def _shown(spec: Spec) -> str:
    """Return a spec in a few words, with the nodes below it as far as reading."""
    if isinstance(spec, LeafSpec):
        return f"leaf {spec.leaf.id!r}"
    below = None if isinstance(spec, OrderSpec) else spec.children.get("of")
    if below is None or isinstance(below, ReferencesSpec):
        return spec.kind
    return f"{spec.kind} of {_shown(below)}"


# How settings that decide the order are called where they are given; None: another one says it.
_NAMES = {
    "batch.aligned": None,
    "batch.drop_last": "batch_drop_last",
    "select_pack.buffer_size": "packing_buffer_size",
    "references.batch": None,
    "references.deal": "repeat",
    "references.shuffle.buffer_size": "effective shuffle_buffer_size",
    "references.shuffle.sequence_length": "max_samples_per_sequence",
    "references.shuffle.parallel_sequences": None,
}


def _settings(spec: Spec) -> dict[str, Any]:
    """Return the settings of one spec, by name."""
    _, values = spec.to_dict(lambda _: None, defaults=True)
    if isinstance(spec, MultiChildSpec):
        del values["parts"]
    if isinstance(spec, ReferencesSpec):
        values["deal"] = not spec.deal
    return dict(_named(values, spec.kind))


def _named(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        at = f"{path}.{key}"
        if isinstance(value, dict):
            yield from _named(value, at)
        elif (name := _NAMES.get(at, key)) is not None:
            yield name, value


def _edits_below(saved: Spec, ours: Spec, where: str) -> Iterator[str]:
    """Yield how the children of two specs of one kind differ, in words."""
    was, now = _children(saved), _children(ours)
    for label in now:
        if label in was:
            (before, share), (after, its_share) = was[label], now[label]
            if share != its_share:
                what = "weight" if isinstance(ours, WeightedSpec) else "repetitions"
                yield f"{where}{label}: {what} was {share}, is {its_share}"
            yield from _edits(before, after, f"{where}{label}: " if label else where)
    for one, other, what in ((was, now, "gone"), (now, was, "new")):
        for label, (child, _) in one.items():
            if label not in other and not isinstance(child, LeafSpec):
                yield f"{where}{label} is {what}"
    if [label for label in was if label in now] != [label for label in now if label in was]:
        yield f"{where}the parts of {ours.kind} are in another order"


def _children(spec: Spec) -> dict[str, tuple[Spec, str]]:
    """Return the children by what they are called in messages, each with its share in words."""
    if isinstance(spec, StagedSpec):
        return {f"stage {name!r}": (child, "") for name, child in spec.children.items()}
    if not isinstance(spec, MultiChildSpec):
        return dict.fromkeys([""], (spec.children["of"], "")) if spec.children else {}
    total = sum(spec.weights) if isinstance(spec, WeightedSpec) else 0
    found: dict[str, tuple[Spec, str]] = {}
    for number, (child, part) in enumerate(zip(spec.children.values(), spec.parts, strict=True)):
        label = _shown(child) if isinstance(child, LeafSpec) else f"{spec.kind}[{number}]"
        while label in found:
            label += " again"
        found[label] = child, _share(share_of(part), total)
    return found


def _share(share: Any, total: int) -> str:
    """Return a weight or a number of repetitions in words. total: of all weights; 0: unknown."""
    if isinstance(share, Schedule):
        return shown_schedule(share)
    return f"{100 * share / total:.4g} %" if total else f"{float(share or 0):g}"


_OF_STAGE = ("begin", "end", "on_enter", "seed", "microbatches_per_step")


def stage_edits(before: Sequence[Stage], now: Sequence[Stage]) -> Iterator[str]:
    """Yield how the stages of two trees differ, in sentences, without their pipelines."""
    was, is_ = [stage.name for stage in before], [stage.name for stage in now]
    yield from (f"stage {name!r} is gone" for name in was if name not in is_)
    for number, (name, new) in enumerate(zip(is_, now, strict=True)):
        if name not in was:
            yield f"stage {name!r} is new, as number {number}"
            continue
        old = before[was.index(name)]
        if was.index(name) != number:
            yield f"stage {name!r} was number {was.index(name)}, is number {number}"
        names = old.params.keys() | new.params.keys()
        for key, pair in _pairs(old, new, names):
            yield f"stage {name!r}: {key} was {pair[0]}, is {pair[1]}"


def _pairs(old: Stage, new: Stage, params: Iterable[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the attributes and the named parameters that differ."""
    pairs = [(key, (getattr(old, key), getattr(new, key))) for key in _OF_STAGE]
    pairs += [
        (key, (old.params.get(key), new.params.get(key)))
        for key in sorted(params)
        if key != "microbatches_per_step"
    ]
    return ((key, pair) for key, pair in pairs if pair[0] != pair[1])


@frozen
class Stages:
    """The stages of a tree, and the nodes above them."""

    path: str
    stages: Sequence[Stage]
    above: Any  # the data of the tree without the stages
    counts_steps: bool
    tree: SavedTree

    @classmethod
    def of(cls, tree: SavedTree) -> Stages | None:
        """Return the stages of a tree; None if it has none."""
        if tree.staged is None:
            return None
        path, spec = tree.staged
        return cls(path, spec.stages, _without(tree.spec, spec), spec.counts_steps, tree)

    @classmethod
    def single(cls, tree: SavedTree, like: Stages) -> Stages:
        """Return a tree without stages as one endless stage, where `like` has its stages."""
        names = tuple(like.path.split("/")[1:])
        body = dict(tree.spec.walk()).get(names, tree.spec)
        only = Stage(name=DEFAULT, of=body, begin=0)
        return cls(like.path, (only,), _without(tree.spec, body), like.counts_steps, tree)

    def at(self, clock: int) -> Stage | None:
        """Return the stage of micro-batch, or step, `clock`; None after the end."""
        return next((stage for stage in self.stages if not is_over(stage, clock)), None)

    def of_path(self, path: str) -> Stage | None:
        """Return the stage whose node, or a node below it, is at a path; None: of no stage."""
        own = [one for one in self.stages if f"{path}/".startswith(f"{self.path}/{one.name}/")]
        # Names may contain slashes: `a/b` is not below a stage `a`.
        return max(own, key=lambda stage: len(stage.name), default=None)


def _without(spec: Spec, removed: Spec) -> Any:
    """Return the data of a tree without one of its specs."""
    if spec is removed:
        return None
    return spec.to_dict(lambda child: _without(child, removed))


def same_above_order(saved: SavedTree, ours: SavedTree, path: str) -> bool:
    """Return whether the nodes at `path` and below it are the same, except for order trees."""
    names = tuple(path.split("/")[1:])
    found = [dict(tree.spec.walk()).get(names) for tree in (saved, ours)]
    return None not in found and len({repr(_above_order(spec)) for spec in found if spec}) == 1


def _above_order(spec: Spec) -> Any:
    return None if isinstance(spec, ReferencesSpec) else spec.to_dict(_above_order)


def is_over(stage: Stage, clock: int) -> bool:
    """Return whether a stage has ended at micro-batch, or step, `clock`."""
    return stage.end is not None and stage.end <= clock


def misfits(before: Stages, now: Stages, clock: int, rule: Resume) -> list[str]:
    """Return why a state at `clock` (micro-batch or step) cannot continue, in sentences."""
    wrong = _wrong_above(before, now)
    for number, stage in enumerate(before.stages):
        if stage.begin < clock:
            wrong += _of_stage(number, stage, before, now, clock, rule)
    return list(dict.fromkeys(wrong))


def _wrong_above(before: Stages, now: Stages) -> list[str]:
    same = (before.above, before.counts_steps) == (now.above, now.counts_steps)
    return [] if same else ["the nodes above the stages were edited"]


def never_kept(before: Stages, now: Stages, clock: int) -> list[str]:
    """Return why leaves cannot continue by their ids either, in sentences."""
    wrong = _wrong_above(before, now)
    if now.counts_steps:
        wrong.append(
            "stages that count steps cannot be edited like this: where each began is not known"
        )
    current, over = now.at(clock), {one.name for one in before.stages if is_over(one, clock)}
    if before.at(clock) is None and before.stages[-1].end == clock:
        over.discard(before.stages[-1].name)  # the run has ended, and continues
    if current is not None and current.name in over:
        wrong.append(f"stage {current.name!r} is over, and would play again")
    return wrong


def _of_stage(
    number: int, stage: Stage, before: Stages, now: Stages, clock: int, rule: Resume
) -> Iterator[str]:
    """Yield what is wrong with a finished stage, or the current one."""
    name, state = stage.name, "over" if is_over(stage, clock) else "being played"
    ours = now.stages[number] if number < len(now.stages) else None
    if ours is None or ours.name != name:
        known = [other.name for other in now.stages]
        moved = f"it is now number {known.index(name)}" if name in known else "it is gone"
        yield f"stage {name!r} is {state} as number {number}, and {moved}"
        return
    for key, (was, is_) in _pairs(stage, ours, stage.params.keys() & ours.params.keys()):
        is_unknown = key == "microbatches_per_step" and was is None
        advice = _about_end(stage, ours, before, clock, rule) if key == "end" else ""
        if advice is not None and not is_unknown:
            yield f"stage {name!r} is {state}; {key} was {was}, is {is_}{advice}"
    for difference in differences(before.tree.below(stage.of), now.tree.below(ours.of)):
        yield f"stage {name!r} is {state}; {difference}"


def _about_end(stage: Stage, ours: Stage, before: Stages, clock: int, rule: Resume) -> str | None:
    """Return what to add about another end of a stage; None if it may end there."""
    continues = ours.end is None or ours.end > clock
    if is_over(stage, clock):
        is_longer = stage is before.stages[-1] and stage.end == clock and continues
        return None if is_longer else ""
    if continues or (ours.end == clock and rule == "ablation"):
        return None
    if ours.end == clock:
        return ". To begin another stage at this state, write `resume: ablation`"
    return ", which the run has passed"
