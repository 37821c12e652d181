"""Cookers: which samples they are for, and what they are given."""

from __future__ import annotations

import pickle
from functools import partial

import pytest

from energy_data import TaskEncoder
from energy_data.errors import SpecError
from energy_data.tasks.functions import Cooker, Cooking, cooker, recipe_of


@cooker
def plain(sample):
    return sample


@cooker(need_primary=True, need_cache=True)
def needy(sample, *, primary, cache):
    return sample


def unmarked(sample):
    return sample


@pytest.mark.parametrize(
    ("cook", "primary", "cache"),
    [(plain, False, False), (needy, True, True), (unmarked, False, False)],
)
def test_a_cooker_says_what_it_needs(cook, primary, cache):
    made = pickle.loads(pickle.dumps(Cooker(cook)))
    assert (made.need_primary, made.need_cache) == (primary, cache)


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [(None, True), ({}, True), ({"a": 1}, True), ({"a": 2}, False), ({"c": 1}, False)],
)
def test_a_cooker_is_for_samples_with_its_subflavors(wanted, matches):
    assert Cooker(plain, has_subflavors=wanted).is_match({"a": 1, "b": 2}) is matches


class Cooks(TaskEncoder):
    decoder = None

    def __init__(self, *cookers):
        self.cookers = cookers


def recipe(encoder, subflavors):
    return recipe_of(encoder, subflavors, lambda: "primary", {"notes": "aux"}, "cats")


def test_the_first_cooker_that_matches_is_used():
    first, second = Cooker(plain, {"a": 1}), Cooker(needy)
    encoder = Cooks(first, second)
    simple, other = recipe(encoder, {"a": 1}), recipe(encoder, {"a": 2})
    assert (simple.func, simple.keywords) == (plain, {"notes": "aux"})
    assert other.keywords == {"cooker": second, "aux": {"notes": "aux", "primary": "primary"}}


def test_an_own_way_to_cook_is_called():
    class Own(Cooks):
        def cook_crude_sample(self, sample, cooker, aux):
            return sample, cooker.cook, aux

    encoder = Own(Cooker(plain))
    assert recipe(encoder, {})("crude") == ("crude", plain, {"notes": "aux"})


def test_samples_without_a_cooker_are_refused():
    with pytest.raises(SpecError, match=r"cats: no cooker matches its subflavors \{'a': 2\}"):
        recipe(Cooks(Cooker(plain, {"a": 1})), {"a": 2})


@pytest.mark.parametrize(
    ("sample", "made"),
    [
        ({"__restore_key__": ("a", 0, 3), "__subflavors__": {"x": 1}}, "first"),
        ({"__restore_key__": ("a", 0, 3), "__subflavors__": {"x": 2}}, "second"),
        ({"__restore_key__": ("b", 0, 3), "__subflavors__": {"x": 2}}, "third"),
        ({"__restore_key__": ("c", 0, 3), "__subflavors__": {}}, None),
        ({"__restore_key__": (("a", 0, 3), ("b", 0, 3)), "__subflavors__": {}}, None),
        ({"__restore_key__": None}, None),
        ({"txt": "no identity"}, None),
        ("no dict", None),
    ],
)
def test_a_sample_is_cooked_as_its_leaf_needs_which_may_have_several_subflavors(sample, made):
    recipes = {("a", "{'x': 1}"): "first", ("a", "{'x': 2}"): "second", ("b", "{'x': 2}"): "third"}
    cooking = Cooking({key: partial(said, word=word) for key, word in recipes.items()})
    assert cooking(sample) == (sample if made is None else made)


def said(sample, word):
    return word
