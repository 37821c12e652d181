"""Every kind keeps the node contract; one table, all kinds."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_trees import random_trees
from trees import KINDS, B, batches, finite, leaf, samples

import energy_data.nodes
from energy_data.core.context import Context
from energy_data.core.cursor import FIELD_TYPES, Cursor, restore, save
from energy_data.core.spec import Spec
from energy_data.errors import DataError, ExcludedError, SkipSample, StateMismatchError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.testing import NumberSource, assert_resumes_exactly, next_item, record, take

ALL = [
    pytest.param(spec, id=f"{kind}{n}")
    for kind, specs in KINDS.items()
    for n, spec in enumerate(specs)
]


def every_kind(cls: type[Spec] = Spec) -> set[str]:
    below = {name for sub in cls.__subclasses__() for name in every_kind(sub)}
    # Recipes of `config` are only written: they compile to kinds that run.
    runs = cls.__module__.startswith("energy_data.") and ".config." not in cls.__module__
    return below | ({cls.kind} if runs and not cls.__abstractmethods__ else set())


def test_the_table_has_every_kind():
    modules = set(energy_data.nodes.__path__)
    assert modules
    assert every_kind() == set(KINDS) | {ReferencesSpec.kind}


def every_cursor(cls: type[Cursor] = Cursor) -> set[type[Cursor]]:
    return {cls}.union(*(every_cursor(sub) for sub in cls.__subclasses__()))


def test_what_fields_of_cursors_are_annotated_with_is_what_damage_is_told_by():
    cursors = {cls for cls in every_cursor() if cls.__module__.startswith("energy_data.")}
    assert len(cursors) >= 15
    assert {kind for cursor in cursors for kind in cursor.field_types.values()} == set(FIELD_TYPES)


def test_a_cursor_with_a_field_that_cannot_be_checked_is_refused_where_it_is_defined():
    with pytest.raises(TypeError, match=r"Odd: .* one of int, bool, tuple.*, got rate: float"):

        class Odd(Cursor):
            rate: float = 0.0


@pytest.mark.parametrize("spec", ALL)
@pytest.mark.parametrize(("lane", "lanes"), [(0, 1), (2, 3)])
def test_restored_at_every_step_it_goes_on_identically(spec, lane, lanes):
    assert_resumes_exactly(spec, lane=lane, lanes=lanes)


@pytest.mark.parametrize("spec", ALL)
def test_its_state_is_plain_json_with_constant_fields(spec):
    _, states = record(spec)
    assert json.loads(json.dumps(states)) is not None
    assert len({str([(path, *cursor) for path, cursor in state.items()]) for state in states}) == 1


@pytest.mark.parametrize("spec", ALL)
def test_an_error_loses_no_item(spec):
    if spec.item_kind == "references":
        pytest.skip("nothing under references can fail")
    expected, _ = record(spec, steps=10)
    flaky = _with_flaky_sources(spec)
    node = flaky.build(Context())
    items = []
    while len(items) < 10:
        try:
            items.append(next_item(node))
        except OSError:
            continue
        except StopIteration:
            break
    assert items == expected


def _with_flaky_sources(spec):
    """Return the tree with sources that fail the first time they are asked for anything."""
    spec = deepcopy(spec)
    for _, inner in spec.walk():
        if (a_leaf := getattr(inner, "leaf", None)) is not None:
            source, read = a_leaf.source, type(a_leaf.source).read
            asked = set()

            def flaky(indices, source=source, read=read, asked=asked):
                if (block := tuple(indices)) not in asked:
                    asked.add(block)
                    raise OSError("the disk was away for a moment")
                return read(source, indices)

            source.read = flaky
    return spec


@pytest.mark.parametrize("spec", ALL)
def test_rewound_it_begins_the_next_epoch_with_as_much_as_the_first(spec):
    node = spec.build(Context())
    first = take(node, 200)
    node.rewind()
    second = take(node, 200)
    if len(first) < 200:
        assert second
        if spec is not KINDS["epochize"][0]:
            assert abs(len(second) - len(first)) <= 1


@pytest.mark.parametrize("spec", ALL)
def test_a_foreign_state_is_refused_and_moves_nothing(spec):
    node = spec.build(Context())
    take(node, 2)
    before = save(node)
    with pytest.raises(StateMismatchError, match="another tree"):
        restore(node, {"root/elsewhere": {"draws": 3}})
    assert save(node) == before


@pytest.mark.parametrize("spec", ALL)
def test_pickled_or_built_twice_it_is_the_same(spec):
    again = pickle.loads(pickle.dumps(spec))
    expected, _ = record(spec)
    assert record(spec)[0] == expected
    assert record(again)[0] == expected
    assert again.to_dict() == spec.to_dict()


@settings(max_examples=30, deadline=None)
@given(spec=random_trees(), lanes=st.sampled_from([1, 2, 5]), data=st.data())
def test_random_trees_resume_exactly(spec, lanes, data):
    lane = data.draw(st.integers(0, lanes - 1))
    assert_resumes_exactly(spec, lane=lane, lanes=lanes, steps=10)


def test_a_map_that_always_skips_is_an_error_and_not_a_hang():
    def never(item):
        raise SkipSample

    spec = batches(EncodeSpec(of=samples(B), encode=never), 2)
    with pytest.raises(DataError, match="no item was returned"):
        next_item(spec.build(Context()))


def test_a_blend_of_which_nothing_comes_through_is_an_error_and_not_a_hang():
    none = FilterSpec(of=samples(B), predicate=lambda sample: False)
    with pytest.raises(DataError, match="in 10000 draws in a row, each of one item"):
        next_item(BlendSpec((Part(none),)).build(Context()))


def test_a_finite_stream_of_bad_samples_ends():
    spec = finite(leaf("x", 5, frozenset(range(5))), 2)
    assert take(spec.build(Context()), 10) == []


def test_what_a_dataset_excludes_is_left_out_even_where_bad_samples_are_raised():
    class Excluding(NumberSource):
        def _sample(self, index):
            return ExcludedError("left out") if index % 2 else super()._sample(index)

    excluding = LeafSpec(Leaf(id="x", source=Excluding(400)))
    read = ReadSpec(of=ReferencesSpec(of=excluding, deal=400), on_error="raise", max_failures=3)
    node = read.build(Context())
    assert [sample["number"] for sample in node.take(400)] == list(range(0, 400, 2))
    assert (node.cursor.excluded, node.cursor.skipped) == (200, 0)
