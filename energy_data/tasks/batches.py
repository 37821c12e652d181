"""Datasets of batches and of packs, and `Batch`, the base of batches of a declared type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Self, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.core.spec import Spec
from energy_data.data.typed.samples import ExtendableDataclassMixin, PinMemoryMixin, edataclass
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.buffered import gives_parts
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.select_pack import PackFailures, SelectPackSpec
from energy_data.tasks.batching import batch_list
from energy_data.tasks.trees import (
    BaseWrapperDataset,
    Config,
    batched,
    mapped,
    on_failure,
    tree_of,
)

T = TypeVar("T")


class BatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches of `batch_size` samples."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Config = None,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Batch a dataset.

        Args:
            dataset: What is batched.
            batch_size: Samples per batch; the last of a pass may be short.
            batcher: Returns a batch of a list of samples. It may raise SkipSample. A generator
                function may yield any number of batches for one list.
            batcher_stateless: Ignored: the function must be stateless in any case.
            batcher_config: Ignored: states do not contain functions.
            drop_last: Drop the short batch.
            failure_tolerance: Failures in a row after which the run stops; 0: never.
            worker_config: Must be that of the dataset, which is the default.
        """
        policy = on_failure(dataset.worker_config, failure_tolerance)
        spec = batched(tree_of(dataset), batch_size, batcher, policy, drop_last=drop_last)
        super().__init__(spec, [dataset], worker_config)


class GroupBatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches of samples with equal keys. States hold waiting samples as references."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Config = None,
        drop_last: bool = False,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Group a dataset.

        Args:
            dataset: What is grouped.
            fixed_batch_size: Samples per batch; None: as `sample_group_key` returns.
            sample_group_key: Returns the key of a sample, and the batch size of its group or None.
            batcher: Returns a batch of a list of samples; it may raise SkipSample.
            batcher_stateless: Ignored: the function must be stateless in any case.
            batcher_config: Ignored: states do not contain functions.
            drop_last: Drop the groups that are not full at the end of a pass.
            failure_tolerance: Failures in a row after which the run stops; 0: never.
            worker_config: Must be that of the dataset, which is the default.
        """
        spec = GroupSpec(
            of=tree_of(dataset),
            batch_size=fixed_batch_size,
            criterion=sample_group_key,
            collate=batcher,
            drop_last=drop_last,
            on_failure=on_failure(dataset.worker_config, failure_tolerance),
        )
        super().__init__(spec, [dataset], worker_config)


class PackingDataset(BaseWrapperDataset[T], Generic[T]):
    """Packs of samples that a function selects from a buffer.

    States hold the buffer as references: at most 32 bytes per sample.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,
        packer_config: Config = None,
        pre_packer_failure_tolerance: int = 100,
        final_packer_failure_tolerance: int = 100,
        sample_encoder_failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Pack a dataset.

        Args:
            dataset: What is packed.
            buffer_size: Samples to select from; fewer at the end of a pass.
            pre_packer: Returns lists of samples, one per pack.
            final_packer: Returns one sample for such a list. It may raise SkipSample. A
                generator function may yield any number of samples for one list.
            final_packer_stateless: Ignored: the function must be stateless in any case.
            sample_encoder: Called for each sample that was selected, before it is packed.
            sample_encoder_stateless: Ignored: the function must be stateless in any case.
            packer_config: Ignored: states do not contain functions.
            pre_packer_failure_tolerance: Failures in a row of the function after which the run
                stops; 0: never.
            final_packer_failure_tolerance: The same for `final_packer`.
            sample_encoder_failure_tolerance: The same for `sample_encoder`.
            worker_config: Must be that of the dataset, which is the default.
        """
        config = dataset.worker_config
        several = gives_parts(final_packer)
        spec: Spec = SelectPackSpec(
            of=tree_of(dataset),
            select=pre_packer,
            pack=batch_list if several else final_packer,
            encode=sample_encoder,
            buffer_size=buffer_size,
            on_failure=PackFailures(
                select=on_failure(config, pre_packer_failure_tolerance),
                encode=on_failure(config, sample_encoder_failure_tolerance),
                pack=on_failure(config, final_packer_failure_tolerance),
            ),
        )
        if several:
            spec = mapped(spec, final_packer, on_failure(config, final_packer_failure_tolerance))
        super().__init__(spec, [dataset], worker_config)


@edataclass
class Batch(PinMemoryMixin, ExtendableDataclassMixin):
    """One batch of a declared type. Derive from it, as an `edataclass`, and add fields."""

    __key__: list[str]  # of each sample
    __restore_key__: Any  # which samples they are
    __subflavors__: list[dict[str, Any] | None] | None = None  # of each sample that has some
    __sources__: tuple[Any, ...] | None = None  # of all samples, in one row

    @classmethod
    def derive_from(cls, base_batch: Any, **kwargs: Any) -> Self:
        """Return a batch of this type with the `__` fields of another one, and `kwargs`."""
        base = {name: getattr(base_batch, name) for name in _BASIC if name not in kwargs}
        return cls(**base, **kwargs)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **kwargs: Any) -> Self:
        """Return samples as one batch of this type: each field the list of the samples' values.

        Fields in `kwargs` are taken from there. SpecError if a sample lacks a field.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values = {name: _gathered(name, samples) for name in fields if name not in kwargs}
        for name, value in values.items():
            if isinstance(value, _Missing) and _needed(fields[name]):
                raise SpecError(
                    f"{cls.__name__}.from_samples: its field {name!r} is in no {value.kind}. Pass "
                    f"{name}=..., or override from_samples."
                )
        found = {name: value for name, value in values.items() if not isinstance(value, _Missing)}
        return cls(**{**found, **kwargs})


@dataclasses.dataclass
class _Missing:
    """A field that a sample of some kind lacks."""

    kind: str


_BASIC = tuple(field.name for field in dataclasses.fields(Batch))


def _gathered(name: str, samples: Sequence[Any]) -> Any:
    for sample in samples:
        if not hasattr(sample, name):
            return _Missing(type(sample).__name__)
    values = [getattr(sample, name) for sample in samples]
    if name == "__sources__":
        return tuple(source for value in values for source in value or ()) or None
    if name == "__subflavors__":
        return [value for value in values if value] or None
    return values


def _needed(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing
