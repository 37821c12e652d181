"""Trees for tests: one small tree per kind, and random ones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from attrs import evolve
from hypothesis import strategies as st
from joined import join_leaf

from energy_data.errors import SkipSample
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.blend_by_cost import BlendByCostSpec, Costed
from energy_data.nodes.blend_epochized import BlendEpochizedSpec, Repeated
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.epochize import EpochizeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.flat_map import FlatMapSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.leaf import LeafSpec
from energy_data.nodes.limit import LimitSpec
from energy_data.nodes.map import MapSpec
from energy_data.nodes.mix import Mixed, MixSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.pack_selected import PackSelectedSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.repeat import RepeatSpec
from energy_data.nodes.share import ShareSpec
from energy_data.nodes.staged import StagedSpec
from energy_data.order.schedule import Clock, Schedule
from energy_data.packing import Packing, Quota
from energy_data.references import Leaf, OrderSpec, ReferencesSpec, Shuffle
from energy_data.spec import Spec
from energy_data.stage import Stage
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
    return {"tokens": number * number % 11 + 1, "images": number % 3}


def joined(samples: list) -> dict:
    """One sample of several, as packs are."""
    numbers = [sample["number"] for sample in samples]
    return {"__key__": tuple(sample["__key__"] for sample in samples), "number": sum(numbers)}


def cut(sample: dict, start: int, stop: int) -> dict:
    tokens = min(stop, lengths(sample)["tokens"]) - start
    number = next(n for n in range(22) if lengths({"number": n})["tokens"] == tokens)
    return {"__key__": f"{sample['__key__']}[{start}:{stop}]", "number": number}


def packing(**facts) -> Packing:
    facts = {"limits": {"tokens": 12}, **facts}
    return Packing(lengths=lengths, pack=joined, cut=cut, **facts)


def packs(of: Spec, buffer_size: int = 6, **facts) -> PackSpec:
    return PackSpec(of=of, packing=packing(**facts), buffer_size=buffer_size)


def pairs(samples: list) -> list:
    """Samples two by two, the odd ones first; one of a full buffer is left out."""
    ordered = sorted(samples, key=lambda sample: sample["number"] % 2 == 0)[:5]
    return [ordered[n : n + 2] for n in range(0, len(ordered), 2)]


def selected(of: Spec, buffer_size: int = 6, **facts) -> PackSelectedSpec:
    return PackSelectedSpec(of=of, select=pairs, pack=joined, buffer_size=buffer_size, **facts)


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
JOINED = join_leaf()
MIXING = LeafSpec(evolve(leaf("m", 6).leaf, epochs=3))
IN_ORDER = LeafSpec(evolve(leaf("o", 6).leaf, epochs=None))

KINDS: dict[str, list[Spec]] = {
    "leaf": [A, samples(A), samples(JOINED), samples(MIXING), samples(IN_ORDER)],
    "references": [references(A), references(BlendSpec((Part(A, 2), Part(B))), deal=2)],
    "blend": [
        samples(BlendSpec((Part(A, 5), Part(B, 2), Part(C, 0), Part(A, 1)))),
        samples(BlendSpec((Part(A, 5), Part(B, 2))), 3),
        samples(BlendSpec((Part(A, UP), Part(B, LATER), Part(C, 0), Part(A, 0.7)))),
        samples(BlendSpec((Part(BlendSpec((Part(A, DOWN), Part(B))), LATER), Part(C, UP)))),
        BlendSpec((Part(STREAM_A, 0.3), Part(STREAM_B, 0.7), Part(samples(C), 0))),
    ],
    "mix": [
        samples(MixSpec((Mixed(A, 3), Mixed(B, 2), Mixed(C, 0), Mixed(A, 0.5)))),
        samples(MixSpec((Mixed(A, 3), Mixed(BlendSpec((Part(B), Part(C, UP))))), "batches")),
        MixSpec((Mixed(samples(A), 0.7), Mixed(samples(BAD), 1.3)), batch_size=3),
        MixSpec((Mixed(STREAM_A), Mixed(samples(C), 0), Mixed(samples(B), 2)), "batches", 2),
    ],
    "blend_by_cost": [
        BlendByCostSpec((Costed(samples(A), 2), Costed(samples(BAD))), cost=number_cost),
        BlendByCostSpec((Costed(STREAM_A), Costed(samples(B, 2), 0.3)), cost=number_cost),
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
    "map": [MapSpec(of=samples(A), function=renamed), MapSpec(of=samples(A), function=not_fifth)],
    "flat_map": [
        FlatMapSpec(of=samples(A), function=by_number),
        FlatMapSpec(of=FlatMapSpec(of=finite(A), function=twice), function=twice),
        RepeatSpec(of=FlatMapSpec(of=LimitSpec(of=batches(STREAM_A), length=2), function=twice)),
    ],
    "filter": [FilterSpec(of=samples(A), predicate=not_third)],
    "encode": [
        EncodeSpec(of=samples(A)),
        EncodeSpec(of=samples(A), encode=not_fifth),
        EncodeSpec(of=samples(A), encode=parts),
        EncodeSpec(of=STREAM_A, encode=parts),
        EncodeSpec(of=FilterSpec(of=STREAM_A, predicate=not_third), encode=parts),
    ],
    "pack": [
        packs(samples(A)),
        packs(STREAM_A, 4),
        packs(samples(BAD), algorithm="first_fit"),
        packs(EncodeSpec(of=samples(A), encode=not_fifth), limits={"tokens": 12, "images": 3}),
        packs(samples(A), limits={"tokens": 5}, over_long="split", algorithm="first_fit"),
        packs(STREAM_A, limits={"tokens": 5}, over_long="split", fragments="each"),
        packs(samples(A), limits={"tokens": 5}, over_long="truncate"),
        packs(samples(A), limits={"tokens": 5}, over_long="skip", quota=Quota(docs=4)),
        packs(samples(A), limits={"tokens": 26}, quota=Quota(docs=5, items=3)),
        packs(EncodeSpec(of=STREAM_A, encode=parts)),
        packs(BlendSpec((Part(samples(A), 2), Part(EncodeSpec(of=samples(B), encode=parts))))),
        packs(ConcatSpec((STREAM_A, MapSpec(of=STREAM_B, function=renamed)))),
        packs(RepeatSpec(of=LimitSpec(of=EpochizeSpec(of=samples(A), length=30), length=7))),
    ],
    "pack_selected": [
        selected(samples(A)),
        selected(STREAM_A),
        selected(EncodeSpec(of=samples(A), encode=parts), encode=not_fifth),
    ],
    "group": [
        groups(samples(A)),
        groups(STREAM_A),
        groups(STREAM_A, drop_last=True),
        groups(FilterSpec(of=samples(BAD), predicate=not_third)),
        groups(packs(samples(A), limits={"tokens": 5}, over_long="split")),
        groups(packs(STREAM_A)),
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


def leaves() -> st.SearchStrategy[LeafSpec]:
    sizes = {"a": 10, "b": 4, "c": 1, "d": 23, "e": 7}
    plain = [leaf(name, size) for name, size in sizes.items()]
    return st.sampled_from([*plain, JOINED, IN_ORDER])


def changing(below: st.SearchStrategy[OrderSpec]) -> st.SearchStrategy[OrderSpec]:
    """Random blends whose weights change."""
    weights = st.sampled_from([0.3, 2, UP, LATER, Schedule("step", ((0, 2), (1, 0), (2, 1)))])
    parts = st.lists(st.builds(Part, below, weights), min_size=1, max_size=3)
    return st.builds(
        lambda part, parts: BlendSpec((part, *parts)), st.builds(Part, below, st.just(UP)), parts
    )


def follows(depth: int = 2) -> st.SearchStrategy[OrderSpec]:
    """Random order trees whose weights follow the run."""
    if not depth:
        return leaves()
    inner = st.one_of(changing(leaves()), orders(depth - 1))
    return st.one_of(
        changing(inner), st.builds(EpochizeSpec, of=changing(inner), length=st.just(7))
    )


def mixes(depth: int = 2) -> st.SearchStrategy[OrderSpec]:
    """Random mixes of order trees."""
    weights = st.sampled_from([0.1, 1, 2, 7])
    below = st.one_of(leaves(), orders(depth - 1), follows(depth - 1)) if depth else leaves()
    parts = st.lists(st.builds(Mixed, below, weights), min_size=1, max_size=4).map(tuple)
    return st.builds(MixSpec, parts, st.sampled_from(["samples", "batches"]))


def orders(depth: int = 2) -> st.SearchStrategy[OrderSpec]:
    if not depth:
        return leaves()
    below = orders(depth - 1)
    weights = st.sampled_from([0.1, 0.5, 1, 2, 5, 7.3])
    times = st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(2)])
    return st.one_of(
        leaves(),
        st.lists(st.builds(Part, below, weights), min_size=1, max_size=4).map(tuple).map(BlendSpec),
        st.lists(st.builds(Repeated, below, times), min_size=1, max_size=4)
        .filter(lambda parts: sum(part.of.size * part.repetitions for part in parts) >= 1)
        .map(tuple)
        .map(BlendEpochizedSpec),
        st.lists(below, min_size=1, max_size=3).map(tuple).map(ConcatSpec),
        st.builds(EpochizeSpec, of=below, length=st.integers(1, 30)),
        st.builds(RepeatSpec, of=below, times=st.integers(1, 3)),
    )


def shuffles() -> st.SearchStrategy[Shuffle]:
    return st.builds(
        Shuffle,
        buffer_size=st.sampled_from([0, 3, 8]),
        sequence_length=st.sampled_from([0, 1, 4]),
        parallel_sequences=st.sampled_from([1, 3]),
    )


def endless(depth: int = 2) -> st.SearchStrategy[Spec]:
    """Random endless trees of samples."""
    read = st.builds(ReadSpec, of=st.builds(ReferencesSpec, of=orders(depth), shuffle=shuffles()))
    # A lane that gets one and the same sample for ever must not be one that leaves it out.
    mixed = st.builds(
        ReadSpec, of=st.one_of(orders(depth), follows(depth), mixes(depth)).map(references)
    )
    return st.one_of(
        read,
        mixed,
        st.builds(MapSpec, of=read, function=st.just(renamed)),
        st.builds(MapSpec, of=mixed, function=st.just(not_fifth)),
        st.builds(EncodeSpec, of=mixed, encode=st.sampled_from([None, not_fifth])),
        st.lists(st.builds(Part, read, st.sampled_from([0.2, 1, 3])), min_size=1, max_size=3)
        .map(tuple)
        .map(BlendSpec),
        st.lists(st.builds(Costed, read, st.sampled_from([0.2, 1, 3])), min_size=1, max_size=3).map(
            lambda parts: BlendByCostSpec(tuple(parts), cost=number_cost)
        ),
        st.builds(EncodeSpec, of=mixed, encode=st.just(parts)),
        packed(st.one_of(mixed, st.builds(EncodeSpec, of=mixed, encode=st.just(parts)))),
    )


def packed(of: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    """Random packs over random trees of samples."""
    split = {"limits": {"tokens": 5}, "over_long": "split"}
    facts = st.sampled_from(
        [
            {},
            {"limits": {"tokens": 20, "images": 4}},
            {"algorithm": "first_fit"},
            split,
            {**split, "fragments": "each", "algorithm": "first_fit"},
            {"limits": {"tokens": 7}, "over_long": "truncate"},
            {"quota": Quota(docs=5)},
            {"limits": {"tokens": 40}, "quota": Quota(docs=7, items=2)},
        ]
    )
    sizes = st.integers(1, 9)
    skipping = st.sampled_from([None, not_fifth])
    return st.one_of(
        st.builds(lambda of, size, facts: packs(of, size, **facts), of, sizes, facts),
        st.builds(lambda of, size, encode: selected(of, size, encode=encode), of, sizes, skipping),
    )


def dealt(batch_size: int, depth: int = 2) -> st.SearchStrategy[Spec]:
    """Random finite trees of batches, as validation has them."""
    return st.builds(
        lambda order, shuffle, drop_last: BatchSpec(
            of=ReadSpec(
                of=ReferencesSpec(of=order, shuffle=shuffle, deal=batch_size, drop_last=drop_last)
            ),
            batch_size=batch_size,
            collate=numbers,
            aligned=True,
        ),
        orders(depth),
        shuffles(),
        st.booleans(),
    )


@st.composite
def stages(draw: st.DrawFn) -> Spec:
    """Random stages over leaves that are in several of them; the last may begin them anew."""
    body = st.builds(batches, orders(1).map(samples), st.integers(1, 5))
    bodies = draw(st.lists(body, min_size=1, max_size=4))
    lengths = draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    spec = staged(*bodies, steps=lengths, every=24)  # which all numbers of ranks here can share
    if draw(st.booleans()):
        return spec
    return evolve(spec, stages=(*spec.stages[:-1], evolve(spec.stages[-1], on_enter="restart")))


@st.composite
def random_trees(draw: st.DrawFn) -> Spec:
    """Random trees of batches, endless and finite."""
    filled = st.builds(batches, endless(), st.integers(1, 5))
    finite_samples = st.builds(
        ReadSpec, of=st.builds(ReferencesSpec, of=orders(), shuffle=shuffles(), deal=st.just(2))
    )
    trees: st.SearchStrategy[Spec] = st.one_of(
        filled,
        stages(),
        st.builds(groups, endless(), st.integers(1, 4)),
        st.builds(batches, packed(finite_samples), st.integers(1, 3)),
        st.builds(groups, packed(finite_samples), st.integers(1, 3), drop_last=st.booleans()),
        st.integers(1, 5).flatmap(dealt),
        st.builds(FlatMapSpec, of=st.integers(1, 5).flatmap(dealt), function=st.just(twice)),
        st.builds(FlatMapSpec, of=filled, function=st.just(twice)),
        st.builds(LimitSpec, of=filled, length=st.integers(0, 40)),
        st.builds(RepeatSpec, of=st.integers(1, 5).flatmap(dealt), times=st.integers(1, 3)),
        st.lists(st.builds(Part, filled, st.sampled_from([1, 2, 0.5])), min_size=1, max_size=3)
        .map(tuple)
        .map(BlendSpec),
    )
    return draw(trees)
