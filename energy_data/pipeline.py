"""The pipeline: from an order tree to batches, with its parameters in one place."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.read import OnError, ReadSpec
from energy_data.references import OrderSpec, ReferencesSpec, Shuffle
from energy_data.spec import Spec
from energy_data.tasks.encoder import TaskEncoder


@frozen(kw_only=True)
class Pipeline:
    """Everything between references and batches.

    A run has one, or one for each of its stages; `attrs.evolve` makes one from another.
    """

    batch_size: int  # samples per micro-batch
    task_encoder: TaskEncoder[Any, Any, Any, Any]
    shuffle: Shuffle = field(factory=Shuffle)
    finite: bool = False  # one pass, dealt to the lanes, with one short batch at most
    drop_last: bool = False  # leave out the short batch at the end of a pass
    on_error: OnError = "skip"

    def __attrs_post_init__(self) -> None:
        if self.batch_size < 1:
            raise SpecError(f"batch_size: must be >= 1, got {self.batch_size}.")

    def over(self, order: OrderSpec) -> Spec:
        """Return the tree that gives batches: references, samples, encoded samples, batches."""
        references = ReferencesSpec(
            of=order,
            shuffle=self.shuffle,
            deal=self.batch_size if self.finite else 0,
            drop_last=self.finite and self.drop_last,
        )
        read = ReadSpec(of=references, on_error=self.on_error)
        return BatchSpec(
            of=EncodeSpec(of=read, encode=self.task_encoder.sample_encoder),
            batch_size=self.batch_size,
            collate=self.task_encoder.collate,
            drop_last=self.drop_last,
            aligned=self.finite,
        )
