"""Random trees for tests. Strategies are made once: it takes as long as most tests of a tree."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from attrs import evolve
from cooked import cooked, with_dice, with_parts
from hypothesis import strategies as st
from trees import (
    IN_ORDER,
    JOINED,
    LATER,
    UP,
    batches,
    cut_packs,
    groups,
    leaf,
    not_fifth,
    numbers,
    packs,
    parts,
    references,
    renamed,
    samples,
    selected,
    staged,
    twice,
)

from energy_data.core.spec import Spec
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Mixed, MixSpec, Part, Repeated
from energy_data.nodes.encode import EncodeSpec, FlatMapSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, LimitSpec, RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, OrderSpec, ReferencesSpec
from energy_data.order.schedule import Schedule


@cache
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


@cache
def follows(depth: int = 2) -> st.SearchStrategy[OrderSpec]:
    """Random order trees whose weights follow the run."""
    if not depth:
        return leaves()
    inner = st.one_of(changing(leaves()), orders(depth - 1))
    return st.one_of(
        changing(inner), st.builds(EpochizeSpec, of=changing(inner), length=st.just(7))
    )


@cache
def mixes(depth: int = 2) -> st.SearchStrategy[OrderSpec]:
    """Random mixes of order trees."""
    weights = st.sampled_from([0.1, 1, 2, 7])
    below = st.one_of(leaves(), orders(depth - 1), follows(depth - 1)) if depth else leaves()
    parts = st.lists(st.builds(Mixed, below, weights), min_size=1, max_size=4).map(tuple)
    return st.builds(MixSpec, parts, st.sampled_from(["samples", "batches"]))


@cache
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


@cache
def shuffles() -> st.SearchStrategy[Shuffle]:
    return st.builds(
        Shuffle,
        buffer_size=st.sampled_from([0, 3, 8]),
        sequence_length=st.sampled_from([0, 1, 4]),
        parallel_sequences=st.sampled_from([1, 3]),
    )


@cache
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
        st.builds(EncodeSpec, of=read, encode=st.just(renamed)),
        st.builds(EncodeSpec, of=mixed, encode=st.just(not_fifth)),
        st.builds(EncodeSpec, of=mixed, encode=st.just(not_fifth)),
        st.lists(st.builds(Part, read, st.sampled_from([0.2, 1, 3])), min_size=1, max_size=3)
        .map(tuple)
        .map(BlendSpec),
        st.builds(EncodeSpec, of=mixed, encode=st.just(parts)),
        packed(st.one_of(mixed, st.builds(EncodeSpec, of=mixed, encode=st.just(parts)))),
        crude(depth),
        packed(crude(depth)),
    )


@cache
def crude(depth: int = 2) -> st.SearchStrategy[Spec]:
    """Random trees of samples that are cooked, and then encoded to one or several."""
    orderings = st.one_of(orders(depth), mixes(depth)).map(references)
    return st.builds(
        EncodeSpec,
        of=st.builds(ReadSpec, of=orderings).map(cooked),
        encode=st.sampled_from([with_dice, with_parts]),
    )


def packed(of: st.SearchStrategy[Spec]) -> st.SearchStrategy[Spec]:
    """Random packs over random trees of samples."""
    split = {"limits": {"tokens": 5}, "over_long": "split"}
    facts = st.sampled_from(
        [
            {},
            {"limits": {"tokens": 20, "images": 4}},
            split,
            {**split, "fragments": "each"},
            {"limits": {"tokens": 7}, "over_long": "truncate"},
        ]
    )
    sizes = st.integers(1, 9)
    skipping = st.sampled_from([None, not_fifth])
    return st.one_of(
        st.builds(lambda of, size, facts: packs(of, size, **facts), of, sizes, facts),
        st.builds(lambda of, size, encode: selected(of, size, encode=encode), of, sizes, skipping),
        st.builds(lambda of, size, encode: cut_packs(of, size, encode=encode), of, sizes, skipping),
    )


@cache
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


@cache
def some_bodies() -> st.SearchStrategy[list[Spec]]:
    body = st.builds(batches, orders(1).map(samples), st.integers(1, 5))
    return st.lists(body, min_size=1, max_size=4)


@st.composite
def stages(draw: st.DrawFn) -> Spec:
    """Random stages over leaves that are in several of them; the last may begin them anew."""
    bodies = draw(some_bodies())
    lengths = draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    spec = staged(*bodies, steps=lengths, every=24)  # which all numbers of ranks here can share
    if draw(st.booleans()):
        return spec
    return evolve(spec, stages=(*spec.stages[:-1], evolve(spec.stages[-1], on_enter="restart")))


@cache
def random_trees() -> st.SearchStrategy[Spec]:
    """Random trees of batches, endless and finite."""
    filled = st.builds(batches, endless(), st.integers(1, 5))
    finite_samples = st.builds(
        ReadSpec, of=st.builds(ReferencesSpec, of=orders(), shuffle=shuffles(), deal=st.just(2))
    )
    return st.one_of(
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
