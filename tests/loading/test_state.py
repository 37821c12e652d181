"""States: small, plain, checked; and what happens when they do not fit."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import random_trees
from trees import CLOCK, KINDS, UP, A, B, batches, finite, leaf, packs, renamed, samples

from energy_data import merge_states
from energy_data.core.context import Context
from energy_data.core.cursor import save
from energy_data.errors import (
    StateError,
    StateIncompleteError,
    StateMismatchError,
    StateMissingError,
)
from energy_data.loading.checkpoint.diff import differences
from energy_data.loading.checkpoint.saved_run import SavedTree, order_trees
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading.runs import in_order, loader_of, loaders_of, run

BLEND = batches(samples(BlendSpec((Part(A, 5), Part(B, 2)))))


def test_a_state_of_1000_leaves_and_64_lanes_is_small_and_quick_to_take():
    rng = np.random.default_rng(0)
    parts = [
        Part(
            leaf(
                f"../data/cc-20{n % 24:02d}-{n % 52:02d}/part-{n:04d}:train",
                int(rng.integers(1e3, 1e7)),
            ),
            w,
        )
        for n, w in enumerate(rng.random(1000))
    ]
    loader = loader_of(batches(samples(BlendSpec(tuple(parts))), 8), lanes=64)
    run([loader], rounds=70)
    times = []
    for _ in range(10):
        before = time.process_time()
        state = loader.state_dict()
        times.append(time.process_time() - before)
    assert len(json.dumps(state)) <= 16 * 1024
    assert min(times) < 0.005


@settings(max_examples=20, deadline=None)
@given(spec=random_trees(), rounds=st.integers(0, 12))
def test_a_loaded_state_saved_again_is_the_same_and_taking_it_changes_nothing(spec, rounds):
    loader, other = loader_of(spec, lanes=4), loader_of(spec, lanes=4)
    run([loader], rounds)
    state = loader.state_dict()
    assert loader.state_dict() == state
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state


def test_a_state_goes_through_torch_save_without_pickle():
    loader = loader_of(BLEND)
    run([loader], 5)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == loader.state_dict()


def test_loading_in_the_middle_of_an_iteration_goes_to_the_saved_place():
    loader = loader_of(BLEND)
    expected = in_order([loader_of(BLEND)], rounds=10)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(3)]
    state = iterator.state_dict()
    assert first + [next(iterator) for _ in range(4)] == expected[:7]
    iterator.load_state_dict(state)
    assert [next(iterator) for _ in range(4)] == expected[3:7]
    loader.load_state_dict(state)
    assert next(iterator) == expected[3]


def test_a_finite_stream_saved_at_its_end_ends_at_once_and_then_begins_the_next_pass():
    spec = finite(leaf("x", 10), 4)
    loader, other = loader_of(spec), loader_of(spec)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    other.load_state_dict(loader.state_dict())
    assert in_order([other]) == []
    assert list(iterator) == []
    assert in_order([other]) == in_order([loader]) != []


@pytest.mark.parametrize(
    ("order", "facts"),
    [
        (leaf("x", 10), {}),
        (EpochizeSpec(of=leaf("x", 5), length=3), {}),
        (leaf("x", 10), {"virtual_epoch_length": 3}),
    ],
)
def test_a_validation_stream_saved_after_a_pass_starts_again_at_its_first_batch(order, facts):
    loader, other = (loader_of(finite(order, 2), from_start=True, **facts) for _ in range(2))
    expected, start = in_order([loader]), other.state_dict()
    assert loader.state_dict() == start
    other.load_state_dict(loader.state_dict())
    assert in_order([other]) == in_order([loader]) == expected


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_virtual_epochs_of_a_pass_of_packs_can_be_saved_after_lanes_have_ended(length, ranks):
    spec = batches(packs(samples(leaf("x", 30), deal=4)), 2)
    facts = {"lanes": 8, "virtual_epoch_length": length}
    loaders, others = (loaders_of(spec, ranks, **facts) for _ in range(2))
    for _ in range(20):
        for loader, other in zip(loaders, others, strict=True):
            other.load_state_dict(loader.state_dict())
        assert in_order(loaders) == in_order(others)


@pytest.mark.parametrize("even_batches", [None, "short"])
@pytest.mark.parametrize(("before", "later"), [(1, 2), (2, 4), (3, 2), (4, 8), (2, 8)])
def test_restored_inside_a_virtual_epoch_ranks_still_end_each_together(even_batches, before, later):
    facts = {"virtual_epoch_length": 5, "even_batches": even_batches}
    spec = finite(leaf("x", 300), 1) if even_batches else BLEND
    saved, others = loaders_of(spec, before, **facts), loaders_of(spec, later, **facts)
    given = run(saved, 3)
    for loader in others:
        loader.restore_state_global([loader.state_dict() for loader in saved])
    for epoch in range(3):
        drawn = [list(loader) for loader in others]
        assert len({len(of_rank) for of_rank in drawn}) == 1
        assert epoch == 0 or len(drawn[0]) == 5
    assert others[0].run_state().epoch_start == 15 * later
    assert list(given) == list(range(3 * before))


def test_a_pass_ends_as_soon_if_it_is_restored_in_each_virtual_epoch():
    facts = {"lanes": 8, "virtual_epoch_length": 1}
    loader = loader_of(finite(leaf("x", 6), 2), **facts)
    state = loader.state_dict()
    epochs = [in_order([loader]) for _ in range(15)]
    again = []
    for _ in range(15):
        restored = loader_of(finite(leaf("x", 6), 2), **facts)
        restored.load_state_dict(state)
        again.append(in_order([restored]))
        state = restored.state_dict()
    assert again == epochs
    assert sum(map(bool, epochs)) > 3  # of two passes at least


def test_a_virtual_epoch_ends_after_its_batches_and_the_next_goes_on():
    whole = in_order([loader_of(BLEND)], rounds=12)
    loader = loader_of(BLEND, virtual_epoch_length=5)
    assert in_order([loader]) == whole[:5]
    iterator = iter(loader)
    assert [next(iterator) for _ in range(2)] == whole[5:7]
    other = loader_of(BLEND, virtual_epoch_length=5)
    other.load_state_dict(loader.state_dict())
    assert in_order([other]) == whole[7:10]
    assert list(iterator) == whole[7:10]


@pytest.mark.parametrize("nothing", [None, {}, []])
def test_no_state_is_an_error_of_its_own(nothing):
    loader = loader_of(BLEND)
    next(iter(loader))
    with pytest.raises(StateMissingError, match="there is none"):
        loader.load_state_dict(nothing)


def test_an_empty_state_before_the_first_batch_is_a_fresh_start():
    loader = loader_of(BLEND)
    loader.load_state_dict({})
    assert in_order([loader], 5) == in_order([loader_of(BLEND)], 5)


@pytest.mark.parametrize(
    "foreign", [{"a": 1}, [3], "text", {"format": "energy_data", "version": 9}]
)
def test_something_else_is_not_a_state(foreign):
    with pytest.raises(StateMismatchError, match="state: it"):
        loader_of(BLEND).load_state_dict(foreign)


def test_part_of_the_ranks_is_an_error_that_names_the_missing():
    saved = [loader.state_dict() for loader in loaders_of(BLEND, 4)]
    with pytest.raises(StateIncompleteError, match="3 of 4 ranks, missing 2"):
        loader_of(BLEND).restore_state_global([saved[0], saved[3], saved[1]])
    with pytest.raises(StateIncompleteError, match="1 of 4 ranks, missing 0, 2, 3"):
        loader_of(BLEND).load_state_dict(saved[1])


def test_ranks_saved_after_different_numbers_of_batches_do_not_fit_together():
    loaders = loaders_of(BLEND, 2)
    run(loaders[:1], 3)
    with pytest.raises(StateMismatchError, match="same number of batches"):
        merge_states([loader.state_dict() for loader in loaders])


@pytest.mark.parametrize(
    ("facts", "message"),
    [({"seed": 7}, "saved with seed 0"), ({"lanes": 12}, "24 lanes, this run has 12")],
)
def test_another_run_is_refused_with_what_to_do(facts, message):
    state = loader_of(BLEND).state_dict()
    with pytest.raises(StateMismatchError, match=message):
        loader_of(BLEND, **facts).load_state_dict(state)


def test_ranks_that_cannot_share_the_lanes_are_told_which_can():
    state = loader_of(BLEND, lanes=24).state_dict()
    with pytest.raises(StateMismatchError, match="Use one of 1, 2, 3, 4, 6, 8, 12, 24 ranks"):
        loader_of(BLEND, 0, 5, lanes=None).load_state_dict(state)


def test_an_edited_tree_is_refused_with_the_differences_and_nothing_moves():
    edited = batches(
        samples(BlendSpec((Part(A, 5), Part(leaf("b", 9), 3), Part(leaf("new", 5))))), 4
    )
    loader = loader_of(edited)
    expected = in_order([loader_of(edited)], 4)
    run([loader], 2)
    with pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(loader_of(BLEND).state_dict())
    message = str(caught.value)
    assert "leaf 'new' is new" in message
    assert "leaf 'b' has other samples: it had 4, and has 9" in message
    assert "  - batch_size was 3, is 4" in message
    assert "keep_matching" in message
    assert in_order([loader], 2) == expected[2:]


OF_TWO = BlendSpec((Part(A, 2), Part(B)))
IN_WORDS = {
    "leaf 'a': weight was 66.67 %, is 75 %": BlendSpec((Part(A, 3), Part(B))),
    "the parts of blend are in another order": BlendSpec((Part(B), Part(A, 2))),
    "leaf 'a': weight was 66.67 %, is linear 0: 1, 3: 5 steps": BlendSpec((Part(A, UP), Part(B))),
    "blend[0] is new": BlendSpec((Part(BlendSpec((Part(A),)), 2), Part(B))),
    "blend became concat": ConcatSpec((A, B)),
    "leaf 'c' is new": BlendSpec((Part(leaf("c", 3), 0), Part(A, 2), Part(B))),
}
SHUFFLED = ReferencesSpec(of=OF_TWO, shuffle=Shuffle(buffer_size=9, sequence_length=3), clock=CLOCK)


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        *(([words], batches(samples(order))) for words, order in IN_WORDS.items()),
        (["batch_size was 3, is 4"], batches(samples(OF_TWO), 4)),
        (["read became encode of read"], batches(EncodeSpec(of=samples(OF_TWO), encode=renamed))),
        (["read became pack of read"], batches(packs(samples(OF_TWO)))),
        (["effective shuffle_buffer_size was 6, is 48"], batches(ReadSpec(of=SHUFFLED))),
    ],
)
def test_an_edit_is_reported_in_words_of_the_yaml_and_of_the_arguments(words, spec):
    with pytest.raises(StateMismatchError) as caught:
        loader_of(spec).load_state_dict(loader_of(batches(samples(OF_TWO))).state_dict())
    found = [line[4:] for line in str(caught.value).splitlines()[1:-1]]
    assert found[: len(words)] == words


@given(st.data())
def test_trees_that_draw_otherwise_differ_in_words_too_and_others_do_not(data):
    first, second = (data.draw(random_trees()) for _ in range(2))
    packed = SavedTree.pack(first), SavedTree.pack(second)
    saved, ours = map(SavedTree.unpack, packed)
    assert bool(differences(saved, ours)) == (packed[0] != packed[1])
    assert not differences(saved, SavedTree.unpack(packed[0]))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_state_is_a_state_error(data):
    loader = loader_of(BLEND, lanes=4)
    run([loader], 3)
    state = loader.state_dict()
    name = data.draw(st.sampled_from(sorted(state)))
    junk = st.one_of(
        st.none(), st.integers(-3, 10**20), st.text(max_size=5), st.just([1, 2]), st.just({})
    )
    state[name] = data.draw(junk)
    with suppress(StateError):
        loader_of(BLEND, lanes=4).load_state_dict(state)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_saved_tree_is_specs_again(kind):
    for spec in (spec for spec in KINDS[kind] if spec.item_kind != "references"):
        saved = SavedTree.pack(spec)
        again = SavedTree.unpack(saved).spec
        assert SavedTree.pack(again) == saved
        places = [save(one.build(Context())) for one in (again, spec)]
        assert places[0].keys() == places[1].keys()
        for path, tree in order_trees(spec).items():
            saved_tree = order_trees(again)[path]
            for lane in range(3):
                context = Context(lane=lane, lanes=3)
                mine, theirs = tree.build(context), saved_tree.build(context)
                drawn = [list(node.take(5)) if not tree.deal else [] for node in (mine, theirs)]
                assert drawn[0] == drawn[1]


def test_a_part_of_the_lanes_is_an_error_that_says_how_many_there_are():
    state = loader_of(BLEND, lanes=24).state_dict()
    state["places"] = {lane: state["places"][lane] for lane in ("0", "1", "2", "3")}
    with pytest.raises(StateIncompleteError, match=r"4 of 24 lanes \(0, 1, 2, 3\)"):
        loader_of(BLEND).load_state_dict(state)


def test_a_state_put_together_from_two_places_is_refused():
    loaders = loaders_of(BLEND, 2)
    run(loaders[:1], 3)
    states = [loader.state_dict() for loader in loaders]
    union = {**states[0], "places": {**states[0]["places"], **states[1]["places"]}}
    with pytest.raises(StateError, match="ranks saved after different numbers of batches"):
        loader_of(BLEND).load_state_dict(union)
    run(loaders[1:], 3)
    union["places"] |= loaders[1].state_dict()["places"]
    loader_of(BLEND).load_state_dict(union)
