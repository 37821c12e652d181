"""The pipeline: from an order tree to batches, with its parameters in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.buffered import gives_parts
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.leaves import Shuffle
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.read import OnError, ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec, follows_run
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.order.schedule import Clock
from energy_data.tasks.encoder import TaskEncoder

# Where what a lane makes of a reference cannot be counted, a finite pass is dealt in such groups:
# small, so that lanes get equally many, and neighbours, so that they are read together.
UNCOUNTED_DEAL = 8


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
    microbatches_per_step: int | None = None  # of all ranks
    packing_buffer_size: int | None = None  # encoded samples of a lane that packs are chosen from
    # For weights that change: mean tokens of a sample, and samples drawn for a micro-batch.
    tokens_per_sample: float | None = None
    samples_per_microbatch: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.batch_size < 1:
            raise SpecError(f"batch_size: must be >= 1, got {self.batch_size}.")
        for name in ("microbatches_per_step", "tokens_per_sample", "samples_per_microbatch"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise SpecError(f"{name}: must be > 0, got {value}.")
        if self.packing_buffer_size is not None and not self._packs:
            raise SpecError(
                f"packing_buffer_size: {type(self.task_encoder).__name__} does not say how samples "
                f"are packed. Give it a `packing`, or `select_samples_to_pack` and "
                f"`pack_selected_samples`; or leave packing_buffer_size out."
            )

    @property
    def params(self) -> dict[str, Any]:
        """What a stage may change, with the values it has here."""
        return {
            **self.task_encoder.params,
            "batch_size": self.batch_size,
            "shuffle_buffer_size": self.shuffle.buffer_size,
            "max_samples_per_sequence": self.shuffle.sequence_length,
            "microbatches_per_step": self.microbatches_per_step,
            "packing_buffer_size": self.packing_buffer_size,
        }

    def with_params(self, params: Mapping[str, Any]) -> Pipeline:
        """Return the pipeline with some of its `params` changed.

        Raises SpecError for a value that cannot be. All names must be among `params`.
        """
        shuffle = evolve(
            self.shuffle,
            buffer_size=_count(params, "shuffle_buffer_size", self.shuffle.buffer_size),
            sequence_length=_count(
                params, "max_samples_per_sequence", self.shuffle.sequence_length
            ),
        )
        own: dict[str, Any] = {
            "batch_size": self.batch_size,
            "microbatches_per_step": self.microbatches_per_step,
            "packing_buffer_size": self.packing_buffer_size,
        }
        own = {name: params.get(name, value) for name, value in own.items()}
        for name, value in own.items():
            if name in params and (type(value) is not int or value < 1):
                raise SpecError(f"{name}: must be a whole number >= 1, got {value!r}.")
        theirs = {name: params[name] for name in params if name in self.task_encoder.params}
        try:
            encoder = self.task_encoder.with_params(**theirs) if theirs else self.task_encoder
        except (TypeError, ValueError) as error:
            said = ", ".join(f"{name}={value!r}" for name, value in theirs.items())
            raise SpecError(f"the task encoder does not take {said}: {error}.") from error
        return evolve(self, shuffle=shuffle, task_encoder=encoder, **own)

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> Spec:
        """Return the tree that gives batches: references, samples, encoded samples, batches.

        Finite, and with one sample for each reference, batch g has references [g * batch_size,
        (g + 1) * batch_size). Else (packs, groups, generators) lanes fill batches by themselves,
        and each may have short ones at its end.

        first_microbatch: the one of the run with which it begins.
        """
        references = ReferencesSpec(
            of=order,
            shuffle=self.shuffle,
            deal=(self.batch_size if self._counted else UNCOUNTED_DEAL) if self.finite else 0,
            drop_last=self.finite and self.drop_last and self._counted,
            clock=self._clock(first_microbatch) if follows_run(order) else None,
        )
        keys = self._encoder.has_functions
        samples = self._encoded(ReadSpec(of=references, on_error=self.on_error, keys=keys))
        if self._encoder.grouper:
            return GroupSpec(
                of=samples,
                batch_size=self.batch_size,
                criterion=self._encoder.grouper,
                collate=self._encoder.collate,
                drop_last=self.drop_last,
            )
        return BatchSpec(
            of=samples,
            batch_size=self.batch_size,
            collate=self._encoder.collate,
            drop_last=self.drop_last,
            aligned=self.finite and self._counted,
            shows_none=self._encoder.only_collates,
        )

    def _encoded(self, read: Spec) -> Spec:
        """Return encoded samples, packed if they are to be."""
        encoder = self._encoder
        encoded = EncodeSpec(of=read, encode=encoder.sample_encoder)
        if encoder.selector and self.packing_buffer_size is not None:
            return SelectPackSpec(
                of=encoded,
                select=encoder.selector,
                pack=encoder.pack_selected_samples,
                encode=encoder.selected_encoder,
                buffer_size=self.packing_buffer_size,
            )
        if encoder.selected_encoder:
            encoded = EncodeSpec(of=encoded, encode=encoder.selected_encoder)
        if encoder.packing is None:
            return encoded
        if self.packing_buffer_size is None:
            return PackSpec(of=encoded, packing=encoder.packing)
        return PackSpec(of=encoded, packing=encoder.packing, buffer_size=self.packing_buffer_size)

    @property
    def _encoder(self) -> TaskEncoder[Any, Any, Any, Any]:
        return self.task_encoder

    @property
    def _packs(self) -> bool:
        selects = self._encoder.selector is not None and self.packing_buffer_size is not None
        return selects or self._encoder.packing is not None

    @property
    def _counted(self) -> bool:
        """Whether each sample of a batch is one that was drawn."""
        return not (self._packs or self._encoder.grouper or self._gives_parts)

    def _clock(self, first_microbatch: int) -> Clock:
        """Return how steps and tokens of the run are counted in samples drawn."""
        drawn = self.samples_per_microbatch
        if drawn is None and not self._counted:
            raise SpecError(
                "weights change over the run, and how many samples a micro-batch takes is not "
                "known: they are packed, grouped or cut. Give their mean, `samples_per_microbatch`."
            )
        tokens = self.tokens_per_sample
        if tokens is None and self._counted:
            tokens = self.params.get("seq_len")
        return Clock(
            samples_per_microbatch=drawn or self.batch_size,
            microbatches_per_step=self.microbatches_per_step,
            first_microbatch=first_microbatch,
            tokens_per_sample=tokens,
        )

    @property
    def _gives_parts(self) -> bool:
        return gives_parts(self._encoder.sample_encoder) or gives_parts(
            self._encoder.selected_encoder
        )


def _count(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of samples, where none means none."""
    value = params.get(name, default)
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise SpecError(f"{name}: must be a whole number >= 0, got {value!r}.")
    return int(value)
