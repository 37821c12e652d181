"""Pack selected: a task's own choice of which samples go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import chain, islice
from operator import index
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, is_index, shorten
from energy_data.core.node import Change, ItemRef, Items
from energy_data.core.profiler import ENCODING, PACKING
from energy_data.core.recipe import check_whole
from energy_data.core.sample import describe_source, sample_field
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

T = TypeVar("T")


@dataclass
class PackedSamplesOutput(Generic[T]):
    """What `select_samples_to_pack` may return: packs, and samples for the next buffer."""

    packs: Sequence[Sequence[T]]
    pushback: Sequence[T] = ()
    """Samples of the buffer that the next one begins with, before new ones."""


@dataclass
class PartialSample(Generic[T]):
    """A part of a sample, in a pack or pushed back; the functions of the task apply the slice.

    Parts of one sample share it, so functions must not change it in place.
    """

    sample: T
    slice: tuple[int, ...]
    """Numbers >= 0, which are part of the state; (start, stop) as a rule."""

    def __post_init__(self) -> None:
        try:
            part = tuple(map(index, self.slice))
        except TypeError:
            part = ()
        if not part or not all(map(is_index, part)):
            raise DataError(
                f"PartialSample: slice must be a tuple of whole numbers >= 0, got {self.slice!r}. "
                f"It is part of the state: give (start, stop)."
            )
        self.slice = part

    @property
    def __key__(self) -> Any:
        return sample_field(self.sample, "__key__")

    @property
    def __sources__(self) -> Any:
        return sample_field(self.sample, "__sources__")

    @property
    def __restore_key__(self) -> tuple[Any, ...] | None:
        """The identity of the sample, followed by the slice."""
        known = restore_key(self.sample)
        return None if known is None else (*known, *self.slice)


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
        lists of them, or a `PackedSamplesOutput`. Samples in no list are skipped and counted.
    encode: Called with each selected sample before packing; `SkipSample` skips the sample.
    pack: Makes one sample of a group; `SkipSample` skips the group.

    The functions must depend on their arguments alone. Each lane has its own buffer. Its samples
    are in the state as references, and are read and encoded again after a restore.
    """

    kind = "select_pack"
    unsaved = ("on_failure",)
    select: Callable[[list[Any]], Sequence[Sequence[Any]] | PackedSamplesOutput[Any]]
    pack: Callable[[list[Any]], Any]
    encode: Callable[[Any], Any] | None = None
    buffer_size: int
    on_failure: PackFailures = field(factory=PackFailures)

    def __attrs_post_init__(self) -> None:
        check_buffer_size(self.buffer_size)
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
    # Numbers of samples of the groups that `pending` begins with; the rest is pushed back. Before
    # the reference of a sample stand the length of its slice, and the slice.
    groups: tuple[int, ...] = ()
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
        self.samples: ReplayCache[Any] = ReplayCache(self._replay)

        def call(name: str, doing: str, activity: str) -> UserCall:
            policy, counter = getattr(spec.on_failure, name), f"{name}_failures"
            function = getattr(spec, name)
            return UserCall(function, context, doing, activity, on_failure=policy, counter=counter)

        self.select = call("select", "selecting from samples that begin with", PACKING)
        self.encode = spec.encode and call("encode", "encoding", ENCODING)
        self.pack = call("pack", MAKING_PACK, PACKING)

    def own_faults(self, at: SelectPackCursor) -> Iterator[Problem]:
        waiting = len(at.pending)
        if sum(at.groups) > waiting or 0 in at.groups:
            yield "groups", f"must be of {waiting} pending samples, got {shorten(at.groups)}"

    def draw(self, count: int, *, within: int | None = None) -> Items:
        at, packs, refs = self.cursor, list[Any](), list[ItemRef]()
        self.drawn_docs = 0
        if not at.groups:
            self._select()
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
        samples = iter(self._replay([ref for pack in refs for ref in pack]))
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
        return remap_packs(refs, lambda pack: self.remap_pending(pack, change))

    def remap_pending(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        slices, bases = _split(refs)
        moved = self.child.remap(bases, change)
        return [
            None if base is None else _joined(one, base)
            for one, base in zip(slices, moved, strict=True)
        ]

    def _replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        """Return the samples, and parts of samples, of references in the cursor."""
        slices, bases = _split(refs)
        every = list(dict.fromkeys(bases))
        found = dict(zip(every, self.child.replay(every), strict=True))
        return [
            PartialSample(found[base], one) if one else found[base]
            for one, base in zip(slices, bases, strict=True)
        ]

    def move(self, change: Change) -> None:
        at, moved = self.cursor, iter(self.remap_pending(self.cursor.pending, change))
        groups = [list(islice(moved, size)) for size in (*at.groups, len(at.pending))]
        kept = [[ref for ref in group if ref is not None] for group in groups]
        at.groups = tuple(len(group) for group in kept[:-1] if group)
        pending = tuple(chain.from_iterable(kept))
        at.pending, at.lost = pending, at.lost + len(at.pending) - len(pending)

    def _full_buffer(self) -> tuple[Items, bool]:
        """Return the samples to select from, those pushed back first, and whether none follow.

        StopIteration if there is none.
        """
        at, size, is_end = self.cursor, self.spec.buffer_size, False
        samples, refs = list(self.samples.items(at.pending)), list(at.pending)
        while len(samples) < size and not is_end:
            try:
                drawn = self.child.draw_some(size - len(samples))
            except StopIteration:
                is_end = True
                continue
            samples += drawn.values
            refs += [_joined((), ref) for ref in drawn.refs]
        if not samples:
            raise StopIteration
        return Items(samples, refs), is_end

    def _select(self) -> None:
        """Select from the next buffer."""
        at = self.cursor
        buffer, is_end = self._full_buffer()
        found = self.select(list(buffer.values), at)
        output = PackedSamplesOutput(()) if found is SKIPPED else found
        if not isinstance(output, PackedSamplesOutput):
            output = PackedSamplesOutput(output)
        groups, pushed = [group for group in map(list, output.packs) if group], []
        if groups or not is_end:  # a buffer that nothing is added to would be selected from forever
            pushed = list(output.pushback)
        if not groups and len(pushed) >= self.spec.buffer_size:
            raise DataError(
                f"select_samples_to_pack: it pushed back all {len(pushed)} samples of a full "
                f"buffer, and made no pack. Make one, or raise packing_buffer_size."
            )
        samples = [*chain.from_iterable(groups), *pushed]
        refs, num_used = _refs_of(samples, buffer)
        at.skipped += len(buffer.values) - num_used
        at.groups = tuple(len(group) for group in groups)
        at.pending = refs
        self.samples.keep(refs, samples)

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


def check_buffer_size(size: Any) -> None:
    """Raise SpecError for the size of a buffer that is no whole number >= 1."""
    if isinstance(size, str | Mapping):
        raise SpecError(
            f"packing_buffer_size: must be a number of samples, got {size!r}. A lane has one "
            f"buffer, of which packs are chosen by select_samples_to_pack, which may return a "
            f"PackedSamplesOutput; or by size, with the `packing` of the task encoder."
        )
    check_whole("packing_buffer_size", size, 1)


def _joined(part: tuple[int, ...], base: ItemRef) -> ItemRef:
    """Return the reference of a part of a sample; of all of it if `part` is empty."""
    return (len(part), *part, *base)


def _split(refs: Sequence[ItemRef]) -> tuple[list[tuple[int, ...]], list[ItemRef]]:
    """Return the slices in references, and the references of the samples."""
    slices = [ref[1 : 1 + ref[0]] for ref in refs]
    return slices, [ref[1 + ref[0] :] for ref in refs]


def _refs_of(samples: Sequence[Any], buffer: Items) -> tuple[tuple[ItemRef, ...], int]:
    """Return the references of what was selected, and of how many items of the buffer it is.

    Raises DataError for what is not in the buffer.
    """
    known: dict[int, tuple[int, ItemRef]] = {}  # an item of the buffer -> its number and reference
    whole: dict[int, tuple[int, ItemRef]] = {}  # a sample in it, or with a part in it -> the same
    for number, (item, ref) in enumerate(zip(buffer.values, buffer.refs, strict=True)):
        sample = item.sample if isinstance(item, PartialSample) else item
        known[id(item)] = number, ref
        whole.setdefault(id(sample), (number, ref[1 + ref[0] :]))
    refs, used = list[ItemRef](), set[int]()
    for item in samples:
        part: tuple[int, ...] = ()
        sample, found = item, known.get(id(item))
        if found is None:
            if isinstance(item, PartialSample):
                part, sample = item.slice, item.sample
            found = whole.get(id(sample))
        if found is None:
            raise DataError(
                f"select_samples_to_pack: it returned a {type(sample).__name__} that is not among "
                f"its arguments. Return the samples themselves, and change them in "
                f"`pack_selected_samples`."
            )
        number, ref = found
        used.add(number)
        refs.append(ref if id(item) in known else _joined(part, ref))
    return tuple(refs), len(used)
