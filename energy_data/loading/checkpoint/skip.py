"""Continuing some micro-batches later, without reading those between."""

from __future__ import annotations

from attrs import evolve

from energy_data.core.spec import Spec
from energy_data.errors import StateError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.saved_run import SavedTree
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.unary import UnarySpec

_ONE_BY_ONE = ("encode", "map", "read")  # nodes that give an item for each item


def skipped(state: RunState, batches: int) -> RunState:
    """Return the state that many micro-batches later, of all ranks; reads no data.

    What comes then is what an uninterrupted run would have given, as long as no sample of those
    left out would have been bad or skipped: a run makes up for such samples with the next.

    Raises StateError if the number is not a multiple of the ranks that saved, and where only
    drawing tells how many samples a micro-batch has: packs, groups, filters, stages, steps of
    documents, and finite streams.
    """
    ranks = state.hosted[1]
    if batches < 0 or batches % ranks:
        raise StateError(
            f"state: {batches} micro-batches are not so many for each of the {ranks} ranks that "
            f"saved. Skip a multiple of {ranks}."
        )
    if state.step is not None:
        raise StateError(f"state: it is of steps of documents. {_DRAW}")
    path, size = _batches_of(SavedTree.unpack(state.tree).spec)
    places = {}
    for lane, place in state.places.items():
        first = state.batch + (lane - state.batch) % state.lanes  # of the lane
        taken = max(0, -(-(state.batch + batches - first) // state.lanes))
        cursor = {**place[path], "draws": place[path]["draws"] + taken * size}
        places[lane] = {**place, path: cursor}
    return evolve(state, batch=state.batch + batches, clock=state.clock + batches, places=places)


def _batches_of(spec: Spec) -> tuple[str, int]:
    """Return the path of the order tree and the samples of a micro-batch."""
    if not isinstance(spec, BatchSpec):
        raise StateError(f"state: its stream is made by a {spec.kind}. {_DRAW}")
    path, of = "root/of", spec.of
    while not isinstance(of, ReferencesSpec):
        if of.kind not in _ONE_BY_ONE or not isinstance(of, UnarySpec) or not of.is_one_to_one:
            what = f"{of.kind} of several" if of.kind in _ONE_BY_ONE else of.kind
            raise StateError(f"state: there is a {what} in its tree. {_DRAW}")
        path, of = f"{path}/of", of.of
    if of.deal:
        raise StateError(f"state: it is of a finite stream. {_DRAW}")
    return path, spec.batch_size


_DRAW = (
    "How far so many micro-batches reach is known only when they are drawn: restore it, and draw "
    "them."
)
