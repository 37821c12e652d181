"""A pass ends on all ranks after the same number of batches, where asked."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from itertools import islice, pairwise
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis.strategies import integers, sampled_from, sets
from trees import finite, leaf, samples

from energy_data.errors import DataError, SpecError
from energy_data.loading.epoch_end import emptied, with_values
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading.runs import in_order, loaders_of


def tensors(batch):
    return {
        "number": torch.tensor([s["number"] for s in batch]),
        "key": [s["__key__"] for s in batch],
    }


def stream(size, batch_size=3, bad=frozenset()):
    order = ReferencesSpec(of=leaf("x", size, frozenset(bad)), shuffle=Shuffle(), deal=batch_size)
    read = ReadSpec(of=order)
    return BatchSpec(of=read, batch_size=batch_size, collate=tensors, aligned=True)


def passes(loaders):
    """The numbers each rank gives in a pass, and which of its batches were padding."""
    return [
        [(batch["number"].tolist(), loader.last_is_padding) for batch in loader]
        for loader in loaders
    ]


def numbered(loaders, rounds=None):
    """The batches of all ranks by their number in the run: their samples, None for padding."""
    given = [
        (loader.last_batch, None if loader.last_is_padding else batch["number"].tolist())
        for loader in loaders
        for batch in islice(loader, rounds)
    ]
    return sorted(given)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 9, 10, 12, 23, 24, 40])
@pytest.mark.parametrize("even_batches", ["short", "pad", "drop"])
def test_every_rank_gives_as_many_batches(ranks, size, even_batches):
    loaders = loaders_of(stream(size), ranks, lanes=12, from_start=True, even_batches=even_batches)
    first, again = passes(loaders), passes(loaders)
    assert first == again
    in_order = [batch for a_round in zip(*first, strict=True) for batch in a_round]
    real = [n for numbers, padding in in_order if not padding for n in numbers]
    whole = -(-size // 3) // ranks * ranks * 3
    assert real == list(range(min(size, whole) if even_batches == "drop" else size))
    padding = [numbers for batches in first for numbers, is_padding in batches if is_padding]
    assert all(
        numbers == ([] if even_batches == "short" else [0, 1, 2][:size]) for numbers in padding
    )


@pytest.mark.parametrize("even_batches", ["short", "pad", "drop"])
@given(
    size=integers(1, 40),
    batch_size=integers(1, 3),
    ranks=sampled_from([1, 2, 3, 4]),
    later=sampled_from([1, 2, 3, 4]),
    rounds=integers(0, 5),
    bad=sets(integers(0, 39), max_size=30),
)
@settings(max_examples=60)
def test_ranks_end_together_also_with_bad_samples_and_restored_on_other_ranks(
    even_batches, size, batch_size, ranks, later, rounds, bad
):
    assume(not set(range(size)) <= bad)
    facts = {"lanes": 12, "even_batches": even_batches}
    spec = stream(size, batch_size, bad)
    first = loaders_of(spec, ranks, **facts)
    drawn = numbered(first, rounds)
    assume(len(drawn) == rounds * ranks)  # saved before the end of the pass
    again = loaders_of(spec, later, **facts)
    for loader in again:
        loader.restore_state_global([loader.state_dict() for loader in first])
    drawn += (rest := numbered(again))
    assert len(rest) % later == 0
    assert later == 1 or all(after == g + 1 for (g, _), (after, _) in pairwise(rest))
    real = [n for _, numbers in drawn for n in numbers or ()]
    good = [n for n in range(size) if n not in bad]
    left_out = good[len(real) :]
    assert real == good[: len(real)]
    assert len({n // batch_size for n in left_out}) < (later if even_batches == "drop" else 1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 9, 24, 25])
@pytest.mark.parametrize("even_batches", [None, "short", "drop"])
def test_the_length_of_a_loader_is_the_number_of_its_batches(ranks, size, even_batches):
    for loader in loaders_of(stream(size), ranks, lanes=12, even_batches=even_batches):
        assert len(loader) == len(loader.dataset) == len(list(loader))


def test_the_length_of_an_endless_loader_is_that_of_its_virtual_epoch():
    spec = BatchSpec(of=samples(leaf("x", 9)), batch_size=2, collate=tensors)
    (loader,) = loaders_of(spec, 1, virtual_epoch_length=12)
    assert len(loader) == len(list(loader)) == 12


@pytest.mark.parametrize("even_batches", ["short", "pad", "drop"])
def test_a_pass_without_a_good_sample_is_an_error(even_batches):
    for loader in loaders_of(stream(6, 2, range(6)), 2, lanes=4, even_batches=even_batches):
        with pytest.raises(DataError, match="every sample of the pass was skipped"):
            list(loader)


def test_unless_asked_some_ranks_have_one_batch_more():
    loaders = loaders_of(stream(10), 3, lanes=12, from_start=True)
    assert [len(batches) for batches in passes(loaders)] == [2, 1, 1]


@pytest.mark.parametrize("even_batches", ["short", "pad"])
def test_saved_before_and_after_the_padding_it_goes_on(even_batches):
    for rounds in range(3):
        loaders = loaders_of(stream(10), 3, lanes=12, even_batches=even_batches)
        expected = loaders_of(stream(10), 3, lanes=12, even_batches=even_batches)
        for loader, other in zip(loaders, expected, strict=True):
            list(islice(loader, rounds))
            list(islice(other, rounds))
        again = loaders_of(stream(10), 3, lanes=12, even_batches=even_batches)
        for loader in again:
            loader.restore_state_global([loader.state_dict() for loader in loaders])
        assert passes(again) == passes(expected)
        assert passes(again) == passes(expected)


def test_a_limit_is_evened_too():
    loaders = loaders_of(LimitSpec(of=stream(30), length=5), 2, lanes=12, even_batches="drop")
    assert [len(batches) for batches in passes(loaders)] == [2, 2]


@pytest.mark.parametrize("lanes", [1, 2, 12])
def test_a_limit_counts_batches_whose_samples_were_all_skipped(lanes):
    limited = LimitSpec(of=stream(30, bad=range(3, 6)), length=5)
    drawn = in_order(loaders_of(limited, 1, lanes=lanes))
    assert [batch["number"].tolist() for batch in drawn] == [
        [n, n + 1, n + 2] for n in (0, 6, 9, 12)
    ]


def test_an_empty_batch_keeps_its_form():
    batch = {
        "x": torch.ones(3, 4),
        "n": np.ones((3, 2)),
        "k": ["a"],
        "s": torch.tensor(1.0),
        "t": (torch.ones(2), "n"),
    }
    empty = emptied(batch)
    assert (empty["x"].shape, empty["n"].shape, empty["k"]) == ((0, 4), (0, 2), [])
    assert empty["s"] == 1
    assert empty["t"][0].shape == (0,)


def test_an_unknown_way_is_refused():
    with pytest.raises(SpecError, match="even_batches: must be None, 'drop', 'short' or 'pad'"):
        loaders_of(finite(leaf("x", 3)), 1, even_batches="repeat")


def test_an_endless_stream_needs_no_evening():
    spec = BatchSpec(of=samples(leaf("x", 9)), batch_size=2, collate=tensors)
    loaders = loaders_of(spec, 2, lanes=4, even_batches="short")
    assert [len(list(islice(loader, 20))) for loader in loaders] == [20, 20]


class Encoding(UserDict):
    """As tokenizers give them: made from more than its items."""

    def __init__(self, items, *, encodings):
        super().__init__(items)
        self.encodings = encodings


class Attributes(dict):
    """Its items are its attributes."""

    def __init__(self, items):
        super().__init__(items)
        self.__dict__ = self


@pytest.mark.parametrize(
    "made",
    [
        dict,
        OrderedDict,
        lambda items: defaultdict(list, items),
        UserDict,
        lambda items: Encoding(items, encodings="kept"),
        Attributes,
        MappingProxyType,
    ],
)
def test_values_are_changed_in_mappings_of_every_type(made):
    batch = made({"x": torch.ones(2), "y": {"z": torch.ones(3)}})
    given = with_values({"inner": batch}, lambda value: value * 5)["inner"]
    assert type(given) is type(batch)
    assert (given["x"].tolist(), given["y"]["z"].tolist()) == ([5, 5], [5, 5, 5])
    assert (batch["x"].tolist(), batch["y"]["z"].tolist()) == ([1, 1], [1, 1, 1])
    assert getattr(given, "encodings", "kept") == "kept"
    assert getattr(given, "default_factory", list) is list
    if made is Attributes:
        assert given.x is given["x"]
        assert batch.x is batch["x"]
