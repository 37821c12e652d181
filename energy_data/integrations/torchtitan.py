"""A dataloader for torchtitan 0.3: token windows or packed documents of a metadataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from energy_data.api import get_train_dataset
from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import MissingExtraError, SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import get_loader
from energy_data.loading.savable_loader import OnMismatch

try:
    import tyro  # type: ignore[import-not-found]  # an extra, as torchtitan is
    from torchtitan.components.dataloader import BaseDataLoader  # type: ignore[import-not-found]
    from torchtitan.components.loss import IGNORE_INDEX  # type: ignore[import-not-found]
except ImportError as error:
    raise MissingExtraError("energy_data.integrations.torchtitan", "torchtitan") from error


class MetadatasetDataLoader(BaseDataLoader):  # type: ignore[misc]  # an extra
    """Returns the batches of a metadataset as torchtitan trains on them; see `trainer_batch`.

    Its state is that of the lanes of its data-parallel rank, and saving it is no collective. So
    checkpoints of torchtitan continue on any data-parallel degree that divides `lanes`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # an extra
        """What is read, and how. `dataset_path` is required: a metadataset, or a dataset."""

        dataset: Annotated[Any, tyro.conf.Suppress] = get_train_dataset
        """`get_train_dataset`, `get_val_dataset`, or a `partial` of one with more arguments."""

        lanes: int | None = None
        """Lanes of the run, a multiple of every data-parallel degree. None: 16 per rank."""

        num_workers: int = 0
        """Worker processes of each rank."""

        on_mismatch: OnMismatch = "error"
        """What to do if the metadataset was edited since the checkpoint."""

        infinite: bool = True
        """Whether a stream that ends begins again. `Validator` sets it."""

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        if config.dataset_path is None:
            raise SpecError(
                "dataloader: dataset_path is missing. Give the path of a metadataset or a dataset."
            )
        # Tensor- and pipeline-parallel peers have one data-parallel rank: they read the same.
        part = WorkerConfig(dp_rank, dp_world_size, config.num_workers, lanes=config.lanes)
        dataset: SavableDataset[Any] = config.dataset(
            config.dataset_path, batch_size=local_batch_size, worker_config=part
        )
        # `fork` is not safe here: the trainer has threads, and has initialized CUDA.
        self.loader = get_loader(dataset, start_method="forkserver")
        self._config, self._seq_len = config, seq_len

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield inputs and labels from the position of the loader; see `trainer_batch`."""
        empty_passes = 0  # in a row: a pass that was restored at its end has no batch either
        while empty_passes < 2:
            empty_passes += 1
            for batch in self.loader:
                empty_passes = 0
                yield trainer_batch(batch, self._seq_len)
            if not self._config.infinite:
                return
        raise SpecError(
            "dataloader: a pass over the data has no batch for this rank, so it cannot be "
            "repeated. Use more data, fewer ranks, or a `dataset` with even_batches='pad'."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Move to a saved position. An empty state before the first batch moves nothing."""
        self.loader.load_state_dict(state_dict, on_mismatch=self._config.on_mismatch)

    def close(self) -> None:
        """Stop worker processes. torchtitan 0.3 does not call it; they end with the trainer."""
        self.loader.close()


def trainer_batch(batch: Any, seq_len: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the inputs and labels of a batch, as the trainer of torchtitan takes them.

    The batch is a dict with `tokens` and `position_ids`, int64 [batch, T], as it is of windows
    with `cu_seqlens: true` and of packs by `Joined`. T is `seq_len`, or `seq_len` + 1, where the
    last token is a label only. Positions are 0 at the first token of each document.

    Inputs are `input` and `positions`, int64 [batch, seq_len], views of the batch. Labels, of the
    same shape, are the next tokens: IGNORE_INDEX where the next token begins a document, is false
    in the `loss_mask` of the batch, or does not exist. Raises SpecError for another batch.
    """
    fields = batch if isinstance(batch, Mapping) else {}
    tokens, positions = fields.get("tokens"), fields.get("position_ids")
    if not isinstance(tokens, torch.Tensor) or not isinstance(positions, torch.Tensor):
        raise SpecError(
            f"dataloader: a batch must be a dict with the tensors 'tokens' and 'position_ids', "
            f"found a {type(batch).__name__} with {sorted(fields)}. Read windows with `cu_seqlens: "
            f"true`, or pack with `Joined`."
        )
    if tokens.shape[1:] not in ((seq_len,), (seq_len + 1,)):
        raise SpecError(
            f"dataloader: training.seq_len is {seq_len}, so tokens must have the shape [batch, "
            f"{seq_len + 1}] or [batch, {seq_len}], found {list(tokens.shape)}. Read windows with "
            f"`seq_len: {seq_len + 1}` and `stride: {seq_len}`, or pack to one of these lengths."
        )
    targets = positions != 0
    if (mask := fields.get("loss_mask")) is not None:
        targets &= mask
    labels = tokens.masked_fill(~targets, IGNORE_INDEX)[:, 1:]
    labels = torch.nn.functional.pad(labels, (0, seq_len - labels.shape[1]), value=IGNORE_INDEX)
    return {"input": tokens[:, :seq_len], "positions": positions[:, :seq_len]}, labels
