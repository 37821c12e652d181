"""A dataset, as users have it: a run that can be iterated, wrapped, and given to a loader."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Any, TypeVar

from attrs import fields, frozen

from energy_data.core.spec import Spec
from energy_data.loading.loader import Loader
from energy_data.loading.run import Run, T_co
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.steps.stages import for_steps
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.epochize import EpochizeSpec
from energy_data.nodes.limit import LimitSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.repeat import RepeatSpec
from energy_data.nodes.run_plan import Plan

T = TypeVar("T")


@frozen(kw_only=True)
class SavableDataset(Run[T_co]):
    """What a run reads, and which part of the run this process is. It holds no position.

    `for batch in dataset` reads in this process, from the beginning. `get_loader(dataset)` returns
    a loader, which has worker processes, continues from epoch to epoch, saves and restores.
    """

    @property
    def plan(self) -> Plan:
        """The stages of the run: when each is, how large, with which parameters."""
        return Plan(self.spec)

    def __iter__(self) -> Iterator[T_co]:
        rules = self.docs_per_step
        if rules is None:
            return iter(Loader(self))
        return iter(StepGrouper(Loader(for_steps(self, rules), in_steps=True), rules))

    def __len__(self) -> int:
        """Return how many different items this rank has in one pass over the data.

        Batches are counted as if no sample were skipped.
        """
        return ceil(items_per_pass(self.spec) / self.worker_config.world_size)

    def __bool__(self) -> bool:
        return True

    def len_rank(self) -> int:
        """Return `len(self)`."""
        return len(self)

    def can_restore_sample(self) -> bool:
        """Return False: a single item cannot be made again from its key."""
        return False

    def config(self) -> list[Any]:
        """Return what decides the stream, as plain data. States are compared by it."""
        return self.spec.describe()


def changed(dataset: Run[T], **changes: Any) -> SavableDataset[T]:
    """Return a dataset with some of its fields changed."""
    facts = {field.name: getattr(dataset, field.name) for field in fields(SavableDataset)}
    return SavableDataset(**{**facts, **changes})


def items_per_pass(spec: Spec) -> Fraction:
    """Return how many items a tree gives in one pass over its data, over all ranks."""
    if isinstance(spec, ReferencesSpec):
        return spec.of.size
    below = [items_per_pass(child) for child in spec.children.values()]
    if isinstance(spec, BatchSpec):
        return Fraction(ceil(below[0] / spec.batch_size))
    if isinstance(spec, EpochizeSpec):
        return Fraction(spec.length)
    if isinstance(spec, LimitSpec):
        return min(Fraction(spec.length), below[0])
    if isinstance(spec, RepeatSpec):
        return below[0] * (spec.times or 1)
    return sum(below, Fraction(0))
