"""What a step is: what may be said of it, and what not."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_data.errors import SpecError
from energy_data.order.step_rules import DocsPerStep, share_size


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
        ({"last": "keep"}, "last must be 'drop' or 'short', got 'keep'"),
        ({"on_rank_end": "x"}, "on_rank_end must be"),
        ({"lookahead": 1.5}, "lookahead must be a whole number >= 1, got 1.5"),
        ({"max_microbatches": 0}, "max_microbatches must be"),
        ({"count": "words"}, "count must be 'documents', .* or 'microbatches', got 'words'"),
        ({"timeout_s": 0}, "timeout_s must be a number above 0"),
        ({"shares": 0}, "shares must be a whole number >= 1, got 0"),
        (
            {"mode": "exact", "count": "tokens"},
            "mode 'exact' counts 'documents' or 'groups', got count 'tokens'",
        ),
    ],
)
def test_what_else_is_impossible_is_refused(facts, message):
    with pytest.raises(SpecError, match=message):
        DocsPerStep(target=4, **facts)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(SpecError) as caught:
        DocsPerStep(target=4, mode="x", lookahead=0)
    assert len(caught.value.faults) == 2


def test_a_number_stands_for_the_rest():
    assert DocsPerStep.of(256) == DocsPerStep(target=256)
    assert DocsPerStep.of(None) is None


def test_a_target_holds_from_its_step_on():
    rules = DocsPerStep(target=[[0, 64], [1000, 256]])
    assert [rules.target_of(step) for step in (0, 999, 1000, 10**12)] == [64, 64, 256, 256]
    assert pickle.loads(pickle.dumps(rules)) == rules


@given(target=st.integers(1, 10**6), shares=st.integers(1, 64), step=st.integers(0, 10**9))
def test_the_shares_of_a_step_hold_its_target_and_differ_by_one(target, shares, step):
    parts = [share_size(step * shares + n, ((0, target),), shares) for n in range(shares)]
    assert sum(parts) == target
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


def test_what_is_left_over_goes_to_the_first_shares():
    assert [share_size(n, ((0, 10),), 4) for n in range(4)] == [3, 3, 2, 2]


@pytest.mark.parametrize(("share", "expected"), [(0, 2), (7, 2), (8, 5), (11, 5)])
def test_another_target_holds_from_its_step_on(share, expected):
    assert share_size(share, ((0, 8), (2, 20)), 4) == expected
