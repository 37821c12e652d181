"""What a step is: what may be said of it, and what not."""

from __future__ import annotations

import pickle

import pytest

from energy_data.errors import SpecError
from energy_data.steps.rules import DocsPerStep


@pytest.mark.parametrize(
    "target", [0, -3, 1.5, True, "256", [], [[1, 5]], [[0, 5], [0, 6]], [[0, 5], [4, 0]], [[0]]]
)
def test_an_impossible_target_is_refused(target):
    with pytest.raises(SpecError, match=r"docs_per_step: target must be a number >= 1, or pairs"):
        DocsPerStep(target=target)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"mode": "quota"}, "mode must be 'at_least' or 'exact', got 'quota'"),
        ({"last": "keep"}, "last must be 'drop' or 'short' or 'carry'"),
        ({"on_rank_end": "x"}, "on_rank_end must be"),
        ({"emit": "all"}, "emit must be"),
        ({"at_boundary": "cut"}, "at_boundary must be"),
        ({"multiple": 0}, "multiple must be a number >= 1, got 0"),
        ({"lookahead": 1.5}, "lookahead must be a number >= 1, got 1.5"),
        ({"max_microbatches": 0}, "max_microbatches must be"),
        ({"count": "words"}, "count must be a function or one of"),
        ({"timeout_s": 0}, "timeout_s must be > 0"),
        ({"shares": 0}, "shares must be a number >= 1, got 0"),
        (
            {"mode": "exact", "count": "tokens"},
            "mode 'exact' counts documents, or groups, by itself",
        ),
    ],
)
def test_what_else_is_impossible_is_refused(facts, message):
    with pytest.raises(SpecError, match=message):
        DocsPerStep(target=4, **facts)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(SpecError) as caught:
        DocsPerStep(target=4, mode="x", multiple=0)
    assert len(caught.value.faults) == 2


def test_a_number_stands_for_the_rest():
    assert DocsPerStep.of(256) == DocsPerStep(target=256)
    assert DocsPerStep.of(None) is None


def test_a_target_holds_from_its_step_on():
    rules = DocsPerStep(target=[[0, 64], [1000, 256]])
    assert [rules.target_of(step) for step in (0, 999, 1000, 10**12)] == [64, 64, 256, 256]
    assert pickle.loads(pickle.dumps(rules)) == rules
