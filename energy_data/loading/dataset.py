"""A dataset, as users have it: a run that can be iterated."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from energy_data.loading.loader import Loader
from energy_data.loading.run import Run, T_co
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.steps.stages import for_steps
from energy_data.nodes.run_plan import Plan


@frozen(kw_only=True)
class Dataset(Run[T_co]):
    """What a run reads, and which part of the run this process is; holds no place.

    `for batch in dataset` reads in this process, from the beginning; `get_loader(dataset)` gives a
    loader, which has worker processes, goes on, saves and restores.
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
