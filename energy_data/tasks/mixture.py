"""Mixtures: how their samples are read, their datasets one by one, and their streams of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from inspect import Parameter, signature
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import evolve, field, frozen

from energy_data.config.staged import below_steps
from energy_data.core.recipe import check_whole
from energy_data.core.spec import Spec
from energy_data.core.user_call import reraise_exception
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.files.stores import FileStore
from energy_data.data.registry import open_store
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec
from energy_data.nodes.leaf import Leaf, Shuffle, leaves_of
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.nodes.select_pack import check_buffer_size
from energy_data.order.schedule import Clock
from energy_data.tasks.functions import cooked, is_crude, path_of, subflavors_of
from energy_data.tasks.orders import BlendDataset, RepeatDataset, references_of, with_references

if TYPE_CHECKING:  # it composes what is here
    from energy_data.tasks.encoder import TaskEncoder

T = TypeVar("T")


class DatasetBlendMode(Enum):
    """Whether loaded datasets have weights or repetitions."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@frozen(kw_only=True)
class BaseCoreDatasetFactory(Generic[T]):
    """One dataset of a mixture, before cooking and encoding."""

    mixture: Mixture
    order: OrderSpec  # the part of the mixture

    @property
    def samples(self) -> SavableDataset[T]:
        """The samples: without end in training, once in validation."""
        whole = self.mixture.samples
        return whole.replace(spec=with_references(whole.spec, of=self.order))

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are read: one, unless this is a part that is not a plain blend."""
        return leaves_of(self.order)

    @property
    def paths(self) -> list[Path]:
        """The paths of the datasets that are read; of a join, the names of its datasets."""
        return [Path(path_of(leaf)) for leaf in self.leaves]

    @property
    def is_crude(self) -> bool:
        """Whether samples are dicts of parts, for cookers."""
        return all(map(is_crude, self.leaves))

    @property
    def subflavors(self) -> dict[str, Any]:
        """The subflavors that the metadataset gives to the samples."""
        return subflavors_of(self.leaves[0])

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return one pass over the samples. The argument is ignored."""
        whole = self.mixture.samples
        return whole.replace(spec=with_references(whole.spec, of=self.order, deal=1))

    def as_file_store(self) -> FileStore[bytes]:
        """Return the files of the dataset, by key."""
        return open_store(path_of(self.leaves[0]))

    def __len__(self) -> int:
        """Return how many samples one pass has, over all ranks."""
        return ceil(self.order.size)


