"""Leaves: the datasets that samples are drawn from, and how they are shuffled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from attrs import field, frozen

from energy_data.core.keys import key
from energy_data.core.spec import Spec
from energy_data.data.files.stores import FileStore
from energy_data.data.source import Source
from energy_data.errors import DataError, SpecError


@frozen(kw_only=True)
class Shuffle:
    """How far the samples of one leaf are mixed. The parameters are those of Energon."""

    buffer_size: int = 0  # consecutive draws that are permuted; 0 or 1: none
    sequence_length: int = 0  # consecutive samples read together; 0: file order
    parallel_sequences: int = 16  # sequences that are mixed at a time

    @property
    def window(self) -> int:
        """The number of consecutive draws of a lane in one leaf that are permuted; 0: none."""
        if self.buffer_size <= 1:
            return 0
        return max(self.buffer_size, self.parallel_sequences * self.sequence_length)


@frozen(kw_only=True)
class Leaf:
    """One dataset split that samples are drawn from; equal ids are one leaf."""

    id: str  # stable over time: orders and ledgers depend on it
    source: Source = field(eq=False)
    aux: Mapping[str, FileStore[Any]] = field(factory=dict, eq=False)  # for cookers, by name
    epochs: int | None = 1  # that are mixed; -1: all; None: none, in the order of the files
    tokens_per_sample: Fraction | None = field(default=None, eq=False)  # None: that of its source
    max_repetitions: Fraction | None = field(default=None, eq=False)  # over the run; None: any

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.source)

    @property
    def most_draws(self) -> int | None:
        """The most draws over the run; None: no limit."""
        most = self.max_repetitions
        return None if most is None else int(most * self.num_samples)

    @property
    def mean_tokens(self) -> Fraction | None:
        """Tokens per sample, declared or of its source; None: not known."""
        return self.tokens_per_sample or self.source.tokens_per_sample

    @property
    def fingerprint(self) -> str:
        """16 hex digits of everything but the id that its samples and their order depend on."""
        own = self.source.fingerprint
        return own if self.epochs == 1 else f"{key(own, 'epochs', str(self.epochs)):016x}"


def leaf_entries(spec: Spec) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield the path and the leaf of every leaf spec under `spec`, in the order of the tree."""
    for path, inner in spec.walk():
        if (leaf := getattr(inner, "leaf", None)) is not None:
            yield path, leaf


def too_often(leaf: Leaf) -> DataError:
    """Return the error for a leaf that is drawn more often than `max_repetitions`."""
    return DataError(
        f"leaf {leaf.id!r}: its {leaf.num_samples:,} samples were drawn {leaf.max_repetitions} "
        f"times, its `max_repetitions`, and the run needs more of them. Lower its weight, or raise "
        f"`max_repetitions`. With `budget_samples`, this is checked at the start of a run."
    )


def distinct_leaves(entries: Sequence[Leaf]) -> list[Leaf]:
    """Return one leaf per id, sorted by id. SpecError if one id stands for two datasets."""
    by_id: dict[str, Leaf] = {}
    for leaf in entries:
        known = by_id.setdefault(leaf.id, leaf)
        same = known.source is leaf.source and known.epochs == leaf.epochs
        if not same and known.fingerprint != leaf.fingerprint:
            raise SpecError(
                f"leaf {leaf.id!r}: two different datasets have this id, or one is shuffled in two "
                f"ways. Give one of them another `id:`."
            )
    return [by_id[leaf_id] for leaf_id in sorted(by_id)]


def shared_leaf_ids(spec: Spec) -> frozenset[str]:
    """Return the ids of leaves that more than one order tree under `spec` draws from.

    Trees that draw one after another, as those of stages do, count as one.
    """
    return frozenset(leaf_id for leaf_id, times in _trees_of_leaves(spec).items() if times > 1)


def _trees_of_leaves(spec: Spec) -> Counter[str]:
    """Return how many order trees draw from each leaf at the same time."""
    if spec.item_kind == "references":
        return Counter({leaf.id for _, leaf in leaf_entries(spec)})
    counts: Counter[str] = Counter()
    for child in spec.children.values():
        # Not `+=` and `|=` of counters, which visit every leaf that was found before.
        for leaf_id, times in _trees_of_leaves(child).items():
            known = counts[leaf_id]
            counts[leaf_id] = max(known, times) if spec.children_are_sequential else known + times
    return counts
