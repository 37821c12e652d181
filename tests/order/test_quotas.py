"""How much of a step each share holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_data.order.quotas import quota


@given(target=st.integers(1, 10**6), shares=st.integers(1, 64), step=st.integers(0, 10**9))
def test_the_shares_of_a_step_hold_its_target_and_differ_by_one(target, shares, step):
    parts = [quota(step * shares + n, ((0, target),), shares) for n in range(shares)]
    assert sum(parts) == target
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


def test_what_is_left_over_goes_to_the_first_shares():
    assert [quota(n, ((0, 10),), 4) for n in range(4)] == [3, 3, 2, 2]


@pytest.mark.parametrize(("share", "expected"), [(0, 2), (7, 2), (8, 5), (11, 5)])
def test_another_target_holds_from_its_step_on(share, expected):
    assert quota(share, ((0, 8), (2, 20)), 4) == expected
