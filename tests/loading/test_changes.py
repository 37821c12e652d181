"""Going on with an edited mixture: leaves that stayed go on, nothing repeats before its epoch."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import batches, groups, leaf, samples

from energy_data.core.context import Context
from energy_data.errors import StateMismatchError
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading.runs import in_order, loader_of, loaders_of, run

SIZES = {"a": 600, "b": 300, "c": 450, "d": 200}
LEAVES = {name: leaf(name, size) for name, size in SIZES.items()}


def blend(**weights):
    return batches(samples(BlendSpec(tuple(Part(LEAVES[n], w) for n, w in weights.items()))), 5)


def keys(given):
    return [key for batch in given.values() for key in batch]


def repeats_early(given, name, lanes=12):
    """Whether a lane drew a sample twice, or another lane's, before its share of an epoch ended."""
    drawn = {}
    for g, batch in given.items():
        drawn.setdefault(g % lanes, []).extend(key for key in batch if key.startswith(f"{name}/"))
    first_epoch = [key for keys_of in drawn.values() for key in keys_of[: SIZES[name] // lanes]]
    return len(set(first_epoch)) < len(first_epoch)


def edited(before, after, *, rounds=30, ranks=(2, 3)):
    """Run `before` on some ranks, then hand its state to loaders of `after` on others."""
    loaders = loaders_of(before, ranks[0], lanes=12)
    drawn = run(loaders, rounds)
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    others = loaders_of(after, ranks[1], lanes=12)
    for loader in others:
        loader.restore_state_global(states, on_mismatch="keep_matching")
    return drawn, others


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (blend(a=5, b=2), blend(a=5, b=2, c=3)),
        (blend(a=5, b=2, c=3), blend(a=5, b=2)),
        (blend(a=5, b=2), blend(a=1, b=2)),
        (blend(a=5, b=2), blend(b=2, a=5)),
        (blend(a=5, b=2, c=3), blend(d=1, c=2, a=1)),
        (
            blend(a=5, b=2),
            batches(
                samples(BlendEpochizedSpec((Repeated(LEAVES["a"]), Repeated(LEAVES["b"], 2)))), 5
            ),
        ),
        (batches(samples(ConcatSpec((LEAVES["a"], LEAVES["b"]))), 5), blend(a=1, b=1)),
    ],
)
def test_nothing_repeats_before_its_epoch_ends(before, after):
    drawn, others = edited(before, after)
    drawn |= run(others, 80)
    assert not any(repeats_early(drawn, name) for name in SIZES)


def test_a_leaf_that_stayed_goes_on_exactly_where_it_was():
    alone = keys(run([loader_of(blend(a=1), lanes=1)], 100))
    one_lane = loader_of(blend(a=5, b=2), lanes=1)
    before = keys(run([one_lane], 20))
    after = loader_of(blend(a=1, c=4), lanes=1)
    after.load_state_dict(one_lane.state_dict(), on_mismatch="keep_matching")
    whole = [key for key in before + keys(run([after], 60)) if key.startswith("a/")]
    assert whole == alone[: len(whole)]


@pytest.mark.parametrize("taken", range(1, 6))
def test_samples_of_a_removed_leaf_that_are_in_no_group_yet_are_lost_alone(taken):
    both, one = (
        groups(samples(BlendSpec(tuple(Part(LEAVES[name]) for name in names))), batch_size=5)
        for names in ("ab", "a")
    )
    loader, after = (loader_of(spec, lanes=1) for spec in (both, one))
    given = keys(run([loader], taken))
    after.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    given = [key for key in given + keys(run([after], 170)) if key.startswith("a/")]
    assert len(set(given[:590])) == 590
    assert len(set(given[:610])) == SIZES["a"]


