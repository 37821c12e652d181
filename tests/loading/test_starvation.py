"""Why the trainer waits is said in words, and they are right; so is how much was read."""

from __future__ import annotations

import io
import logging
import time
import weakref
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from rich.console import Console
from trees import A, B, finite, leaf, numbers, samples

from energy_data.core.profiler import (
    ENCODING,
    HELD,
    OTHER,
    READING,
    STARTING,
    Amounts,
    Profiler,
    Usage,
)
from energy_data.loading import savable_loader
from energy_data.loading.reports import wait_reason
from energy_data.loading.savable_loader import ProgressIterator
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.passes import ConcatSpec, LimitSpec
from energy_data.nodes.references import LeafSpec
from energy_data.testing import NumberSource
from loading.encoders import SlowSource, slow_to_collate, slow_to_encode
from loading.workers import worker_loader


def slow_leaf(name="slow", size=50):
    return LeafSpec(Leaf(id=name, source=SlowSource(size, name, frozenset())))


SLOW = {
    "reading leaf slow": BatchSpec(of=samples(slow_leaf()), batch_size=4, collate=numbers),
    "the task encoder, encoding samples": BatchSpec(
        of=EncodeSpec(of=samples(A), encode=slow_to_encode), batch_size=4, collate=numbers
    ),
    "the task encoder, making batches": BatchSpec(
        of=samples(A), batch_size=4, collate=slow_to_collate
    ),
    "reading, leaf": BatchSpec(
        of=samples(BlendSpec((Part(slow_leaf("s")), Part(slow_leaf("t"))))),
        batch_size=8,
        collate=numbers,
    ),
}


