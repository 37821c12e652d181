"""What compiling a stream needs to know of the object that builds its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from energy_data.core.spec import Spec
from energy_data.nodes.references import OrderSpec


class Built(Protocol):
    """A dataset of batches."""

    @property
    def spec(self) -> Spec:
        """Its tree."""


B_co = TypeVar("B_co", bound=Built, covariant=True)


class Builder(Protocol[B_co]):
    """Builds the batches of a mixture: those of a run, or of one of its stages.

    `energy_data.tasks.stream.StreamBuilder` is one.
    """

    @property
    def finite(self) -> bool:
        """Whether the stream is one pass."""

    @property
    def samples_per_batch(self) -> int:
        """Samples, or packs, in a micro-batch."""

    @property
    def samples_per_microbatch(self) -> int | None:
        """Samples drawn for a micro-batch, on average; None: as many as it has."""

    @property
    def microbatches_per_step(self) -> int | None:
        """Micro-batches of all ranks in an optimizer step."""

    @property
    def params(self) -> Mapping[str, Any]:
        """What a stage may change, with the values it has here."""

    def with_params(self, params: Mapping[str, Any]) -> Self:
        """Return the builder with some of its `params` changed. SpecError for an invalid value."""

    def with_step_size(self, microbatches: int | None) -> Self:
        """Return the builder with another number of micro-batches in a step."""

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> B_co:
        """Return the batches of a mixture, from a micro-batch of the run on."""

    def of(self, spec: Spec) -> B_co:
        """Return a tree of batches as a dataset."""
