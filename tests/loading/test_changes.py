"""Going on with an edited mixture: leaves that stayed go on, nothing repeats before its epoch."""

from __future__ import annotations

import json

import pytest
from trees import batches, finite, leaf, samples

from energy_data.errors import StateMismatchError
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.passes import ConcatSpec
from loading.runs import loader_of, loaders_of, run

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


def test_restart_begins_anew():
    loader = loader_of(blend(a=5, b=2))
    run([loader], 7)
    other = loader_of(blend(a=1, b=2))
    other.load_state_dict(loader.state_dict(), on_mismatch="restart")
    assert run([other], 5) == run([loader_of(blend(a=1, b=2))], 5)


def test_a_finite_stream_does_not_go_on_after_an_edit():
    loader = loader_of(finite(leaf("x", 30), 4))
    run([loader], 2)
    with pytest.raises(StateMismatchError, match="finite stream"):
        loader_of(finite(leaf("y", 30), 4)).load_state_dict(
            loader.state_dict(), on_mismatch="keep_matching"
        )


def test_the_ledger_of_an_edited_mixture_costs_two_bytes_a_leaf_and_lane():
    parts = [Part(leaf(f"leaf-{n}", 10_000 + n), 1 + n % 7) for n in range(1000)]
    loader = loader_of(batches(samples(BlendSpec(tuple(parts))), 64), lanes=64)
    run([loader], 200)
    small = len(json.dumps(loader.state_dict()))
    other = loader_of(batches(samples(BlendSpec(tuple(parts[:-1]))), 64), lanes=64)
    other.load_state_dict(loader.state_dict(), on_mismatch="keep_matching")
    assert len(json.dumps(other.state_dict())) - small <= 2 * 64 * 1000 + 8 * 1000