def test_a_new_leaf_starts_at_its_beginning():
    one = loader_of(blend(a=1), lanes=1)
    run([one], 10)
    after = loader_of(blend(a=1, c=1), lanes=1)
    after.load_state_dict(one.state_dict(), on_mismatch="keep_matching")
    new = [key for key in keys(run([after], 20)) if key.startswith("c/")]
    fresh = keys(run([loader_of(blend(c=1), lanes=1)], 20))
    assert new == fresh[: len(new)]


def test_edited_twice_it_still_goes_on_and_saves_small():
    loader = loader_of(blend(a=5, b=2), lanes=12)
    drawn = run([loader], 60)
    for after in (blend(a=1, b=4), blend(a=2, b=1, c=1)):
        other = loader_of(after, lanes=12)
        other.load_state_dict(
            json.loads(json.dumps(loader.state_dict())), on_mismatch="keep_matching"
        )
        drawn |= run([other], 90)
        loader = other
    again = loader_of(after, lanes=12)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert keys(run([again], 5)) == keys(run([loader], 5))
    assert not any(repeats_early(drawn, name) for name in SIZES)


def test_other_samples_under_the_same_id_start_anew():
    before = batches(samples(leaf("x", 100)), 5)
    after = batches(samples(leaf("x", 90)), 5)
    loader = loader_of(before, lanes=1)
    run([loader], 5)
    other = loader_of(after, lanes=1)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    assert run([other], 3).popitem()[1] == run([loader_of(after, lanes=1)], 3).popitem()[1]


SHUFFLES = {
    "none": Shuffle(),
    "buffer": Shuffle(buffer_size=10),
    "larger buffer": Shuffle(buffer_size=40),
    "sequences": Shuffle(buffer_size=10, sequence_length=5),
    "files": Shuffle(sequence_length=20),
}


def shuffled(how, order, deal=0):
    return batches(
        ReadSpec(of=ReferencesSpec(of=order, shuffle=SHUFFLES[how], deal=deal, batch=5)), 5
    )


@pytest.mark.parametrize("after", SHUFFLES)
@pytest.mark.parametrize("before", SHUFFLES)
def test_a_leaf_that_is_shuffled_differently_starts_again_and_is_reported_so(before, after, caplog):
    loader = loader_of(shuffled(before, LEAVES["a"]), lanes=3)
    whole = in_order([loader], 40)[18:]
    loader = loader_of(shuffled(before, LEAVES["a"]), lanes=3)
    run([loader], 18)
    other = loader_of(shuffled(after, LEAVES["a"]), lanes=3)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    if before != after:
        whole = in_order([loader_of(shuffled(after, LEAVES["a"]), lanes=3)], 22)
        assert "because their samples or their shuffling changed: 1 (a)" in caplog.text
    assert in_order([other], 22) == whole


def test_a_leaf_that_another_pipeline_reads_too_has_another_order_and_starts_again():
    alone, both = samples(LEAVES["a"]), (samples(LEAVES["a"]), samples(LEAVES["b"]))
    many = BlendSpec(
        (Part(alone), Part(samples(BlendSpec((Part(LEAVES["a"]), Part(LEAVES["c"]))))))
    )
    few = BlendSpec(tuple(map(Part, both)))
    loader = loader_of(batches(few, 5), lanes=3)
    run([loader], 12)
    other = loader_of(batches(many, 5), lanes=3)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    assert in_order([other], 9) == in_order([loader_of(batches(many, 5), lanes=3)], 9)


@pytest.mark.parametrize("deals", [(0, 5), (5, 0)])
def test_an_endless_stream_does_not_become_a_finite_one_nor_the_other_way(deals):
    loader, other = (loader_of(shuffled("none", LEAVES["a"], deal)) for deal in deals)
    run([loader], 2)
    with pytest.raises(StateMismatchError, match="finite stream cannot continue after an edit"):
        other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")