class Clock:
    """Time as these tests have it: it passes in `sleep` only; a forked worker has its own."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.mark.parametrize("cause", SLOW)
@pytest.mark.usefixtures("clock")
def test_what_is_slow_is_named(cause):
    loader = worker_loader(SLOW[cause], workers=0)
    for _ in islice(loader, 40):
        pass
    said = loader.stats().starvation
    assert said.startswith(cause)
    assert said.endswith("the trainer waits 100% of its time for batches")


@pytest.mark.parametrize("cause", list(SLOW)[:3])
@pytest.mark.usefixtures("clock")
def test_workers_say_what_they_spend_time_on(cause):
    loader = worker_loader(LimitSpec(of=SLOW[cause], length=40), workers=2, start_method="fork")
    assert len(list(loader)) == 40
    seconds = loader.stats().seconds
    loader.close()
    assert max(seconds, key=seconds.get) == cause
    assert seconds[cause] > 0.1


@pytest.mark.usefixtures("clock")
def test_the_slow_leaf_of_a_blend_is_named():
    mixed = BlendSpec((Part(slow_leaf("slow"), 1), Part(leaf("quick", 50), 5)))
    loader = worker_loader(BatchSpec(of=samples(mixed), batch_size=8, collate=numbers), workers=0)
    for _ in islice(loader, 10):
        pass
    assert loader.stats().starvation.startswith("reading leaf slow (")


def test_a_slow_trainer_is_the_bottleneck(clock):
    spec = BatchSpec(of=samples(slow_leaf()), batch_size=4, collate=numbers)
    loader = worker_loader(spec, workers=0)
    for _ in islice(loader, 10):
        clock.sleep(0.2)
    said = "none, the trainer is the bottleneck: the trainer waits 2% of its time for batches"
    assert loader.stats().starvation == said


def test_only_the_last_seconds_count(clock):
    spec = BatchSpec(of=samples(slow_leaf()), batch_size=4, collate=numbers)
    loader = worker_loader(spec, workers=0)
    for _ in islice(loader, 100):
        clock.sleep(1.0)
    assert loader.stats().starvation.startswith("none, the trainer")
    for _ in islice(loader, 3000):
        pass
    assert loader.stats().starvation.startswith("reading leaf slow")


def large(batch):
    return torch.zeros(200_000) + len(batch)


def test_a_trainer_that_keeps_batches_is_told_so():
    spec = BatchSpec(of=samples(A), batch_size=1, collate=large)
    loader = worker_loader(spec, workers=1, start_method="fork", arena_bytes=8 << 20)
    kept = list(islice(loader, 5))
    assert loader.stats().slots_in_use == 5
    kept.clear()
    assert loader.stats().slots_in_use == 0
    loader.close()
    said = wait_reason(8.0, 10.0, {HELD: 6.0, ENCODING: 1.0})
    assert "keeps batches" in said
    assert "arena_bytes" in said


@pytest.mark.parametrize(
    ("wait_s", "lasted_s", "spent", "said"),
    [
        (0.0, 0.0, {}, "none, the trainer"),
        (1.0, 100.0, {ENCODING: 50.0}, "none, the trainer"),
        (9.0, 10.0, {}, "an unknown reason"),
        (9.0, 10.0, {STARTING: 6.0, ENCODING: 3.0}, "starting workers"),
        (9.0, 10.0, {STARTING: 1.0, ENCODING: 6.0, OTHER: 2.0}, "the task encoder"),
        (9.0, 10.0, {READING: 9.0}, "reading (100% of the work): the trainer waits 90%"),
        (9.0, 10.0, {READING: 9.0, (READING, "x"): 1.0, (READING, "y"): 0.2}, "reading leaf x"),
        (9.0, 10.0, {(READING, n): 1.0 for n in "abcd"}, "reading, leaf a taking 25% of it"),
    ],
)
def test_the_words_follow_from_the_seconds(wait_s, lasted_s, spent, said):
    assert wait_reason(wait_s, lasted_s, spent).startswith(said)


def test_before_the_first_batch_nothing_is_held_up():
    assert worker_loader(workers=0).stats().starvation == "no batch was requested yet"


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_bytes_and_tokens_are_counted_where_the_source_counts_them(workers):
    spec = finite(ConcatSpec((slow_leaf("slow", 50), leaf("plain", 30))), 4)
    loader = worker_loader(spec, workers=workers, start_method="fork", from_start=True)
    list(loader)
    leaves = loader.stats().leaves
    loader.close()
    assert leaves["slow"].bytes == 500
    assert leaves["slow"].tokens == 150
    assert leaves["plain"].bytes is None
    assert leaves["plain"].tokens is None


def test_amounts_of_workers_add_up():
    profiler = Profiler()
    for num_bytes, tokens in ((0, 0), (3, 0), (4, 1)):
        read = Amounts({("x", "bytes"): num_bytes, ("x", "tokens"): tokens})
        profiler.merge(Usage({}, read))
    assert profiler.read == {("x", "bytes"): 7, ("x", "tokens"): 1}


def test_what_was_read_before_is_not_counted():
    source, profiler = SlowSource(9, "x", frozenset()), Profiler()
    source.bytes_read = 100
    profiler.watch("here", [("x", source)])
    source.bytes_read = 104
    assert profiler.flush().read == {("x", "bytes"): 4}
    assert profiler.flush().read == {}


def test_several_sources_are_read_together_as_one_by_one():
    sources = [NumberSource(9, name, frozenset({2})) for name in "ab"]
    numbers_, indices = np.array([1, 0, 1, 0]), np.array([3, 2, 2, 1])
    together = NumberSource.read_together(sources, numbers_, indices)
    assert [getattr(s, "index", None) or s["__key__"] for s in together] == ["b/3", 2, 2, "a/1"]


PASS = finite(ConcatSpec((A, B)), 2)


def test_the_bar_shows_how_far_it_is_and_gives_the_same_batches(monkeypatch):
    monkeypatch.setattr(savable_loader, "_SHOW_S", 0.0)
    shown = Console(file=io.StringIO(), force_terminal=True, width=150)
    loader, other = (worker_loader(PASS, workers=0, from_start=True) for _ in range(2))
    assert list(loader.with_progress(console=shown)) == list(other)
    text = shown.file.getvalue()
    assert "3/7" in text
    assert "7/7" in text
    assert "waits for:" in text


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("even", [None, "drop", "pad"])
def test_the_bar_knows_how_many_batches_a_rank_gets(rank, even):
    facts = {"from_start": True, "even_batches": even, "workers": 0}
    loader = worker_loader(PASS, rank=rank, ranks=2, **facts)
    shown = Console(file=io.StringIO(), force_terminal=True, width=150)
    count = len(list(loader.with_progress(console=shown)))
    assert f"{count}/{count}" in shown.file.getvalue()


def test_without_a_terminal_nothing_is_shown_and_a_line_is_logged(caplog):
    caplog.set_level(logging.INFO, "energy_data.loading.savable_loader")
    hidden = Console(file=io.StringIO())
    loader = worker_loader(PASS, workers=0, from_start=True)
    assert len(list(loader.with_progress(console=hidden))) == 7
    assert hidden.file.getvalue() == ""
    (line,) = caplog.messages
    assert line.startswith("batch 7 of 7, ")


def test_a_bar_that_is_left_early_leaves_the_place_where_it_is():
    loader, other = (worker_loader(PASS, workers=0) for _ in range(2))
    shown = Console(file=io.StringIO(), force_terminal=True)
    first = list(islice(loader.with_progress(console=shown), 3))
    assert first + list(loader) == list(other)


def test_a_bar_has_the_place_of_the_loader_and_goes_on_from_a_state():
    loader, other = (worker_loader(PASS, workers=0, from_start=True) for _ in range(2))
    expected = list(other)
    stream = loader.with_progress(console=Console(file=io.StringIO(), force_terminal=True))
    assert [next(stream) for _ in range(3)] == expected[:3]
    state = stream.state_dict()
    assert state == loader.state_dict()
    for _ in range(2):
        assert list(stream) == expected[3:]
        stream.load_state_dict(state)


def test_a_bar_outlives_an_error():
    expected = list(worker_loader(PASS, workers=0, from_start=True))
    loader = worker_loader(PASS, workers=0, from_start=True)
    stream = loader.with_progress(console=Console(file=io.StringIO()))
    first, loader.take = next(stream), None
    with pytest.raises(TypeError):
        next(stream)
    del loader.take
    assert [first, *stream] == expected


def test_a_bar_holds_no_batch_that_its_consumer_has_let_go():
    made = []

    class Loader:
        starvation = str

        def next_batch(self):
            assert all(batch() is None for batch in made)
            if len(made) == 3:
                raise StopIteration
            batch = Counter()
            made.append(weakref.ref(batch))
            return batch

    for is_terminal in (True, False):
        made.clear()
        console = Console(file=io.StringIO(), force_terminal=is_terminal)
        stream = ProgressIterator(Loader(), None, console)
        while (batch := next(stream, None)) is not None:
            del batch
        assert len(made) == 3


def test_a_bar_that_is_abandoned_restores_the_terminal():
    console = Console(file=io.StringIO(), force_terminal=True)
    stream = worker_loader(PASS, workers=0).with_progress(console=console)
    next(stream)
    assert console.file.getvalue().count("\x1b[?25l") == 1  # hides the cursor
    del stream
    assert console.file.getvalue().count("\x1b[?25h") == 1
