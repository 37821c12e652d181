"""Facts of a run that nodes are built with: its seed, and their lane."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from energy_data.core.profiler import Profiler

LANES_PER_RANK = 16
SEEDS = -(2**63), 2**63 - 1
"""The least seed and the largest one."""

T = TypeVar("T")


@frozen(kw_only=True)
class Context:
    """What a spec needs to build its node: the seed, and the lane the node runs in."""

    seed: int = 0
    lane: int = 0
    lanes: int = 1
    path: tuple[str, ...] = ()  # names from the root; seeds come from names, never from positions
    trace: Callable[[Any], None] | None = field(
        default=None, eq=False, repr=False
    )  # called with a description of each item
    shared_leaves: frozenset[str] = frozenset()  # ids of leaves that several order trees draw from
    # Leaf id -> its place in the list of the leaves of the run.
    leaf_numbers: Mapping[str, int] = field(factory=dict, eq=False, repr=False)
    profiler: Profiler = field(factory=Profiler, eq=False, repr=False)  # of the process
    own_leaf_seed: int | None = None  # seed of the orders of leaves; None: `seed`
    # Leaf id -> the size of its grains, in trees that continue the leaves of others.
    grains: Mapping[str, Fraction] = field(factory=dict, eq=False, repr=False)
    cache: Any = field(default=None, eq=False, repr=False)  # a cache pool, for users' functions
    _shared: dict[Hashable, Any] = field(factory=dict, eq=False, repr=False)

    @property
    def leaf_seed(self) -> int:
        """The seed of the orders of leaves."""
        return self.seed if self.own_leaf_seed is None else self.own_leaf_seed

    def under(self, name: str) -> Context:
        """Return the context of the child called `name`."""
        return evolve(self, path=(*self.path, name))

    def in_lane(self, lane: int) -> Context:
        """Return the same context in another lane of this process."""
        return evolve(self, lane=lane)

    def shared(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the value that the lanes of a process share under `name`. `make` is called once.

        Only for values without a position: caches and tables.
        """
        if name not in self._shared:
            self._shared[name] = make()
        made: T = self._shared[name]
        return made
