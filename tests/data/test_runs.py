"""Whole runs come first, whatever the files and the part of them that is read."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energy_data.data.runs import RunOrder


@st.composite
def files(draw):
    """The files of a source, the samples of a run, and those of the source."""
    counts = draw(st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(any))
    before = draw(st.integers(0, sum(counts) - 1))
    num_samples = draw(st.integers(1, sum(counts) - before))
    begins = [end - count - before for end, count in zip(accumulate(counts), counts, strict=True)]
    return begins, counts, draw(st.integers(1, 9)), num_samples


@given(files())
def test_each_sample_has_one_place(facts):
    begins, counts, length, num_samples = facts
    order = RunOrder(begins, counts, length=length, num_samples=num_samples)
    every = np.arange(num_samples)
    assert sorted(order.samples(every)) == every.tolist()
    assert order.places(order.samples(every)).tolist() == every.tolist()


@given(files())
def test_whole_runs_come_first_and_the_rest_in_the_order_of_the_files(facts):
    begins, counts, length, num_samples = facts
    runs = [
        range(first, first + length)
        for begin, count in zip(begins, counts, strict=True)
        for first in range(begin, begin + count - length + 1, length)
        if first >= 0 and first + length <= num_samples
    ]
    whole = [sample for run in runs for sample in run]
    order = RunOrder(begins, counts, length=length, num_samples=num_samples)
    rest = sorted({*range(num_samples)} - {*whole})
    assert order.samples(np.arange(num_samples)).tolist() == whole + rest
