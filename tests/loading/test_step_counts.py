"""What is in a micro-batch."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import torch

from energy_data.errors import DataError
from energy_data.loading.steps.counts import Counts, counts_of
from energy_data.order.step_rules import DocsPerStep

RULES = DocsPerStep(target=1)


class Pair(NamedTuple):
    image: Any
    name: str


@dataclass
class Typed:
    __key__: list = field(default_factory=lambda: ["a", "b", "c"])


@attrs.define
class Fields:
    x: Any


@pytest.mark.parametrize(
    "batch",
    [
        {"__key__": ["a", "b", "c"], "x": torch.ones(7)},
        {"scale": torch.tensor(1.0), "x": torch.ones(3, 5)},
        {"name": "all", "x": np.ones((3, 2))},
        {"x": [1, 2, 3]},
        {"x": [1, 2, 3], "about": {"sizes": [1, 2]}},
        UserDict({"__key__": ["a", "b", "c"], "x": torch.ones(7)}),
        ["a", "b", "c"],
        ("a", "b", "c"),
        torch.ones(3, 4),
        (torch.ones(3, 4), torch.ones(3)),
        ((torch.ones(3, 4), np.ones(3)), ["a", "b", "c"], torch.tensor(1.0)),
        [torch.ones(3, 4), torch.ones(3), torch.ones(3)],
        [{"x": torch.ones(9)}, {"x": torch.ones(9)}, {"x": torch.ones(9)}],
        Pair(torch.ones(3), "n"),
        Typed(),
        Fields(torch.ones(3)),
    ],
)
def test_each_sample_is_a_document_unless_something_is_said(batch):
    assert counts_of(batch, RULES) == Counts(3, 3, None, None, None)


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (5, Counts(5, 2, None, None, None)),
        (torch.tensor(5), Counts(5, 2, None, None, None)),
        ({"documents": 5, "tokens": 70}, Counts(5, 2, 70, None, None)),
        ([2, 3], Counts(5, 2, None, None, None)),  # one per sample, as packs say it
        ([2, None], Counts(3, 2, None, None, None)),
        (
            [{"documents": 1, "labels": 3}, {"documents": 0, "labels": 4}],
            Counts(1, 2, None, 7, None),
        ),
        ([{"tokens": 1}, {"documents": 4}], Counts(5, 2, None, None, None)),
    ],
)
def test_a_batch_says_what_is_in_it(said, counts):
    assert counts_of({"__key__": ["a", "b"], "__docs__": said}, RULES) == counts


def test_a_list_of_packs_holds_what_they_say_together():
    packs = [{"__docs__": 3, "__tokens__": 10}, {"__docs__": 4, "__tokens__": 20}]
    assert counts_of(packs, RULES) == Counts(7, 2, 30, None, None)
    assert counts_of([packs[0], {"x": 1}], RULES) == Counts(4, 2, None, None, None)


def test_a_list_of_what_packs_say_has_an_entry_for_each():
    batch = {"tokens": torch.ones(30), "__docs__": [3, 4]}
    assert counts_of(batch, RULES) == Counts(7, 2, None, None, None)


def test_packs_say_their_tokens_beside():
    batch = {"__key__": ["a", "b"], "__docs__": [3, 4], "__tokens__": [10, 20], "__labels__": 9}
    assert counts_of(batch, RULES) == Counts(7, 2, 30, 9, None)


def test_a_function_says_it():
    def count(batch):
        return {"documents": 2, "groups": 1, "labels": int((batch["y"] != -100).sum())}

    rules = DocsPerStep(target=1, count=count)
    batch = {"y": torch.tensor([[1, -100], [2, 3]])}
    assert counts_of(batch, rules) == Counts(2, 2, None, 3, 1)
    assert counts_of(batch, DocsPerStep(target=1, count=len)) == Counts(1, 2, None, None, None)


@pytest.mark.parametrize(
    ("batch", "facts", "message"),
    [
        ({"x": torch.tensor(1)}, {}, "number of samples in a micro"),
        (
            {"tokens": torch.ones(30), "ends": [12, 30]},
            {},
            "number of samples in a micro",
        ),
        ((torch.ones(3), torch.ones(7)), {}, "number of samples .* function as `count`"),
        ([torch.ones(3), torch.ones(3)], {}, "number of samples .* function as `count`"),
        ({"x": [1]}, {"count": "tokens"}, "does not report its tokens"),
        ({"x": [1], "__docs__": {"words": 4}}, {}, "unknown count 'words', known are documents"),
        ({"x": [1], "__docs__": -1}, {}, "must be a whole number >= 0, got -1"),
        ({"x": [1], "__docs__": 1.5}, {}, "must be a whole number >= 0, got 1.5"),
        ({"x": [1], "__docs__": "two"}, {}, "must be a whole number >= 0, got 'two'"),
    ],
)
def test_what_makes_no_sense_is_an_error(batch, facts, message):
    with pytest.raises(DataError, match=message):
        counts_of(batch, DocsPerStep(target=1, **facts))
