"""What users call: datasets from a path, and loaders over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from typing_extensions import TypeVar

from energy_data.config.compile import compile_split, compile_stream, steps_of
from energy_data.config.feasibility import check_repetitions
from energy_data.config.load import load
from energy_data.config.opening import OpenSource, Options
from energy_data.core.context import Context, WorkerConfig
from energy_data.core.spec import Spec
from energy_data.data.decode.parts import Overrides, check_decoders
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.registry import open_source
from energy_data.data.source import Source
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError
from energy_data.loading.dataset import Dataset
from energy_data.loading.hosts import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.rank_loader import RankLoader
from energy_data.loading.run import EvenBatches
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.steps.stages import for_steps
from energy_data.loading.workers.pool import PoolOptions, StartMethod
from energy_data.nodes.leaf import LeafSpec
from energy_data.nodes.leaves import Leaf, Shuffle, leaf_entries
from energy_data.nodes.limit import LimitSpec
from energy_data.nodes.read import OnError
from energy_data.nodes.references import OrderSpec
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks.encoder import DefaultTaskEncoder, TaskEncoder
from energy_data.tasks.pipeline import Pipeline

Samples = Literal["dicts", "typed"]

T_batch = TypeVar("T_batch", default=dict[str, Any])  # what the default task encoder makes


def get_train_dataset(
    path: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    shuffle_buffer_size: int | None = 100,
    max_samples_per_sequence: int | None = 100,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    split_part: str = "train",
    seed: int = 0,
    repeat: bool = True,
    batch_drop_last: bool = False,
    virtual_epoch_length: int = 0,
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    microbatches_per_step: int | None = None,
    packing_buffer_size: int | None = None,
    tokens_per_sample: float | None = None,
    samples_per_microbatch: int | None = None,
    budget_samples: int | None = None,
    budget_tokens: int | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    samples: Samples = "dicts",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
) -> Dataset[T_batch]:
    """Return the training stream of a metadataset, or of a dataset, for this rank.

    Args:
        path: A metadataset (.yaml, or the same as a dict), a prepared dataset folder, a folder of
            tars, a tar, a brace pattern of tars, or a JSONL file.
        batch_size: Samples per micro-batch.
        shuffle_buffer_size: Neighbouring draws of a leaf that are mixed; None or 0: none.
        max_samples_per_sequence: Neighbouring samples that are read together; the sequences of an
            epoch are permuted. None or 0: the order of the files.
        worker_config: Which part of the run this process is; by default
            `WorkerConfig.default_worker_config()`.
        task_encoder: What to make of samples and batches; by default a dict of tensors and lists.
        split_part: The split to read.
        seed: Another seed is another order.
        repeat: Go on without end; else the samples of one pass, each exactly once over all ranks,
            with one short batch at the end. The next iteration is the next pass.
        batch_drop_last: Leave out the short batch at the end of a pass.
        virtual_epoch_length: Batches of this rank after which an iteration ends (the next goes on);
            0: at the end.
        on_error: What to do about a bad sample: leave it out, count and log it, or raise.
        even_batches: End a pass after the same number of batches on all ranks, as collectives in
            the training loop need it: "drop" leaves out a last round that not all ranks have,
            "short" gives ranks without a batch an empty one, "pad" the first batch of the pass
            again (`loader.last_is_padding` tells). None: some ranks may have one batch more.
        microbatches_per_step: Micro-batches of all ranks in an optimizer step, for what is counted
            in steps: on each rank, those whose gradients it accumulates, times the ranks.
        packing_buffer_size: Encoded samples, per lane, that the task encoder chooses from what to
            pack together; then `batch_size` counts packs. None: as its `packing` says.
        tokens_per_sample: Mean tokens of a sample, for weights that follow tokens.
        samples_per_microbatch: Samples drawn for a micro-batch, their mean, for weights that change
            where samples are packed or grouped.
        shuffle_over_epochs_multiplier: Epochs of each dataset that are mixed with each other, times
            what the metadataset says; -1: all of them; None: the order of the files.
        samples: "dicts" of parts by extension; or "typed", as each dataset.yaml declares them.
        decoders: For dicts out of tars: extension of a part (`png`, or more exactly `seg.png`) -> a
            function of its bytes, "bytes" to leave it as it is, or a `RawTensor`, which is read
            straight into batches. Other parts are decoded by their extension.
        allow_modules: Python modules, and folders with Python files, whose functions and classes
            files may name: see `energy_data.data.import_policy`.
        budget_samples: Samples that the run will draw over all ranks, if known: a mixture that asks
            for more than `max_repetitions` of a leaf is told at once, with what is feasible.
        budget_tokens: The same in tokens, by the mean lengths of the leaves.

    Raises:
        SpecError: With all faults of the metadataset, each with its place.
    """
    sequence_length = max_samples_per_sequence or 0
    shuffle = Shuffle(buffer_size=shuffle_buffer_size or 0, sequence_length=sequence_length)
    pipeline = Pipeline(
        batch_size=batch_size,
        task_encoder=task_encoder or DefaultTaskEncoder(),
        shuffle=shuffle,
        finite=not repeat,
        drop_last=batch_drop_last,
        on_error=on_error,
        packing_buffer_size=packing_buffer_size,
        microbatches_per_step=microbatches_per_step,
        tokens_per_sample=tokens_per_sample,
        samples_per_microbatch=samples_per_microbatch,
    )
    options = _options(allow_modules, shuffle_over_epochs_multiplier)
    metadataset = load(path)
    config = worker_config or WorkerConfig.default_worker_config()
    spec = compile_stream(
        metadataset,
        split_part,
        open_source=_opener(samples, decoders, options),
        pipeline=pipeline,
        mode="train",
        options=options,
        run=None if config.lanes is None else Context(seed=seed, lanes=config.lanes),
    )
    _check_even(spec, even_batches if pipeline.finite else None)
    check_repetitions(spec, samples=budget_samples, tokens=budget_tokens)
    return Dataset(
        spec=spec,
        worker_config=config,
        seed=seed,
        virtual_epoch_length=virtual_epoch_length,
        even_batches=even_batches,
        docs_per_step=steps_of(metadataset, split_part),
    )


def get_val_dataset(
    path: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    limit: int | None = None,
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    packing_buffer_size: int | None = None,
    samples: Samples = "dicts",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
) -> Dataset[T_batch]:
    """Return the validation stream: every sample once over all ranks, in order, the same each time.

    Blends are concatenated. Micro-batch g is samples [g * batch_size, (g + 1) * batch_size), so
    there is one short batch at most; a bad sample makes its batch shorter and moves no other. Where
    samples are packed, grouped or taken apart, that is not known beforehand: then neighbours are
    dealt to the lanes, and each makes its own batches of them, with a short one at its end.

    Args:
        path: As for `get_train_dataset`.
        batch_size: Samples per batch.
        worker_config: Which part of the run this process is; by default
            `WorkerConfig.default_worker_config()`.
        task_encoder: What to make of samples and batches; by default a dict of tensors and lists.
        split_part: The split to read.
        batch_drop_last: Leave out the short batch.
        limit: Only the first so many batches, over all ranks.
        on_error: What to do about a bad sample: leave it out, count and log it, or raise.
        even_batches: End a pass after the same number of batches on all ranks, as collectives in
            the training loop need it: "drop" leaves out a last round that not all ranks have,
            "short" gives ranks without a batch an empty one, "pad" the first batch of the pass
            again (`loader.last_is_padding` tells). None: some ranks may have one batch more.
        packing_buffer_size: Encoded samples, per lane, that the task encoder chooses from what to
            pack together; then `batch_size` counts packs. None: as its `packing` says.
        samples: As for `get_train_dataset`.
        decoders: As for `get_train_dataset`.
        allow_modules: As for `get_train_dataset`.

    Raises:
        SpecError: With all faults of the metadataset, each with its place.
    """
    order = _order(path, split_part, samples, decoders, allow_modules)
    return _validation(
        order,
        batch_size=batch_size,
        worker_config=worker_config,
        task_encoder=task_encoder,
        drop_last=batch_drop_last,
        limit=limit,
        on_error=on_error,
        even_batches=even_batches,
        packing_buffer_size=packing_buffer_size,
    )


def get_val_datasets(
    path: str | Path | Mapping[str, Any],
    *,
    batch_size: int,
    worker_config: WorkerConfig | None = None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None = None,
    split_part: str = "val",
    batch_drop_last: bool = False,
    limit: int | None = None,
    on_error: OnError = "skip",
    even_batches: EvenBatches | None = None,
    packing_buffer_size: int | None = None,
    samples: Samples = "dicts",
    decoders: Overrides | None = None,
    allow_modules: Sequence[str] = (),
) -> list[tuple[Dataset[T_batch], Leaf]]:
    """Return the validation stream of each leaf by itself, with the leaf; as `get_val_dataset`."""
    order = _order(path, split_part, samples, decoders, allow_modules)
    return [
        (
            _validation(
                LeafSpec(leaf),
                batch_size=batch_size,
                worker_config=worker_config,
                task_encoder=task_encoder,
                drop_last=batch_drop_last,
                limit=limit,
                on_error=on_error,
                even_batches=even_batches,
                packing_buffer_size=packing_buffer_size,
            ),
            leaf,
        )
        for _, leaf in leaf_entries(order)
    ]


def get_loader(
    dataset: Dataset[T_batch],
    *,
    prefetch: int = 2,
    start_method: StartMethod = "forkserver",
    arena_bytes: int = 4 << 30,
    timeout_s: float | None = 300.0,
    on_timeout: Literal["raise", "restart"] = "raise",
    max_restarts: int = 3,
    pin_memory: bool | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
    docs_per_step: DocsPerStep | int | None = None,
) -> RankLoader[T_batch]:
    """Return a loader of the dataset: iterate over it, save it, restore it.

    Batches are the same whatever is chosen here, and whatever happens to worker processes.

    Args:
        dataset: What to read; its `worker_config.num_workers` says by how many workers. With 0,
            batches are made here, when they are asked for, and the rest below does not matter.
        prefetch: Batches each worker is ahead of the trainer, at most.
        start_method: How workers start. "forkserver" and "spawn" processes are safe with threads
            and CUDA; "fork" also takes lambdas and classes of a notebook. "thread": they are
            threads of this process, there at once and without memory of their own, whose Python
            takes turns with the trainer's; see docs/workers.md.
        arena_bytes: Shared memory per worker process, at most; it grows as needed.
        timeout_s: A worker silent for so long is reported with its sample and stack; None: never.
        on_timeout: What follows: an error, or a new worker process in its place.
        max_restarts: How often a worker that dies at one and the same batch is started again.
        pin_memory: Register the shared memory with CUDA, once, so that batches of workers are
            pinned without a copy; threads copy theirs. "auto": where there is a GPU.
        device: Give batches on this device, copied one ahead on a stream of their own. None: on
            the host.
        docs_per_step: Group micro-batches into optimizer steps that hold so many documents, over
            all ranks: a number, or `DocsPerStep`; see docs/docs-per-step.md. None: as the
            metadataset says, if it does.
    """
    rules = DocsPerStep.of(docs_per_step) or dataset.docs_per_step
    if rules is not None:
        dataset = for_steps(dataset, rules)
    options = PoolOptions(
        prefetch=prefetch,
        start_method=start_method,
        arena_bytes=arena_bytes,
        timeout_s=timeout_s,
        on_timeout=on_timeout,
        max_restarts=max_restarts,
    )
    host = host_of(dataset, options, pin_memory=pin_memory, device=device)
    if rules is None:
        return Loader(dataset, host)
    return StepGrouper(Loader(dataset, host, in_steps=True), rules)


get_savable_loader = get_loader


def _order(
    path: str | Path | Mapping[str, Any],
    split_part: str,
    samples: Samples,
    decoders: Overrides | None,
    allow_modules: Sequence[str],
) -> OrderSpec:
    options = _options(allow_modules)
    return compile_split(
        load(path),
        split_part,
        open_source=_opener(samples, decoders, options),
        mode="val",
        options=options,
    )


def _opener(samples: Samples, decoders: Overrides | None, options: Options) -> OpenSource:
    if samples not in get_args(Samples):
        raise SpecError(f"samples: must be 'dicts' or 'typed', got {samples!r}.")
    if samples == "dicts":
        return partial(_open_dicts, decoders=check_decoders(decoders or {}))
    if decoders:
        raise SpecError(
            "decoders: they are for samples='dicts'; typed samples are decoded as each "
            "dataset.yaml says. Say it there."
        )
    return partial(open_typed, trust=options.trust)


def _open_dicts(path: str | Path, *, dataset_config: str | None = None, **said: Any) -> Source:
    if dataset_config is not None:
        raise SpecError(
            f"{path}: its dataset_config {dataset_config!r} says of which type samples are, and "
            f"dicts have none. Pass samples='typed', or take dataset_config out."
        )
    return open_source(path, **said)


def _options(allow_modules: Sequence[str], epochs: int | None = 1) -> Options:
    trust = ImportPolicy.of(allow_modules)
    return Options(
        shuffle_over_epochs_multiplier=epochs,
        trust=trust,
        open_typed=partial(open_typed, trust=trust),
    )


def _validation(
    order: OrderSpec,
    *,
    batch_size: int,
    worker_config: WorkerConfig | None,
    task_encoder: TaskEncoder[Any, Any, Any, T_batch] | None,
    drop_last: bool,
    limit: int | None,
    on_error: OnError,
    even_batches: EvenBatches | None,
    packing_buffer_size: int | None,
) -> Dataset[T_batch]:
    pipeline = Pipeline(
        batch_size=batch_size,
        task_encoder=task_encoder or DefaultTaskEncoder(),
        finite=True,
        drop_last=drop_last,
        on_error=on_error,
        packing_buffer_size=packing_buffer_size,
    )
    spec = pipeline.over(order)
    if limit is not None:
        spec = LimitSpec(of=spec, length=limit)
    _check_even(spec, even_batches)
    config = worker_config or WorkerConfig.default_worker_config()
    return Dataset(spec=spec, worker_config=config, from_start=True, even_batches=even_batches)


def _check_even(spec: Spec, even_batches: EvenBatches | None) -> None:
    if even_batches is not None and spec.num_items(Context(), 0) is None:
        raise SpecError(
            "even_batches: nobody knows how many batches a pass has where samples are packed, "
            "grouped or taken apart. Leave it out; and give `limit`, or `virtual_epoch_length`, "
            "where ranks must end together."
        )
