"""Datasets that end elsewhere than the one they wrap: epochs, repetitions, limits."""

from __future__ import annotations

from typing import Generic, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.dataset import items_per_pass
from energy_data.loading.run import Run
from energy_data.nodes.limit import LimitSpec
from energy_data.tasks.trees import repeated
from energy_data.tasks.wrapper import BaseWrapperDataset, tree_of

T = TypeVar("T")


class EpochizeDataset(BaseWrapperDataset[T], Generic[T]):
    """Epochs of a length of one's own; the next goes on where the last ended."""

    def __init__(
        self,
        dataset: Run[T],
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | None = None,
    ) -> None:
        """Set the length of an epoch, by one of two.

        Args:
            dataset: What is iterated.
            length: Items of this rank.
            worker_config: That of the dataset, which is the default.
            num_epochs: As many items as so many passes over the data have.
        """
        if (length is None) == (num_epochs is None):
            raise SpecError(
                f"EpochizeDataset: give one of length and num_epochs, got length={length}, "
                f"num_epochs={num_epochs}."
            )
        if length is None:
            assert num_epochs is not None
            ranks = dataset.worker_config.world_size
            length = -int(-items_per_pass(dataset.spec) * num_epochs // ranks)
        if length < 1:
            raise SpecError(f"EpochizeDataset: an epoch must have >= 1 items, got {length}.")
        super().__init__(tree_of(dataset), [dataset], worker_config, virtual_epoch_length=length)


class RepeatDataset(BaseWrapperDataset[T], Generic[T]):
    """A dataset played several times, or for ever."""

    def __init__(
        self,
        dataset: Run[T],
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Repeat a dataset.

        Args:
            dataset: What is repeated; training data that is repeated already stays as it is.
            repeats: How many times, a fraction for samples (each sample then comes floor or ceil
                of it times); None: for ever.
            restart: True: iterated again, it begins again. False is not possible.
            worker_config: That of the dataset, which is the default.
        """
        if not restart:
            raise SpecError(
                "RepeatDataset: restart=False is not possible: an iteration after the last would "
                "have nothing. Iterate once only."
            )
        if repeats is not None and not 0 < repeats < float("inf"):
            raise SpecError(f"RepeatDataset: repeats must be > 0 and finite, got {repeats}.")
        super().__init__(repeated(tree_of(dataset), repeats), [dataset], worker_config)


class LimitDataset(BaseWrapperDataset[T], Generic[T]):
    """The first items of a dataset; each iteration begins anew."""

    def __init__(
        self,
        dataset: Run[T],
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Limit a dataset.

        Args:
            dataset: What is limited.
            length: Items of this rank.
            reset_after_epoch: Taken for Energon's sake; the dataset begins anew in any case, as it
                does there.
            worker_config: That of the dataset, which is the default.
        """
        spec = LimitSpec(of=tree_of(dataset), length=length * dataset.worker_config.world_size)
        super().__init__(spec, [dataset], worker_config)
