"""`StreamBuilder`: the arguments of a run, and its task encoder, build a stream of batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.context import WorkerConfig
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.leaf import Shuffle, leaf_entries
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.order.schedule import Clock
from energy_data.tasks.building import call_with_accepted
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.mixture import LoadedDatasets, Reading


@frozen(kw_only=True)
class StreamBuilder:
    """Builds the batches of a mixture with a task encoder, for a run or for one of its stages."""

    task_encoder: TaskEncoder[Any, Any, Any, Any]
    batch_size: int | None  # samples per micro-batch; None: samples are not batched
    worker_config: WorkerConfig = field(factory=WorkerConfig)
    seed: int = 0
    shuffle: Shuffle = field(factory=Shuffle)
    finite: bool = False  # one pass, with at most one short batch
    drop_last: bool = False  # drop the short batch at the end of a pass
    packing_buffer_size: int | None = None  # encoded samples of a lane that packs are chosen from
    virtual_epoch_length: int = 0
    microbatches_per_step: int | None = None  # of all ranks
    # For weights that change: mean tokens of a sample, and samples drawn for a micro-batch.
    tokens_per_sample: float | None = None
    samples_per_microbatch: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.virtual_epoch_length < 0:
            raise SpecError(f"virtual_epoch_length: must be >= 0, got {self.virtual_epoch_length}.")
        for name in (
            "batch_size", "microbatches_per_step", "tokens_per_sample", "samples_per_microbatch",
        ):  # fmt: skip
            if (value := getattr(self, name)) is not None and value <= 0:
                least = ">= 1" if name == "batch_size" else "> 0"
                raise SpecError(f"{name}: must be {least}, got {value}.")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that a stage may change, with their values."""
        return {
            **self.task_encoder.params,
            "batch_size": self.batch_size,
            "shuffle_buffer_size": self.shuffle.buffer_size,
            "max_samples_per_sequence": self.shuffle.sequence_length,
            "microbatches_per_step": self.microbatches_per_step,
            "packing_buffer_size": self.packing_buffer_size,
        }

    def with_params(self, params: Mapping[str, Any]) -> StreamBuilder:
        """Return the builder with some of its `params` changed.

        All names must be among `params`. SpecError for an invalid value.
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
            values = ", ".join(f"{name}={value!r}" for name, value in theirs.items())
            raise SpecError(f"the task encoder does not take {values}: {error}.") from error
        return evolve(self, shuffle=shuffle, task_encoder=encoder, **own)

    @property
    def samples_per_batch(self) -> int:
        """Samples, or packs, in a micro-batch."""
        return self.batch_size or 1

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> SavableDataset[Any]:
        """Return the training batches of a mixture.

        first_microbatch: the first micro-batch in the run, for weights that change.
        """
        clock = self._clock(first_microbatch) if follows_run(order) else None
        datasets = LoadedDatasets(order, self.reading(order, clock=clock))
        built: SavableDataset[Any] = call_with_accepted(
            self.task_encoder.build_train_datasets,
            datasets=datasets,
            worker_config=self.worker_config,
            batch_size=self.batch_size,
            batch_drop_last=self.drop_last,
            packing_buffer_size=self.packing_buffer_size,
            virtual_epoch_length=self.virtual_epoch_length,
            shuffle_buffer_size=self.shuffle.buffer_size or None,
            blend_mode=datasets.blend_mode,
            repeat=not self.finite,
        )
        return built

    def of(self, spec: Spec) -> SavableDataset[Any]:
        """Return a tree of batches as a dataset of this run."""
        return SavableDataset(
            spec=spec,
            worker_config=self.worker_config,
            seed=self.seed,
            virtual_epoch_length=self.virtual_epoch_length,
        )

    def reading(self, order: OrderSpec, *, deal: int = 0, clock: Clock | None = None) -> Reading:
        """Return how the samples of a mixture are read. deal: 0 for training."""
        typed = (hasattr(leaf.source, "typing") for _, leaf in leaf_entries(order))
        return Reading(
            worker_config=self.worker_config,
            seed=self.seed,
            shuffle=self.shuffle,
            deal=deal,
            clock=clock,
            keys=self.batch_size is None or self.task_encoder.has_functions or any(typed),
        )

    def _clock(self, first_microbatch: int) -> Clock:
        """Return how steps and tokens of the run are counted in samples drawn."""
        drawn = self.samples_per_microbatch
        counted = self.task_encoder.is_counted(self.packing_buffer_size)
        if drawn is None and not (counted and self.batch_size):
            raise SpecError(
                "weights change over the run, and the number of samples in a micro-batch is not "
                "known: they are packed, grouped or cut. Pass its mean, `samples_per_microbatch`."
            )
        tokens = self.tokens_per_sample
        if tokens is None and counted:
            tokens = self.params.get("seq_len")
        return Clock(
            samples_per_microbatch=drawn or self.batch_size or 1,
            microbatches_per_step=self.microbatches_per_step,
            first_microbatch=first_microbatch,
            tokens_per_sample=tokens,
        )


def _count(params: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of samples, where None means none."""
    value = params.get(name, default)
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise SpecError(f"{name}: must be a whole number >= 0, got {value!r}.")
    return int(value)
