"""The functions that return datasets for a path."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, get_args

from attrs import evolve
from typing_extensions import TypeVar, Unpack

from energy_data.config.compile import check_repetitions, compile_split, compile_stream, steps_of
from energy_data.config.load import LoadedMetadataset, load
from energy_data.config.opening import Options
from energy_data.core.context import Context
from energy_data.core.recipe import check_whole
from energy_data.core.user_call import ErrorHandler, reraise_exception
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.decode.av import AVMode
from energy_data.data.decode.images import ImageMode
from energy_data.data.decode.parts import Overrides, SampleDecoder, check_decoders
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.registry import open_source
from energy_data.data.source import Source
from energy_data.data.typed.dataset_yaml import Typing, read_dataset_yaml
from energy_data.data.typed.samples import CrudeSample
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError
from energy_data.loading.dataset import EvenBatches, SavableDataset
from energy_data.nodes.read import OnError
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.metric import mean_size
from energy_data.tasks.mixture import (
    BaseCoreDatasetFactory,
    LoadedDataset,
    Mixture,
    StreamBuilder,
)

log = logging.getLogger(__name__)

PathOrDict = str | Path | Mapping[str, Any]
Samples = Literal["declared", "dicts"]

T_batch = TypeVar("T_batch", default=Any)


class KeysOfPath(TypedDict, total=False):
    """Keys that the node of the path would have in a metadataset."""

    dataset_config: str | None
    split_config: str | None
    subflavors: Mapping[str, Any] | None


class DecodingOptions(TypedDict, total=False):
    """Arguments of older programs. A warning says what to write instead."""

    auto_decode: bool
    image_decode: ImageMode
    av_decode: AVMode
    video_decode_audio: bool


class MoreOptions(KeysOfPath, DecodingOptions, total=False):
    """Arguments that Energon takes, and that are not needed here."""

    sample_type: type[Any] | None  # SpecError if the samples of a dataset are of another type
    handler: ErrorHandler | None  # takes the place of that of the worker config
    ignore_decoder_errors: bool  # these are ignored, with a warning
    parallel_shard_iters: int | None


def get_train_dataset(
    path: PathOrDict,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = 100,
    max_samples_per_sequence: int | None = 100,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    repeat: bool = True,
    seed: int | None = None,
    samples: Samples = "declared",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    microbatches_per_step: int | None = None,
    tokens_per_sample: float | None = None,
    samples_per_microbatch: int | None = None,
    budget_samples: int | None = None,
    budget_tokens: int | None = None,
    **options: Unpack[MoreOptions],
) -> SavableDataset[T_batch]:
    """Return the training stream of a metadataset, or of a dataset, for this rank.

    Args:
        path: A metadataset (.yaml, or the same as a dict), a prepared dataset folder, a folder of
            tars or JSONL files, one of them, a pattern of them, or a file of tokens.
        split_part: The split to read.
        worker_config: Which part of the run this process is; by default
            `WorkerConfig.default_worker_config()`.
        batch_size: Samples (or packs) per micro-batch. None: samples are not batched.
        batch_drop_last: Drop the short batch at the end of a pass.
        packing_buffer_size: Encoded samples per lane that the task encoder selects packs from.
            None: no packing, unless the task encoder has a `packing`.
        shuffle_buffer_size: Neighbouring draws of a dataset that are shuffled; None or 0: none.
        max_samples_per_sequence: Neighbouring samples that are read together; the sequences of an
            epoch are permuted. None or 0: the order of the files.
        virtual_epoch_length: Batches of this rank after which an iteration ends. The next one
            continues. 0: no such end.
        shuffle_over_epochs_multiplier: Epochs of each dataset that are shuffled together, times
            the value in the metadataset. -1: all of them; None: the order of the files.
        task_encoder: Encodes samples and batches. Default: a `TaskEncoder`,
            which collates samples.
        repeat: Continue without end. False: one pass, each sample exactly once over all ranks, with
            one short batch at most. The next iteration is the next pass.
        seed: The seed of the order and of `sample_rng()`; by default that of the worker config.
        samples: "declared": the type in each dataset.yaml, decoded by the task encoder's `decoder`;
            a dataset without one yields dicts of parts by extension, decoded by `decoders`.
            "dicts": dicts for all datasets.
        decoders: For dicts out of tars: extension of a part (`png`, or more exactly `seg.png`) -> a
            function of its bytes, "bytes" to leave it as it is, or a `RawTensor`, which is read
            straight into batches. Other parts are decoded by their extension.
        allow_modules: Python modules, and folders with Python files, whose functions and classes
            files may name.
        on_error: "skip": errors of samples and of functions of the task encoder go to the error
            handler of the worker config, and the sample is skipped. "raise": they are raised.
        even_batches: Return the same number of batches on all ranks in each pass. "drop": leave
            out the last round if some ranks have no batch in it. "short": such a rank returns an
            empty batch. "pad": it returns the first batch of the pass again. A batch whose samples
            were all skipped is replaced in the same way ("drop": by an empty one).
            `loader.last_is_padding` is then True. None: some ranks may return fewer batches.
        microbatches_per_step: Micro-batches of all ranks in an optimizer step, for what a
            metadataset counts in steps.
        tokens_per_sample: Mean tokens of a sample, for weights that follow tokens.
        samples_per_microbatch: Mean number of samples drawn for a micro-batch, for weights that
            change over a run that packs or groups samples.
        budget_samples: Samples that the run will draw over all ranks, if known. A mixture that
            needs more than `max_repetitions` of a leaf is then an error.
        budget_tokens: The same in tokens, by the mean lengths of the leaves.
        options: Keys that the node of `path` would have in a metadataset: `dataset_config`,
            `split_config` and `subflavors`; `sample_type`, which all datasets must have; `handler`,
            an error handler instead of that of the worker config; and arguments that Energon takes
            for older programs.

    Raises:
        SpecError: With all errors of the metadataset, each with its place.
    """
    if not isinstance(repeat, bool):
        raise SpecError(f"repeat: must be True or False, got {repeat!r}.")
    run = _Run(worker_config, on_error, task_encoder, options, samples, decoders, allow_modules)
    builder = StreamBuilder(
        task_encoder=run.encoder,
        batch_size=batch_size,
        worker_config=run.config,
        seed=run.config.seed_offset if seed is None else seed,
        shuffle_buffer_size=shuffle_buffer_size or 0,
        max_samples_per_sequence=max_samples_per_sequence or 0,
        finite=not repeat,
        drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        microbatches_per_step=microbatches_per_step,
        tokens_per_sample=tokens_per_sample,
        samples_per_microbatch=samples_per_microbatch,
    )
    metadataset, lanes = run.load(path, split_part), run.config.lanes
    if (epochs := shuffle_over_epochs_multiplier) not in (None, -1):
        check_whole("shuffle_over_epochs_multiplier", epochs, 1)
    dataset = compile_stream(
        metadataset,
        split_part,
        open_source=run.open,
        builder=builder,
        options=evolve(
            run.options,
            shuffle_over_epochs_multiplier=epochs,
            measure=partial(mean_size, encoder=run.encoder, unit="tokens", seed=builder.seed),
        ),
        run=None if lanes is None else Context(seed=builder.seed, lanes=lanes),
    )
    if builder.finite:
        _check_even(dataset, even_batches)
    check_repetitions(dataset.spec, samples=budget_samples, tokens=budget_tokens)
    rules = steps_of(metadataset, split_part)
    return dataset.replace(even_batches=even_batches, docs_per_step=rules)


def get_val_dataset(
    path: PathOrDict,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    samples: Samples = "declared",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    **options: Unpack[MoreOptions],
) -> SavableDataset[T_batch]:
    """Return the validation stream: every sample once over all ranks, in order, the same each time.

    Blends are concatenated. Micro-batch g is samples [g * batch_size, (g + 1) * batch_size), so at
    most one batch is short, and a bad sample makes its batch shorter and moves no other. Where
    samples are packed, grouped or taken apart, neighbours are dealt to the lanes, and each lane
    makes its own batches of them, with a short one at its end.

    `limit`: the first so many batches of each rank; None or 0: all. The other arguments are those
    of `get_train_dataset`.
    """
    run = _Run(worker_config, on_error, task_encoder, options, samples, decoders, allow_modules)
    return run.val_dataset(
        run.val_split(path, split_part, batch_size),
        even_batches,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        limit=limit,
    )


def get_val_datasets(
    path: PathOrDict,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    samples: Samples = "declared",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    **options: Unpack[MoreOptions],
) -> list[tuple[SavableDataset[T_batch], BaseCoreDatasetFactory[Any]]]:
    """Return the validation stream of each dataset by itself, with the dataset it is made of.

    The arguments are those of `get_val_dataset`.
    """
    run = _Run(worker_config, on_error, task_encoder, options, samples, decoders, allow_modules)
    build = partial(
        run.val_dataset,
        even_batches=even_batches,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        limit=limit,
    )
    loaded = run.val_split(path, split_part, batch_size)
    return [(build([one]), one.dataset) for one in loaded]


class _Run(Generic[T_batch]):
    """What all of these functions do with their arguments."""

    def __init__(
        self,
        worker_config: WorkerConfig | None,
        on_error: OnError,
        task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None,
        options: MoreOptions,
        samples: Samples,
        decoders: Overrides | None,
        allow_modules: Sequence[str],
    ) -> None:
        if on_error not in get_args(OnError):
            raise SpecError(f"on_error: must be 'skip' or 'raise', got {on_error!r}.")
        if samples not in get_args(Samples):
            raise SpecError(f"samples: must be 'declared' or 'dicts', got {samples!r}.")
        self.config = worker_config or WorkerConfig.default_worker_config()
        handler = reraise_exception if on_error == "raise" else options.get("handler")
        if handler is not None:
            self.config = evolve(self.config, global_error_handler=handler)
        if not isinstance(task_encoder, TaskEncoder | None):
            raise SpecError(
                f"task_encoder: must be an instance of a TaskEncoder, got {task_encoder!r}."
                + (" Write it with parentheses: ...()." if isinstance(task_encoder, type) else "")
            )
        self.encoder: TaskEncoder[Any, Any, Any, T_batch] = task_encoder or TaskEncoder()
        self._take(options)
        self.samples, self.decoders = samples, check_decoders(decoders or {})
        policy = ImportPolicy.of(allow_modules)
        self.open_typed = partial(open_typed, decoder=self.encoder.decoder, policy=policy)
        self.options = Options(trust=policy, open_typed=self.open_typed)
        # Samples of no declared type are dicts as read, and not crude samples for cookers.
        self.is_plain = not self.encoder.cookers and self.encoder.decoder is TaskEncoder.decoder

    def _take(self, options: MoreOptions) -> None:
        """Keep the keys and the type of samples; set the decoder of the task encoder."""
        given: dict[str, Any] = {**options}
        if unknown := sorted(given.keys() - MoreOptions.__annotations__.keys()):
            raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
        self.sample_type = given.pop("sample_type", None)
        given.pop("handler", None)
        keys = {name: given.pop(name, None) for name in KeysOfPath.__annotations__}
        self.keys_of_path = {name: value for name, value in keys.items() if value is not None}
        if not given:
            return
        log.warning("%s: deprecated; see docs/migrating-from-energon.md", ", ".join(given))
        decoding = {name: given[name] for name in DecodingOptions.__annotations__ if name in given}
        if not decoding.pop("auto_decode", True):
            self.encoder.decoder = None
        elif decoding:
            decoder, own = SampleDecoder(**decoding), self.encoder.decoder
            is_same = isinstance(own, SampleDecoder) and own.config() == decoder.config()
            if own is not TaskEncoder.decoder and not is_same:
                raise SpecError(
                    f"{', '.join(decoding)}: the task encoder has a decoder of its own, found "
                    f"{own!r}. Remove these arguments."
                )
            self.encoder.decoder = decoder

    def load(self, path: PathOrDict, split_part: str) -> LoadedMetadataset:
        """Load the metadataset, or one of the path with its keys."""
        if not self.keys_of_path:
            return load(path)
        if isinstance(path, Mapping):
            names = " and ".join(self.keys_of_path)
            raise SpecError(f"{names}: the path is a mapping. Write the keys into it.")
        folder, name = os.path.split(os.fspath(path).rstrip("/"))
        return load({"splits": {split_part: {"path": name, **self.keys_of_path}}}, base_dir=folder)

    def open(self, path: str | Path, *, dataset_config: str | None = None, **facts: Any) -> Source:
        """Open a dataset: as its dataset.yaml declares, or as dicts."""
        if self.samples == "dicts" and dataset_config is not None:
            raise SpecError(
                f"{path}: its dataset_config {dataset_config!r} declares the type of samples, and "
                f"dicts have none. Remove samples='dicts', or remove dataset_config."
            )
        typing = Typing()
        if self.samples == "declared":
            typing = read_dataset_yaml(Path(path), config=dataset_config, policy=self.options.trust)
        found = typing.sample_type or CrudeSample
        if self.sample_type is not None and not issubclass(found, self.sample_type):
            raise SpecError(
                f"{path}: its samples are of type {found.__name__}, and sample_type asks for "
                f"{self.sample_type.__name__}. Leave it out, or change the dataset.yaml."
            )
        if self.samples == "dicts" or (self.is_plain and typing == Typing()):
            return open_source(path, decoders=self.decoders, **facts)
        if self.decoders:
            raise SpecError(
                f"decoders: they are for dicts, and {path} is decoded by the `decoder` of the task "
                f"encoder, as its dataset.yaml declares. Set that, or pass samples='dicts'."
            )
        return self.open_typed(path, typing=typing, **facts)

    def val_split(
        self, path: PathOrDict, split_part: str, batch_size: int | None
    ) -> list[LoadedDataset[Any]]:
        """Return the datasets of a split for validation."""
        metadataset = self.load(path, split_part)
        order = compile_split(
            metadataset, split_part, open_source=self.open, mode="val", options=self.options
        )
        builder = StreamBuilder(
            task_encoder=self.encoder, batch_size=batch_size, worker_config=self.config
        )
        mixture = Mixture(builder.samples(order, deal=1), metadataset.tree(split_part))
        return list(mixture.datasets)

    def val_dataset(
        self,
        datasets: list[LoadedDataset[Any]],
        even_batches: EvenBatches | None,
        **options: Any,
    ) -> SavableDataset[T_batch]:
        """Return the batches of some datasets for validation."""
        dataset: SavableDataset[T_batch] = self.encoder.build_val_datasets(
            datasets=datasets, worker_config=self.config, **options
        )
        _check_even(dataset, even_batches)
        return dataset.replace(even_batches=even_batches)


def _check_even(dataset: SavableDataset[Any], even_batches: EvenBatches | None) -> None:
    if even_batches is not None and dataset.spec.num_items(Context(), 0) is None:
        raise SpecError(
            "even_batches: the number of batches in a pass is not known where samples are packed, "
            "grouped or taken apart. Leave it out, and give `limit`, or `virtual_epoch_length`, "
            "where ranks must end together."
        )
