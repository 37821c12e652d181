"""Read: samples from references."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import frozen

from energy_data.core.arrays import Int64s
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.node import Change, ItemRef, Items
from energy_data.core.profiler import READING, Fetched
from energy_data.core.references import References
from energy_data.core.sample import LEAF, Sample, SampleSource, set_field
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import RESTORE_KEY, ErrorHandler, handle_failure, log_exception
from energy_data.data.source import Source
from energy_data.errors import (
    DataError,
    ExcludedError,
    SampleError,
    SpecError,
    StateError,
    shown,
)
from energy_data.nodes.leaf import Leaf, leaves_of
from energy_data.nodes.read_ahead import ReadAhead
from energy_data.nodes.references import ReferencesNode, ReferencesSpec
from energy_data.nodes.unary import UnaryNode, UnarySpec
from energy_data.remote.client import waits

OnError = Literal["skip", "raise"]


@frozen(kw_only=True)
class ReadSpec(UnarySpec):
    """Read the sample of each reference.

    A bad sample is skipped, counted and logged (`on_error="skip"`), or raised as an error. More
    than `max_failures` consecutive bad samples of a leaf in one lane are always an error.
    """

    kind = "read"
    item_kind: ClassVar[ItemKind] = "samples"
    unsaved = ("on_error", "max_failures", "handler", "keys")
    is_one_to_one = True
    of: ReferencesSpec
    on_error: OnError = "skip"
    max_failures: int = 100
    handler: ErrorHandler = log_exception  # called with the errors of skipped bad samples
    keys: bool = False  # samples get `__restore_key__`: (leaf id, epoch, index)

    def __attrs_post_init__(self) -> None:
        if self.on_error not in ("skip", "raise"):
            raise SpecError(f"read: on_error must be 'skip' or 'raise', got {self.on_error!r}.")

    def replay_blocker(self) -> None:
        return None

    def build(self, context: Context) -> ReadNode:
        return ReadNode(self, context)


@dataclass
class ReadCursor(Cursor):
    skipped: int = 0  # bad samples skipped
    excluded: int = 0  # samples that their dataset excludes
    # Of each leaf with bad samples since its last good one, its entry and their number.
    failures: tuple[int, ...] = ()


class ReadNode(UnaryNode[ReadCursor]):
    """Reads a block of references at once."""

    leaves_out = (("skipped", "bad samples"), ("excluded", "excluded by their dataset"))

    def __init__(self, spec: ReadSpec, context: Context) -> None:
        super().__init__(ReadCursor(), spec, context)
        self.spec = spec
        self.leaves, self.sources, self.kind, self.numbers = context.shared(
            ("read", context.path), lambda: _sources_of(spec.of, context.leaf_numbers)
        )
        self.rows_join = False
        self.trace, self.profiler = context.trace, context.profiler
        self.ahead = None
        if any(source.is_remote for source in self.sources):
            assert isinstance(self.child, ReferencesNode)
            self.ahead = ReadAhead(self.child, self.leaves, context)
        self.profiler.watch(context.path, ((leaf.id, leaf.source) for leaf in self.leaves))

    def allow_batch_views(self) -> None:
        self.rows_join = all(source.can_read_rows for source in self.sources)

    def faults(self, at: ReadCursor) -> Iterator[Problem]:
        if len(at.failures) % 2:
            yield "failures", f"must be pairs of numbers, got {shorten(at.failures)}"

    def draw(self, count: int) -> Items:
        if self.ahead is not None:
            self.ahead.look(count)
        block = self.child.draw(count).refs
        assert isinstance(block, References)
        try:
            if self.ahead is None:
                drawn = self._read(block, rows=self.rows_join)
            else:
                drawn = self._read_remote(block, self.ahead)
        except DataError as error:
            self._add_places(error, block)
            raise
        self._identify(block, drawn)
        if not any(issubclass(kind, SampleError) for kind in {*map(type, drawn)}):
            if self.cursor.failures:
                self._count_bad(drawn, block)
            return Items(drawn, block)
        good = [not isinstance(sample, SampleError) for sample in drawn]
        self._count_bad(drawn, block)
        return Items(list(compress(drawn, good)), list(compress(block, good)))

    def _add_places(self, error: DataError, block: References) -> None:
        """Add where the metadataset names the dataset of an error that ends the run."""
        leaves = [self.leaves[entry] for entry in np.unique(block.entries).tolist()]
        for leaf in leaves:
            is_its = error.dataset == shown(getattr(leaf.source, "path", ""))
            if leaf.place and (is_its or len(leaves) == 1):
                error.add_note(f"{leaf.place}: leaf {leaf.id!r}")

    def replay(self, refs: Sequence[ItemRef]) -> list[Sample]:
        """Read the samples of references (entry, epoch, index)."""
        if not refs:
            return []
        columns = np.array(refs, np.int64).reshape(len(refs), 3).T
        if not 0 <= columns[0].min() <= columns[0].max() < len(self.leaves):
            raise StateError(
                "state: it is damaged, it has references to missing leaves. Use another checkpoint."
            )
        block = References(*columns)
        drawn = self._read(block)
        self._identify(block, drawn)
        samples = []
        for sample in drawn:
            if isinstance(sample, SampleError):
                raise DataError(
                    f"{sample} It was read without error before the save and is not returned yet. "
                    f"Repair the dataset, or restore an earlier checkpoint."
                ) from sample
            samples.append(sample)
        return samples

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return [change(self.child, ref) for ref in refs]

    def _identify(self, block: References, drawn: Sequence[Any]) -> None:
        """Add the fields that identify the samples."""
        set_field(LEAF, drawn, self.numbers[block.entries].tolist())
        if not self.spec.keys:
            return
        ids = [self.leaves[entry].id for entry in block.entries.tolist()]
        keys = zip(ids, block.epochs.tolist(), block.indices.tolist(), strict=True)
        set_field(RESTORE_KEY, drawn, keys)

    def _read_remote(self, block: References, ahead: ReadAhead) -> list[Sample | SampleError]:
        """Read a block when it is there: leaf by leaf where sources wait for it, to count that."""
        with ahead.waited(block) as sources_wait:
            if not sources_wait:
                return self._read(block, rows=self.rows_join)
            return self._read_leaf_by_leaf(block)

    def _read(self, block: References, *, rows: bool = False) -> list[Sample | SampleError]:
        if self.trace is not None:
            return self._read_singly(block)
        entries = block.entries
        first = int(entries[0])
        is_one_leaf = len(self.sources) == 1 or bool((entries == first).all())
        if not is_one_leaf and self.profiler.is_probe():
            return self._read_leaf_by_leaf(block)
        began, took = time.perf_counter(), list[Fetched]()
        with nullcontext() if self.ahead is None else waits(took):
            if is_one_leaf and not rows:
                samples = self.sources[first].read(block.indices)
            else:
                samples = self.kind.read_together(self.sources, entries, block.indices, rows=rows)
        seconds, leaf = time.perf_counter() - began, self.leaves[first].id
        for cost in took if is_one_leaf else ():
            self.profiler.add_fetched(leaf, cost)
            seconds -= cost.seconds
        self.profiler.add((READING, leaf) if is_one_leaf else READING, seconds)
        return samples

    def _read_leaf_by_leaf(self, block: References) -> list[Sample | SampleError]:
        """Read the block leaf by leaf, to measure the time of each leaf."""
        samples: list[Sample | SampleError] = [{}] * len(block)
        for number in np.unique(block.entries).tolist():
            places = np.flatnonzero(block.entries == number)
            columns = (block.entries, block.epochs, block.indices)
            found = self._read(References(*(column[places] for column in columns)))
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    def _read_singly(self, block: References) -> list[Sample | SampleError]:
        """Read one by one, reporting each sample first: one of them kills the process."""
        assert self.trace is not None
        samples: list[Sample | SampleError] = []
        for place, entry in enumerate(block.entries.tolist()):
            leaf = self.leaves[entry]
            self.trace(f"leaf {leaf.id}, sample {block.indices[place]}")
            samples += leaf.source.read(block.indices[place : place + 1])
        return samples

    def _count_bad(self, drawn: Sequence[Sample | SampleError], block: References) -> None:
        """Count, log or raise bad samples."""
        at = self.cursor
        failures = dict(zip(at.failures[::2], at.failures[1::2], strict=True))
        for sample, entry in zip(drawn, block.entries.tolist(), strict=True):
            if not isinstance(sample, SampleError):
                failures.pop(entry, None)
                continue
            if isinstance(sample, ExcludedError):
                at.excluded += 1
                continue
            if self.spec.on_error == "raise":
                raise sample
            at.skipped += 1
            failures[entry] = count = failures.get(entry, 0) + 1
            if count > self.spec.max_failures:
                raise DataError(
                    f"{count} bad samples of leaf {self.leaves[entry].id!r} in a row, the last: "
                    f"{sample} Check the dataset."
                ) from sample
            handle_failure(self.spec.handler, sample, _known_fields(sample), count)
        at.failures = tuple(chain.from_iterable(failures.items()))


def _known_fields(error: SampleError) -> Sample:
    """Return the fields of a bad sample that are known."""
    dataset, shard, index = error.dataset, error.shard, error.index
    if dataset is None or shard is None or index is None:
        return {"__key__": error.key}
    return {"__key__": error.key, "__sources__": (SampleSource(dataset, shard, index),)}


def _sources_of(
    spec: ReferencesSpec, numbers: Mapping[str, int]
) -> tuple[list[Leaf], list[Source], type[Source], Int64s]:
    """Return the leaf and the source of each entry, the class that all sources have, and places.

    The place of each entry's leaf among those of the run, int64 [entries]; -1 outside of a run.
    """
    leaves = leaves_of(spec.of)
    sources = [leaf.source for leaf in leaves]
    kinds = {type(source) for source in sources}
    places = np.array([numbers.get(leaf.id, -1) for leaf in leaves], np.int64)
    return leaves, sources, kinds.pop() if len(kinds) == 1 else Source, places
