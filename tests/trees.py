"""Trees for tests: one small tree per kind, and random ones."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from joined import join_leaf

from energy_data.core.spec import Spec
from energy_data.errors import SkipSample
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Mixed, MixSpec, Part, Repeated
from energy_data.nodes.encode import EncodeSpec, FlatMapSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import Packing
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, LimitSpec, RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, OrderSpec, ReferencesSpec
from energy_data.nodes.select_pack import (
    PackedSamplesOutput,
    PartialSample,
    SelectPackSpec,
)
from energy_data.nodes.share import ShareSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.schedule import Clock, Schedule
from energy_data.testing import NumberSource


def leaf(name: str = "a", num_samples: int = 10, bad: frozenset[int] = frozenset()) -> LeafSpec:
    return LeafSpec(Leaf(id=name, source=NumberSource(num_samples, name, bad)))


CLOCK = Clock(samples_per_microbatch=3, microbatches_per_step=2, tokens_per_sample=4)
UP = Schedule("linear", ((0, 1), (3, 5)))
DOWN = Schedule("cosine", ((1, 4), (9, 0.5)), "samples")
LATER = Schedule("step", ((0, 0), (2, 3), (5, 0)))


def references(order: OrderSpec, deal: int = 0, *, drop_last: bool = False) -> ReferencesSpec:
    shuffle = Shuffle(buffer_size=4, sequence_length=3, parallel_sequences=2)
    clock = None if deal else CLOCK
    return ReferencesSpec(of=order, shuffle=shuffle, deal=deal, drop_last=drop_last, clock=clock)


def samples(order: OrderSpec, deal: int = 0) -> ReadSpec:
    return ReadSpec(of=references(order, deal))


def numbers(batch: list) -> tuple:
    return tuple(sample["__key__"] for sample in batch)


def renamed(item: object) -> object:
    return ("mapped", item) if isinstance(item, tuple) else {**item, "mapped": True}


def number_cost(sample: dict) -> int:
    return 1 + sample["number"] % 7


def not_fifth(item: object) -> object:
    if isinstance(item, dict) and item["number"] % 5 == 4:
        raise SkipSample
    return item


def by_number(sample: dict) -> object:
    for part in range(sample["number"] % 3):
        yield {**sample, "part": part}


def twice(batch: tuple) -> object:
    yield batch
    if len(batch) > 1:
        yield batch[1:]


def not_third(item: object) -> bool:
    return not isinstance(item, dict) or item["number"] % 3 != 2


def parts(sample: dict):
    """None to three samples for one."""
    for part in range((sample["number"] + 1) % 4):
        yield {
            **sample,
            "__key__": f"{sample['__key__']}.{part}",
            "number": sample["number"] + part,
        }


def lengths(sample: dict) -> dict:
    number = sample["number"]
    return {"tokens": sample.get("tokens", number * number % 11 + 1), "images": number % 3}


def joined(samples: list) -> dict:
    """One sample of several, as packs are."""
    numbers = [sample["number"] for sample in samples]
    return {"__key__": tuple(sample["__key__"] for sample in samples), "number": sum(numbers)}


def cut(sample: dict, start: int, stop: int) -> dict:
    tokens = min(stop, lengths(sample)["tokens"]) - start
    return {**sample, "__key__": f"{sample['__key__']}[{start}:{stop}]", "tokens": tokens}


def packing(**facts) -> Packing:
    facts = {"limits": {"tokens": 12}, "cut": cut, **facts}
    return Packing(lengths=lengths, pack=joined, **facts)


def packs(of: Spec, buffer_size: int = 6, **facts) -> PackSpec:
    return PackSpec(of=of, packing=packing(**facts), buffer_size=buffer_size)


def pairs(samples: list) -> list:
    """Samples two by two, the odd ones first; one of a full buffer is left out."""
    ordered = sorted(samples, key=lambda sample: sample["number"] % 2 == 0)[:5]
    return [ordered[n : n + 2] for n in range(0, len(ordered), 2)]


def selected(of: Spec, buffer_size: int = 6, **facts) -> SelectPackSpec:
    return SelectPackSpec(of=of, select=pairs, pack=joined, buffer_size=buffer_size, **facts)


def piece(item: object) -> tuple:
    """Return a sample and the tokens of it that an item is."""
    if isinstance(item, PartialSample):
        return item.sample, *item.slice
    return item, 0, lengths(item)["tokens"]


def cut_to_ten(items: list) -> PackedSamplesOutput:
    """One pack of ten tokens; the rest of the sample that is cut and all others come again."""
    pack, room = [], 10
    for place, item in enumerate(items):
        sample, start, stop = piece(item)
        if stop - start > room:
            cut_at = start + room
            pack += [PartialSample(sample, (start, cut_at))] if room else []
            rest = PartialSample(sample, (cut_at, stop)) if room else item
            return PackedSamplesOutput([pack], [rest, *items[place + 1 :]])
        pack.append(item)
        room -= stop - start
    return PackedSamplesOutput([pack])


def joined_pieces(items: list) -> dict:
    pieces = [(sample["__key__"], start, stop) for sample, start, stop in map(piece, items)]
    return {"__key__": tuple(pieces), "number": len(pieces)}


def cut_packs(of: Spec, buffer_size: int = 6, **facts) -> SelectPackSpec:
    return SelectPackSpec(
        of=of, select=cut_to_ten, pack=joined_pieces, buffer_size=buffer_size, **facts
    )


def parity(sample: dict) -> tuple:
    """Groups of even and odd numbers; those of odd ones are larger by one."""
    return sample["number"] % 2, None if sample["number"] % 2 == 0 else 3


def groups(of: Spec, batch_size: int = 2, **facts) -> GroupSpec:
    return GroupSpec(of=of, batch_size=batch_size, criterion=parity, collate=numbers, **facts)


def batches(of: Spec, batch_size: int = 3, *, drop_last: bool = False) -> BatchSpec:
    return BatchSpec(of=of, batch_size=batch_size, collate=numbers, drop_last=drop_last)


def shares(of: Spec, target: tuple, count: int, batch_size: int = 3) -> ShareSpec:
    return ShareSpec(of=of, batch_size=batch_size, collate=numbers, target=target, shares=count)


def finite(order: OrderSpec, batch_size: int = 3, *, drop_last: bool = False) -> BatchSpec:
    """A finite stream of batches, dealt to the lanes."""
    read = ReadSpec(of=references(order, batch_size, drop_last=drop_last))
    return BatchSpec(of=read, batch_size=batch_size, collate=numbers, aligned=True)


def staged(*bodies: Spec, steps: Sequence[int] = (), every: int = 1, **facts) -> StagedSpec:
    """Stages named s0, s1, ... of so many micro-batches each (5 if not said), the last endless."""
    stages, begin = [], 0
    for number, body in enumerate(bodies):
        length = (steps[number] if number < len(steps) else 5) * every
        end = None if number == len(bodies) - 1 else begin + length
        stages.append(Stage(name=f"s{number}", of=body, begin=begin, end=end))
        begin += length
    return StagedSpec(stages=tuple(stages), **facts)


A, B, C = leaf("a", 10), leaf("b", 4), leaf("c", 1)
STREAM_A, STREAM_B = samples(A, 2), samples(B, 2)
BAD = leaf("bad", 9, frozenset({0, 4}))
# Rows and lanes without a common divisor: else, unshuffled, a lane might see the bad row alone.
JOINED = join_leaf(rows=11)
MIXING = LeafSpec(evolve(leaf("m", 6).leaf, epochs=3))
IN_ORDER = LeafSpec(evolve(leaf("o", 7).leaf, epochs=None))  # as many as no lanes divide

KINDS: dict[str, list[Spec]] = {
    "leaf": [A, samples(A), samples(JOINED), samples(MIXING), samples(IN_ORDER)],
    "references": [references(A), references(BlendSpec((Part(A, 2), Part(B))), deal=2)],
    "blend": [
        samples(BlendSpec((Part(A, 5), Part(B, 2), Part(C, 0), Part(A, 1)))),
        samples(BlendSpec((Part(A, 5), Part(B, 2))), 3),
        samples(BlendSpec((Part(A, UP), Part(B, LATER), Part(C, 0), Part(A, 0.7)))),
        samples(BlendSpec((Part(BlendSpec((Part(A, DOWN), Part(B))), LATER), Part(C, UP)))),
        BlendSpec((Part(STREAM_A, 0.3), Part(STREAM_B, 0.7), Part(samples(C), 0))),
        BlendSpec((Part(samples(A), 0.7), Part(samples(BAD), 1.3))),
    ],
    "mix": [
        samples(MixSpec((Mixed(A, 3), Mixed(B, 2), Mixed(C, 0), Mixed(A, 0.5)))),
        samples(MixSpec((Mixed(A, 3), Mixed(BlendSpec((Part(B), Part(C, UP))))), "batches")),
    ],
    "blend_epochized": [samples(BlendEpochizedSpec((Repeated(A, 1.5), Repeated(B, 2))))],
    "concat": [samples(ConcatSpec((A, B, A))), ConcatSpec((STREAM_A, STREAM_B))],
    "epochize": [
        samples(EpochizeSpec(of=BlendSpec((Part(A), Part(B))), length=7), 2),
        RepeatSpec(of=EpochizeSpec(of=samples(A), length=3), times=3),
    ],
    "repeat": [samples(RepeatSpec(of=A, times=2), 3), RepeatSpec(of=STREAM_B)],
    "limit": [LimitSpec(of=samples(A), length=5), RepeatSpec(of=LimitSpec(of=STREAM_A, length=3))],
    "read": [samples(BAD), samples(ConcatSpec((BAD, B)), 4)],
    "flat_map": [
        FlatMapSpec(of=samples(A), function=by_number),
        FlatMapSpec(of=FlatMapSpec(of=finite(A), function=twice), function=twice),
        RepeatSpec(of=FlatMapSpec(of=LimitSpec(of=batches(STREAM_A), length=2), function=twice)),
    ],
    "filter": [FilterSpec(of=samples(A), predicate=not_third)],
    "encode": [
        EncodeSpec(of=samples(A), encode=renamed),
        EncodeSpec(of=samples(A), encode=not_fifth),
        EncodeSpec(of=samples(A), encode=parts),
        EncodeSpec(of=STREAM_A, encode=parts),
        EncodeSpec(of=FilterSpec(of=STREAM_A, predicate=not_third), encode=parts),
    ],
    "pack": [
        packs(samples(A)),
        packs(STREAM_A, 4),
        packs(samples(BAD)),
        packs(EncodeSpec(of=samples(A), encode=not_fifth), limits={"tokens": 12, "images": 3}),
        packs(samples(A), limits={"tokens": 5}, over_long="split"),
        packs(STREAM_A, limits={"tokens": 5}, over_long="split", fragments="each"),
        packs(samples(A), limits={"tokens": 5}, over_long="truncate"),
        packs(samples(A), limits={"tokens": 5}, over_long="skip"),
        packs(EncodeSpec(of=STREAM_A, encode=parts)),
        packs(BlendSpec((Part(samples(A), 2), Part(EncodeSpec(of=samples(B), encode=parts))))),
        packs(ConcatSpec((STREAM_A, EncodeSpec(of=STREAM_B, encode=renamed)))),
        packs(RepeatSpec(of=LimitSpec(of=EpochizeSpec(of=samples(A), length=30), length=7))),
    ],
    "select_pack": [
        selected(samples(A)),
        selected(STREAM_A),
        selected(EncodeSpec(of=samples(A), encode=parts), encode=not_fifth),
        cut_packs(STREAM_A),
        cut_packs(EncodeSpec(of=samples(A), encode=parts), 4, encode=not_fifth),
    ],
    "group": [
        groups(samples(A)),
        groups(STREAM_A),
        groups(STREAM_A, drop_last=True),
        groups(FilterSpec(of=samples(BAD), predicate=not_third)),
        groups(packs(samples(A), limits={"tokens": 5}, over_long="split")),
        groups(packs(STREAM_A)),
        groups(cut_packs(STREAM_A)),
        groups(selected(EncodeSpec(of=STREAM_A, encode=parts), encode=not_fifth)),
    ],
    "share": [
        shares(samples(A), ((0, 7),), 2),
        shares(FilterSpec(of=samples(BAD), predicate=not_third), ((0, 3), (2, 9)), 4),
        shares(packs(samples(A)), ((0, 7),), 2, 1),
        shares(packs(samples(A), limits={"tokens": 5}, over_long="split"), ((0, 9),), 2),
    ],
    "batch": [
        batches(samples(A)),
        batches(STREAM_A, 4),
        batches(STREAM_A, 4, drop_last=True),
        finite(ConcatSpec((A, B)), 4),
        batches(FilterSpec(of=samples(BAD), predicate=not_third)),
    ],
    "staged": [
        staged(batches(samples(A)), batches(samples(B), 2), batches(samples(A), 4)),
        staged(batches(packs(samples(A))), batches(samples(BlendSpec((Part(A), Part(B)))))),
        LimitSpec(
            of=staged(
                batches(samples(BlendSpec((Part(A), Part(B))))),
                batches(FilterSpec(of=samples(BAD), predicate=not_third)),
                batches(samples(ConcatSpec((B, A))), 1),
                steps=(3, 4),
            ),
            length=17,
        ),
    ],
}
