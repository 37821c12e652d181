"""Pack selected: a task's own choice of which samples go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.node import Change, ItemRef, Items
from energy_data.core.profiler import ENCODING, PACKING
from energy_data.core.recipe import check_whole
from energy_data.core.sample import describe_source
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import (
    MAKING_PACK,
    RESTORE_KEY,
    SKIPPED,
    ErrorPolicy,
    UserCall,
    gives_parts,
    restore_key,
)
from energy_data.errors import DataError, SpecError
from energy_data.nodes.buffered import (
    BufferedCursor,
    PackingNode,
    ReplayCache,
    remap_packs,
    require_replayable,
)
from energy_data.nodes.unary import UnarySpec, not_reproducible


@frozen(kw_only=True)
class PackFailures:
    """The error policy of each function; None: its errors are raised."""

    select: ErrorPolicy | None = None
    encode: ErrorPolicy | None = None
    pack: ErrorPolicy | None = None


@frozen(kw_only=True)
class SelectPackSpec(UnarySpec):
    """Return `pack(group)` of each group that `select` makes of `buffer_size` samples at a time.

    select: Takes the samples of a full buffer, or the rest at the end of a finite stream. Returns
        lists of them. Samples in no list are skipped and counted.
    encode: Called with each selected sample before packing; `SkipSample` skips the sample.
    pack: Makes one sample of a group; `SkipSample` skips the group.

    The functions must depend on their arguments alone. Each lane has its own buffer. Its samples
    are in the state as references, and are read and encoded again after a restore.
    """

    kind = "select_pack"
    unsaved = ("on_failure",)
    select: Callable[[list[Any]], Sequence[Sequence[Any]]]
    pack: Callable[[list[Any]], Any]
    encode: Callable[[Any], Any] | None = None
    buffer_size: int
    on_failure: PackFailures = field(factory=PackFailures)

    def __attrs_post_init__(self) -> None:
        check_whole("packing_buffer_size", self.buffer_size, 1)
        if gives_parts(self.encode):
            raise SpecError(
                "postencode_sample: it is a generator, but each selected sample has one place in "
                "its pack. Yield several samples in `encode_sample` or `preencode_sample` instead."
            )
        require_replayable(self, self.of)

    @property
    def item_kind(self) -> ItemKind:
        return "samples"

    def build(self, context: Context) -> SelectPackNode:
        return SelectPackNode(self, context)


@dataclass
class SelectPackCursor(BufferedCursor):
    groups: tuple[int, ...] = ()  # numbers of samples of the groups that `pending` begins with
    select_failures: int = 0  # consecutive failures of each function
    encode_failures: int = 0
    pack_failures: int = 0
    skipped: int = 0  # samples skipped: not selected, by `encode`, or with their group


class SelectPackNode(PackingNode[SelectPackCursor]):
    """Groups of one lane."""

    leaves_out = (("skipped", "not selected to be packed"),)

    def __init__(self, spec: SelectPackSpec, context: Context) -> None:
        super().__init__(SelectPackCursor(), spec, context)
        self.spec = spec
        self.samples: ReplayCache[Any] = ReplayCache(self.child.replay)

        def call(name: str, doing: str, activity: str) -> UserCall:
            policy, counter = getattr(spec.on_failure, name), f"{name}_failures"
            function = getattr(spec, name)
            return UserCall(function, context, doing, activity, on_failure=policy, counter=counter)

        self.select = call("select", "selecting from samples that begin with", PACKING)
        self.encode = spec.encode and call("encode", "encoding", ENCODING)
        self.pack = call("pack", MAKING_PACK, PACKING)

    def own_faults(self, at: SelectPackCursor) -> Iterator[Problem]:
        waiting = len(at.pending)
        if sum(at.groups) != waiting or 0 in at.groups:
            yield "groups", f"must add up to {waiting} pending samples, got {shorten(at.groups)}"

    def draw(self, count: int, *, within: int | None = None) -> Items:
        at, packs, refs = self.cursor, list[Any](), list[ItemRef]()
        self.drawn_docs = 0
        if not at.groups:
            self._select(self._full_buffer())
        while at.groups and len(packs) < count:
            size = min(at.groups[0], within or at.groups[0])  # the rest is the next pack
            pack_refs, group = at.pending[:size], self._pop(size)
            pack, num_samples = self._packed(pack_refs, group, at)
            at.skipped += size - num_samples
            if num_samples:
                if within and isinstance(pack, dict):
                    pack.setdefault("__docs__", num_samples)
                self.drawn_docs += num_samples
                packs.append(pack)
                refs.append(pack_refs)
        return Items(packs, refs)

    def _pop(self, size: int) -> list[Any]:
        """Remove the first `size` samples of the first group, and return them."""
        at = self.cursor
        samples, rest = self.samples.items(at.pending), at.groups[0] - size
        at.groups = (rest, *at.groups[1:]) if rest else at.groups[1:]
        at.pending = at.pending[size:]
        self.samples.keep(at.pending, samples[size:])
        return samples[:size]

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        samples = iter(self.child.replay([ref for pack in refs for ref in pack]))
        aside = copy(self.cursor)  # replayed packs are not counted
        packs: list[Any] = []
        for pack_refs in refs:
            group = list(islice(samples, len(pack_refs)))
            pack, num_samples = self._packed(pack_refs, group, aside)
            if not num_samples:
                raise not_reproducible(f"the pack that begins with {describe_source(group[0])}")
            packs.append(pack)
        return packs

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return remap_packs(refs, lambda pack: self.child.remap(pack, change))

    def move(self, change: Change) -> None:
        at, moved = self.cursor, iter(self.child.remap(self.cursor.pending, change))
        groups = [list(islice(moved, size)) for size in at.groups]
        kept = [[ref for ref in group if ref is not None] for group in groups]
        at.groups = tuple(len(group) for group in kept if group)
        pending = tuple(chain.from_iterable(kept))
        at.pending, at.lost = pending, at.lost + len(at.pending) - len(pending)

    def _full_buffer(self) -> Items:
        """Return the next samples to select from. StopIteration if there is none."""
        samples, refs = map(list, self.child.draw_some(self.spec.buffer_size))
        while len(samples) < self.spec.buffer_size:
            try:
                more = self.child.draw_some(self.spec.buffer_size - len(samples))
            except StopIteration:
                break
            samples += more.values
            refs += more.refs
        return Items(samples, refs)

    def _select(self, buffer: Items) -> None:
        place = {id(sample): number for number, sample in enumerate(buffer.values)}
        found = self.select(list(buffer.values), self.cursor)
        selected = [] if found is SKIPPED else found
        groups = [group for group in map(list, selected) if group]
        samples = list(chain.from_iterable(groups))
        foreign = [sample for sample in samples if id(sample) not in place]
        if foreign:
            raise DataError(
                f"select_samples_to_pack: it returned {len(foreign)} samples that are not among "
                f"its arguments, the first a {type(foreign[0]).__name__}. Return the samples "
                f"themselves, and change them in `pack_selected_samples`."
            )
        numbers = [place[id(sample)] for sample in samples]
        at = self.cursor
        at.skipped += len(buffer.values) - len(set(numbers))
        at.groups = tuple(len(group) for group in groups)
        at.pending = tuple(buffer.refs[number] for number in numbers)
        self.samples.keep(at.pending, samples)

    def _packed(self, refs: ItemRef, group: list[Any], cursor: Cursor) -> tuple[Any, int]:
        """Return a pack and the number of its samples; 0 if all of them, or it, were skipped."""
        encoded = self.encode.each(group, cursor, refs) if self.encode else group
        samples = [sample for sample in encoded if sample is not SKIPPED]
        made = self.pack(samples, cursor, refs) if samples else SKIPPED
        if made is SKIPPED:
            return None, 0
        if getattr(made, RESTORE_KEY, None) == ():  # as task encoders for Energon leave it to us
            setattr(made, RESTORE_KEY, tuple(restore_key(sample) for sample in samples))
        return made, len(samples)