@frozen(kw_only=True)
class LoadedDataset(Generic[T]):
    """A dataset of a mixture and how much of it is drawn. It unpacks as (samples, weight)."""

    dataset: BaseCoreDatasetFactory[T]
    weight: float | None = None
    repetitions: Fraction | None = None
    aux: Mapping[str, FileStore[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples and their weight, the form of older versions of Energon."""
        yield self.dataset.samples
        yield 1.0 if self.weight is None else self.weight


class Mixture:
    """The samples of a mixture as the metadataset nests them, and its datasets one by one.

    Blends of constant weights, blends by repetitions and concatenations are divided; nested weights
    or repetitions are multiplied. Parts of another kind stay one dataset.

    written: the tree with the weights or repetitions, where the samples are those of one pass.
    """

    def __init__(self, samples: SavableDataset[Any], written: Spec | None = None) -> None:
        references = references_of(samples.spec)
        assert references is not None
        self.samples = samples
        self.blend_mode, parts = _divided(references.of)
        if written is not None:
            mode, amounts = _divided(below_steps(written))
            if len(amounts) == len(parts):  # else one pass divides nodes that training does not
                self.blend_mode = mode
                pairs = zip(parts, amounts, strict=True)
                parts = [(order, amount) for (order, _), (_, amount) in pairs]
        by_weight = self.blend_mode is DatasetBlendMode.DATASET_WEIGHT
        by_repetitions = self.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
        self.datasets: tuple[LoadedDataset[Any], ...] = tuple(
            LoadedDataset(
                dataset=BaseCoreDatasetFactory(mixture=self, order=order),
                weight=float(amount) if by_weight else None,
                repetitions=amount if by_repetitions else None,
                aux=leaves_of(order)[0].aux or None,
            )
            for order, amount in parts
        )


def samples_of(
    encoder: TaskEncoder[Any, Any, Any, Any],
    datasets: Sequence[LoadedDataset[Any]],
    join: Callable[[list[SavableDataset[Any]]], SavableDataset[Any]],
    *,
    once: bool,
) -> SavableDataset[Any]:
    """Return the samples of datasets, cooked: as the metadataset nests them, if the list is whole.

    Otherwise one pass over each dataset, joined by `join`. once: one pass over a mixture too.
    """
    if not datasets:
        raise SpecError("build_*_datasets: there are no datasets. Pass at least one.")
    mixture = datasets[0].dataset.mixture
    own_cooking = encoder._function("build_cook_crude_sample")
    samples = mixture.samples
    if own_cooking or tuple(datasets) != mixture.datasets:
        config = samples.worker_config
        return join([encoder._load_dataset(loaded, 0, config) for loaded in datasets])
    if once:
        samples = samples.replace(spec=with_references(samples.spec, deal=1))
    return cooked(samples, encoder) if encoder.cookers else samples


def blended(
    datasets: Sequence[LoadedDataset[Any]],
    samples: Sequence[SavableDataset[Any]],
    *,
    mode: DatasetBlendMode,
    repeat: bool,
) -> SavableDataset[Any]:
    """Return the blend of one pass over each dataset, by its weight or by its repetitions."""
    pairs: list[tuple[SavableDataset[Any], float]] = []
    by_weight = mode is DatasetBlendMode.DATASET_WEIGHT
    for one, loaded in zip(samples, datasets, strict=True):
        if by_weight or (repeat and mode is DatasetBlendMode.NONE):
            pairs.append((RepeatDataset(one), 1.0 if loaded.weight is None else loaded.weight))
        else:
            times = 1.0 if loaded.repetitions is None else float(loaded.repetitions)
            pairs.append((RepeatDataset(one, repeats=times), len(loaded.dataset) * times))
    blend: SavableDataset[Any] = BlendDataset(*pairs)
    return RepeatDataset(blend) if repeat else blend


def _divided(order: Any) -> tuple[DatasetBlendMode, list[tuple[Any, Fraction]]]:
    """Return the parts of a mixture that are drawn, with their weights or repetitions."""
    children = list(order.children.values())
    mode, shares = DatasetBlendMode.NONE, [Fraction(1)] * len(children)
    if isinstance(order, BlendSpec) and order.weights and order.weight_unit == "samples":
        mode = DatasetBlendMode.DATASET_WEIGHT
        shares = [Fraction(weight, sum(order.weights)) for weight in order.weights]
    elif isinstance(order, BlendEpochizedSpec):
        mode = DatasetBlendMode.SAMPLE_REPETITIONS
        shares = [Fraction(part.repetitions) for part in order.parts]
    elif not isinstance(order, ConcatSpec):
        return mode, [(order, Fraction(1))]
    parts: list[tuple[Any, Fraction]] = []
    for child, share in zip(children, shares, strict=True):
        own, below = _divided(child)
        if own is not mode:
            below = [(child, Fraction(1))]
        parts += [(part, share * amount) for part, amount in below if share]
    return mode, parts


# Parameters that a stage may change, besides those of the task encoder, and their least values.
_PARAMS = {
    "batch_size": 1,
    "shuffle_buffer_size": 0,
    "max_samples_per_sequence": 0,
    "microbatches_per_step": 1,
    "packing_buffer_size": 1,
}


@frozen(kw_only=True)
class StreamBuilder:
    """Builds the batches of a mixture with a task encoder, for a run or for one of its stages."""

    task_encoder: TaskEncoder[Any, Any, Any, Any]
    batch_size: int | None  # samples per micro-batch; None: samples are not batched
    worker_config: WorkerConfig = field(factory=WorkerConfig)
    seed: int = 0
    shuffle_buffer_size: int = 0
    max_samples_per_sequence: int = 0
    finite: bool = False  # one pass, with at most one short batch
    drop_last: bool = False  # drop the short batch at the end of a pass
    packing_buffer_size: int | None = None  # encoded samples of a lane that packs are chosen from
    virtual_epoch_length: int = 0
    microbatches_per_step: int | None = None  # of all ranks
    # For weights that change: mean tokens of a sample, and samples drawn for a micro-batch.
    tokens_per_sample: float | None = None
    samples_per_microbatch: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.packing_buffer_size is not None:
            check_buffer_size(self.packing_buffer_size)
        for name, least in {**_PARAMS, "virtual_epoch_length": 0}.items():
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, least)
        for name in ("tokens_per_sample", "samples_per_microbatch"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise SpecError(f"{name}: must be > 0, got {value}.")

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that a stage may change, with their values."""
        return {**self.task_encoder.params, **{name: getattr(self, name) for name in _PARAMS}}

    def with_params(self, params: Mapping[str, Any]) -> StreamBuilder:
        """Return the builder with some of its `params` changed.

        All names must be among `params`. SpecError for an invalid value.
        """
        own: dict[str, Any] = {}
        for name in _PARAMS.keys() & params.keys():
            value, least = params[name], _PARAMS[name]
            own[name] = 0 if value is None and least == 0 else value
            check_whole(name, own[name], least)
        theirs = {name: params[name] for name in params if name in self.task_encoder.params}
        try:
            encoder = self.task_encoder.with_params(**theirs) if theirs else self.task_encoder
        except (TypeError, ValueError) as error:
            values = ", ".join(f"{name}={value!r}" for name, value in theirs.items())
            raise SpecError(f"the task encoder does not take {values}: {error}.") from error
        return evolve(self, task_encoder=encoder, **own)

    @property
    def samples_per_batch(self) -> int:
        """Samples, or packs, in a micro-batch."""
        return self.batch_size or 1

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> SavableDataset[Any]:
        """Return the training batches of a mixture.

        first_microbatch: the first micro-batch in the run, for weights that change.
        """
        clock = self._clock(first_microbatch) if order.follows_run else None
        build = self.task_encoder.build_train_datasets
        mixture = Mixture(self.samples(order, clock=clock))
        arguments: dict[str, Any] = {
            "datasets": list(mixture.datasets),
            "worker_config": self.worker_config,
            "batch_size": self.batch_size,
            "batch_drop_last": self.drop_last,
            "packing_buffer_size": self.packing_buffer_size,
            "virtual_epoch_length": self.virtual_epoch_length,
            "shuffle_buffer_size": self.shuffle_buffer_size or None,
            "blend_mode": mixture.blend_mode,
            "repeat": not self.finite,
        }
        takes = signature(build).parameters  # overrides for older versions of Energon take fewer
        if not any(one.kind is Parameter.VAR_KEYWORD for one in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        return build(**arguments)

    def of(self, spec: Spec) -> SavableDataset[Any]:
        """Return a tree of batches as a dataset of this run."""
        return SavableDataset(
            spec=spec,
            worker_config=self.worker_config,
            seed=self.seed,
            virtual_epoch_length=self.virtual_epoch_length,
        )

    def samples(
        self, order: OrderSpec, *, deal: int = 0, clock: Clock | None = None
    ) -> SavableDataset[Any]:
        """Return the samples of a mixture as they are read.

        deal: neighbours dealt to a lane at a time in one pass; 0: without end, for training.
        """
        shuffle = Shuffle(
            buffer_size=self.shuffle_buffer_size, sequence_length=self.max_samples_per_sequence
        )
        handler = self.worker_config.global_error_handler
        typed = (hasattr(leaf.source, "typing") for leaf in leaves_of(order))
        spec = ReadSpec(
            of=ReferencesSpec(of=order, shuffle=shuffle, deal=deal, clock=clock),
            on_error="raise" if handler is reraise_exception else "skip",
            handler=handler,
            keys=self.batch_size is None or self.task_encoder.has_functions or any(typed),
        )
        return SavableDataset(
            spec=spec, worker_config=self.worker_config, seed=self.seed, from_start=bool(deal)
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
