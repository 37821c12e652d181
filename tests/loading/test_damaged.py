"""A damaged state is refused, with nothing moved, or does no harm: whatever value is wrong."""

from __future__ import annotations

import json
from functools import partial

import pytest
from attrs import evolve
from damaging import as_saved, check, damaged, sampled
from trees import KINDS, A, B, batches, leaf, packs, samples, staged

from energy_data.errors import StateError
from energy_data.nodes.blend import BlendSpec, Part
from loading import test_steps_stages
from loading.runs import in_order, loader_of
from loading.steps import STREAM, ranks_of, take
from loading.test_steps_exact import packs as exact_packs

TREES = {
    f"{kind} {number}": spec
    for kind, specs in KINDS.items()
    for number, spec in enumerate(specs)
    if spec.item_kind != "references"
}
BLEND = BlendSpec((Part(A, 5), Part(B, 2)))
OTHER = BlendSpec((Part(leaf("d", 8), 2), Part(A, 5)))
TWO = staged(batches(packs(samples(BLEND))), batches(samples(A)))
# What saved, and what restores it after an edit.
EDITS = {
    "leaves": (batches(packs(samples(BLEND))), batches(packs(samples(OTHER)))),
    "stage ahead": (TWO, evolve(TWO, stages=(TWO.stages[0], evolve(TWO.stages[1], name="new")))),
    "stage behind": (TWO, staged(batches(samples(OTHER)), batches(samples(B)))),
    "stages": (batches(samples(BLEND)), staged(batches(samples(OTHER)))),
}
STEPS = {
    "at least": lambda: ranks_of(STREAM, target=10)[0],
    "exact": lambda: ranks_of(exact_packs(), target=10, mode="exact")[0],
    "stages": lambda: test_steps_stages.ranks_of(test_steps_stages.SPEC, test_steps_stages.RULES)[
        0
    ],
}
FEW = 12  # damages of each state in a quick run


def restored(loader, state):
    loader.load_state_dict(state)


def restored_after_an_edit(loader, state):
    loader.load_state_dict(state, on_mismatch="keep_matching")


def of_tree(spec, rounds=9):
    loader = loader_of(spec, lanes=2)
    in_order([loader], rounds)
    return as_saved(loader), lambda: loader_of(spec, lanes=2)


def of_edit(name):
    before, after = EDITS[name]
    keep = restored if name == "stage ahead" else restored_after_an_edit
    return of_tree(before)[0], of_tree(after)[1], keep


def of_what_came_back():
    """A state with references to what stages held, of a leaf that is there and of one gone."""
    loader = loader_of(staged(batches(samples(A))), lanes=2)
    loader.load_state_dict(of_tree(TWO, 4)[0], on_mismatch="keep_matching")
    state = as_saved(loader)
    names = [name for _, name, _ in state["start"]]
    for name in ("returned", "back"):
        assert any(names.index(name) in row[3:-1:2] for row in state["places"].values())
    return state


CAME_BACK = {
    "as it is": staged(batches(samples(A))),
    "edited": staged(batches(samples(BLEND)), batches(samples(B))),
}


def of_steps(name, count):
    loader = STEPS[name]()
    take([loader], count)
    return as_saved(loader), STEPS[name]


@pytest.mark.parametrize("tree", TREES)
def test_some_damage(tree):
    state, make = of_tree(TREES[tree])
    check(make, sampled(state, FEW, tree), restored)


@pytest.mark.parametrize("tree", TREES)
def test_any_value_that_was_changed_is_found_by_the_checksum(tree):
    state, make = of_tree(TREES[tree])
    loader = make()
    for _, _, changed in sampled(state, 10 * FEW, tree):
        if changed != {} and json.dumps(changed) != json.dumps(state):  # {} is no state at all
            with pytest.raises(StateError):
                loader.load_state_dict(changed)


@pytest.mark.parametrize("edit", EDITS)
def test_some_damage_before_an_edit(edit):
    state, make, restore = of_edit(edit)
    check(make, sampled(state, 10 * FEW, edit), restore)


@pytest.mark.parametrize("count", [0, 1, 4, 9, 30])
@pytest.mark.parametrize("steps", STEPS)
def test_some_damage_inside_and_between_steps(steps, count):
    state, make = of_steps(steps, count)
    check(make, sampled(state, 4 * FEW, (steps, count)), restored)


@pytest.mark.parametrize("how", CAME_BACK)
def test_some_damage_to_what_came_back(how):
    make = partial(loader_of, CAME_BACK[how], lanes=2)
    check(make, sampled(of_what_came_back(), 20 * FEW, how), restored_after_an_edit)


@pytest.mark.slow
@pytest.mark.parametrize("how", CAME_BACK)
def test_any_damage_to_what_came_back(how):
    make = partial(loader_of, CAME_BACK[how], lanes=2)
    assert check(make, damaged(of_what_came_back()), restored_after_an_edit) > 100


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
def test_any_damage(tree):
    state, make = of_tree(TREES[tree])
    assert check(make, damaged(state), restored) > 100


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_any_damage_before_an_edit(edit):
    state, make, restore = of_edit(edit)
    assert check(make, damaged(state), restore) > 100


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 30])
@pytest.mark.parametrize("steps", STEPS)
def test_any_damage_inside_and_between_steps(steps, count):
    state, make = of_steps(steps, count)
    assert check(make, damaged(state), restored) > 100
