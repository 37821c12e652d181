"""Building an edited metadataset as a saved run does: its state has all but the functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.checkpoint.saved_run import SavedTree
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.leaf import Shuffle, leaves_of
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.nodes.stage import DEFAULT, Stage
from energy_data.order.schedule import Clock
from energy_data.tasks.mixture import StreamBuilder

# Parameters that nodes have as a field, and what it is called there.
_FIELDS = {"batch_size": "batch_size", "packing_buffer_size": "buffer_size"}


def saved_stages(tree: SavedTree) -> Sequence[Stage]:
    """Return the stages of a saved run; a run without stages is one stage."""
    if tree.staged is not None:
        return tree.staged[1].stages
    shuffle = _references(tree.spec).shuffle
    params = {
        "shuffle_buffer_size": shuffle.window,
        "max_samples_per_sequence": shuffle.sequence_length,
    }
    for _, spec in tree.spec.walk():
        params |= {name: getattr(spec, at) for name, at in _FIELDS.items() if hasattr(spec, at)}
    return (Stage(name=DEFAULT, of=tree.spec, begin=0, params=params),)


def saved_params(
    stages: Sequence[Stage], changed: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the parameters of a stage that changes none.

    changed: by the name of a stage, the parameters that the edited metadataset changes there.
    """
    found: dict[str, Any] = {}
    for is_changed in (False, True):  # a value that every stage changes is not known
        for stage in stages:
            for name, value in _params_of_run(stage).items():
                if (name in changed.get(stage.name, ())) is is_changed:
                    found.setdefault(name, value)
    clock, size = _references(stages[0].of).clock, stages[0].params.get("batch_size")
    if clock is not None and clock.samples_per_microbatch != size:
        found["samples_per_microbatch"] = clock.samples_per_microbatch
    return found


def _params_of_run(stage: Stage) -> Mapping[str, Any]:
    """Return the parameters of a stage, without the `seq_len` of its windows of tokens."""
    has_windows = any(leaf.cut.chunk > 1 for leaf in leaves_of(_references(stage.of).of))
    return {
        name: value for name, value in stage.params.items() if name != "seq_len" or not has_windows
    }


def _references(spec: Spec) -> ReferencesSpec:
    """Return the order tree of a pipeline. SpecError if it has several."""
    found = [inner for _, inner in spec.walk() if isinstance(inner, ReferencesSpec)]
    if len(found) != 1:
        raise SpecError(
            f"plan: a task encoder of the saved run mixes {len(found)} streams by itself, so only "
            f"the program can apply an edit. Restore the state there: if it is refused, nothing "
            f"moves."
        )
    return found[0]


@frozen(kw_only=True)
class SavedBuilder(StreamBuilder):
    """Puts a mixture into the pipelines of a saved run, in place of the mixture that they had."""

    saved: Sequence[Stage]

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> SavableDataset[Any]:
        """Return the batches of a mixture, in the pipeline whose parameters are nearest."""
        params = self.params

        def likeness(stage: Stage) -> tuple[int, bool]:
            same = [name for name in params if stage.params.get(name) == params[name]]
            return len(same), stage.begin == first_microbatch

        like = max(self.saved, key=likeness)
        changed = {name for name in params if like.params.get(name) != params[name]}
        sizes = {at: params[name] for name, at in _FIELDS.items() if name in changed}
        was = _references(like.of)
        shuffle = was.shuffle
        if changed & {"shuffle_buffer_size", "max_samples_per_sequence"}:
            shuffle = Shuffle(
                buffer_size=self.shuffle_buffer_size, sequence_length=self.max_samples_per_sequence
            )

        def placed(spec: Spec) -> Spec:
            if spec is was:
                clock = self._clock_like(was.clock, first_microbatch) if order.follows_run else None
                return evolve(was, of=order, shuffle=shuffle, clock=clock)
            found: Any = spec.with_children(map(placed, spec.children.values()))
            own = {at: value for at, value in sizes.items() if hasattr(spec, at)}
            changed_spec: Spec = evolve(found, **own)
            return changed_spec

        return self.of(placed(like.of))

    def _clock_like(self, clock: Clock | None, first_microbatch: int) -> Clock:
        if clock is None:
            return self._clock(first_microbatch)
        return evolve(clock, first_microbatch=first_microbatch)
