"""Which pending documents form a pack: as a search through all of them says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.nodes.packing import Document, PackBuffer


def best_fit(waiting, limits, most):
    """Return the numbers of the documents of the next pack: the oldest, then the largest."""
    waiting, room, taken = dict(waiting), list(limits), []
    number = next(iter(waiting))
    while number is not None:
        room = [free - size for free, size in zip(room, waiting.pop(number), strict=True)]
        taken.append(number)
        fitting = [] if len(taken) == most else [n for n, s in waiting.items() if fits(s, room)]
        number = max(fitting, key=lambda n: (waiting[n][0], -n), default=None)
    return sorted(taken)


def fits(sizes, room):
    return all(size <= free for size, free in zip(sizes, room, strict=True))


@pytest.mark.parametrize("limits", [(12,), (12, 9)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_packs_are_those_of_a_search_through_all(limits, data):
    sizes = st.tuples(*[st.integers(0, 9)] * len(limits))
    buffer, waiting = PackBuffer(limits), {}
    for number in range(data.draw(st.integers(1, 40))):
        waiting[number] = data.draw(sizes)
        buffer.add([Document((number,), number, waiting[number], 1)])
        if data.draw(st.integers(0, 3)) == 0:
            most = data.draw(st.none() | st.integers(1, 4))
            expected = best_fit(waiting, limits, most)
            assert [document.item for document in buffer.take(most)] == expected
            for taken in expected:
                del waiting[taken]
        assert buffer.refs == tuple((number,) for number in waiting)
        assert len(buffer) == len(waiting)
