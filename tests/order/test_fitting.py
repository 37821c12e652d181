"""Which of the documents that wait fits next: as a search through all of them says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.order.bin_packing import BestFit, FirstFit


def best(waiting, room, after):
    fitting = [n for n, sizes in waiting.items() if fits(sizes, room)]
    return max(fitting, key=lambda n: (waiting[n][0], -n), default=None)


def first(waiting, room, after):
    return next((n for n, sizes in waiting.items() if n > after and fits(sizes, room)), None)


def fits(sizes, room):
    return all(size <= free for size, free in zip(sizes, room, strict=True))


@pytest.mark.parametrize("num_sizes", [1, 2])
@pytest.mark.parametrize(("kind", "search"), [(BestFit, best), (FirstFit, first)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_finds_what_a_search_through_all_finds(kind, search, num_sizes, data):
    sizes = st.tuples(*[st.integers(0, 9)] * num_sizes)
    fitting, waiting, number = kind(), {}, 0
    for _ in range(data.draw(st.integers(1, 40))):
        if waiting and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(waiting)))
            fitting.remove(gone, waiting.pop(gone))
        else:
            number += data.draw(st.integers(1, 3))
            waiting[number] = data.draw(sizes)
            fitting.add(number, waiting[number])
        room, after = data.draw(sizes), data.draw(st.integers(0, number + 1))
        assert fitting.find(room, after) == search(waiting, room, after)


def test_the_smallest_come_in_order():
    fitting = BestFit()
    for number, size in enumerate([5, 3, 9, 3, 0]):
        fitting.add(number, (size,))
    assert fitting.smallest(3) == [0, 3, 3]
    assert fitting.smallest(9) == [0, 3, 3, 5, 9]
