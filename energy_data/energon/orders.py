"""Several trees as one, below reading where that can be said there: then it is exact.

A blend of datasets whose samples are only read (and cooked) is a blend of *references*: each sample
comes exactly once per epoch over all paths that lead to it, and the place is one integer per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from energy_data.core.spec import Spec
from energy_data.energon.cooking import cooked_alike, uncooked
from energy_data.energon.trees import with_references
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec


def blended(specs: Sequence[Spec], weights: Sequence[float]) -> Spec:
    """Return the blend of some trees."""

    def blend(parts: Sequence[Spec]) -> BlendSpec:
        return BlendSpec(tuple(map(Part, parts, weights)))

    return _below_reading(specs, blend) or blend(specs)


def concatenated(specs: Sequence[Spec]) -> Spec:
    """Return trees one after another."""
    return _below_reading(specs, lambda parts: ConcatSpec(tuple(parts))) or ConcatSpec(tuple(specs))


def _below_reading(
    specs: Sequence[Spec], join: Callable[[Sequence[OrderSpec]], OrderSpec]
) -> Spec | None:
    """Return trees that only read as one tree that reads what `join` makes of their orders."""
    reads = [spec for spec in map(uncooked, specs) if isinstance(spec, ReadSpec)]
    if len(reads) < len(specs):
        return None
    first = reads[0]
    if any(with_references(read, of=first.of.of) != first for read in reads):
        return None
    return cooked_alike(with_references(first, of=join([read.of.of for read in reads])), specs)