@pytest.mark.parametrize(("before", "after"), [(199, 201), (201, 199), (201, 250)])
def test_an_edit_across_the_number_of_leaves_that_have_sizes_continues_them(before, after):
    parts = [Part(leaf(f"leaf-{n}", 40)) for n in range(max(before, after))]
    specs = [batches(samples(BlendSpec(tuple(parts[:count]))), 8) for count in (before, after)]
    loader = loader_of(specs[0], lanes=2)
    drawn = keys(run([loader], 400))
    with pytest.raises(StateMismatchError, match=f"leaf 'leaf-{min(before, after)}' is"):
        loader_of(specs[1], lanes=2).load_state_dict(loader.state_dict())
    other = loader_of(specs[1], lanes=2)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    drawn += [key for key in keys(run([other], 100)) if int(key.split("/")[0][5:]) < before]
    assert len(drawn) == len(set(drawn))


@st.composite
def mixtures(draw):
    """Some leaves with weights, one of them with one of two sizes, and how they are shuffled."""
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    sizes = [draw(st.sampled_from([31, 50])) if name == "d" else SIZES[name] // 5 for name in names]
    parts = [Part(leaf(*pair), draw(st.integers(1, 5))) for pair in zip(names, sizes, strict=True)]
    return parts, draw(st.sampled_from(sorted(SHUFFLES)))


def check_edits(mixtures, lanes, rounds):
    """Run one mixture after another; each leaf continues, in each lane, exactly where it was."""
    # Name -> the order of the leaf, its draws in each lane, and its grains when it started.
    places, loader = {}, None
    for parts, how in mixtures:
        spec = shuffled(how, BlendSpec(tuple(parts)))
        other = loader_of(spec, lanes=lanes)
        if loader is not None:
            state = json.loads(json.dumps(loader.state_dict()))
            other.load_state_dict(state, on_mismatch="keep_matching")
        loader = other
        for part in parts:
            order = len(part.of.leaf.source), how
            if places.get(name := part.of.leaf.id, (None,))[0] != order:
                places[name] = order, [0] * lanes, {name: spec.of.of.grains[name]}
        given = {}
        for number, batch in run([loader], rounds).items():
            for key in batch:
                given.setdefault((number % lanes, key.split("/")[0]), []).append(key)
        for part in parts:
            name, of_leaf = part.of.leaf.id, shuffled(how, part.of).of
            for lane in range(lanes):
                own, (_, drawn, grains) = given.get((lane, name), []), places[name]
                node = of_leaf.build(Context(lane=lane, lanes=lanes, grains=grains))
                alone = [s["__key__"] for s in node.take(drawn[lane] + len(own) + 1)]
                assert own == alone[drawn[lane] : drawn[lane] + len(own)]
                drawn[lane] += len(own)


@pytest.mark.parametrize(
    "examples", [10, pytest.param(400, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_after_random_edits_each_leaf_continues_where_it_was_or_starts_again(examples):
    @settings(max_examples=examples, deadline=None)
    @given(st.lists(mixtures(), min_size=2, max_size=5), st.integers(1, 4), st.integers(0, 30))
    def check(mixtures, lanes, rounds):
        check_edits(mixtures, lanes, rounds)

    check()


def test_restart_begins_anew():
    loader = loader_of(blend(a=5, b=2))
    run([loader], 7)
    other = loader_of(blend(a=1, b=2))
    other.load_state_dict(loader.state_dict(), on_mismatch="restart")
    assert run([other], 5) == run([loader_of(blend(a=1, b=2))], 5)


def test_the_ledger_of_an_edited_mixture_costs_two_bytes_a_leaf_and_lane():
    parts = [Part(leaf(f"leaf-{n}", 10_000 + n), 1 + n % 7) for n in range(1000)]
    loader = loader_of(batches(samples(BlendSpec(tuple(parts))), 64), lanes=64)
    run([loader], 200)
    small = len(json.dumps(loader.state_dict()))
    other = loader_of(batches(samples(BlendSpec(tuple(parts[:-1]))), 64), lanes=64)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    assert len(json.dumps(other.state_dict())) - small <= 2 * 64 * 1000 + 8 * 1000
