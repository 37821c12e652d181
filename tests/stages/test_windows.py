"""Windows of tokens of several lengths over one leaf: no token is repeated, none is skipped."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.runs import loaders_of, run
from trees import CLOCK, DOWN, UP

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.data.registry import open_source
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec

LANES, CHUNK = 4, 24
SMALL, LARGE = 24, 72  # chunks of a leaf that is dealt in turns, and of one that is divided
STRIDES = (2, 3, 4, 6, 8, 12, 24)
KEEPING = {"on_mismatch": "keep_matching"}


@pytest.fixture(scope="module", params=[SMALL, LARGE])
def corpus(request, tmp_path_factory):
    """The pattern of some files, and the number of their chunks."""
    return written(tmp_path_factory.mktemp("corpus"), request.param), request.param


def written(folder, chunks):
    """Three files of chunks and a rest, which is never read. The tokens are their places."""
    first = 0
    for number, count in enumerate((7, 1, chunks - 8)):
        tokens = np.arange(first, first + count * CHUNK)
        rest = [10**6] * (CHUNK - 1)
        np.append(tokens, rest).astype(np.uint32).tofile(folder / f"{number}.bin")
        first += count * CHUNK
    return f"{folder}/*.bin"


def real(samples: list) -> list:
    """The tokens of samples, each with its leaf, without padding."""
    return [
        (sample["__subflavors__"]["leaf"], sample["tokens"][sample["loss_mask"]].tolist())
        for sample in samples
    ]


def leaf(path, stride, name="c", chunk=CHUNK):
    keys = {"seq_len": stride, "max_seq_len": chunk, "dtype": "uint32"}
    return LeafSpec(Leaf(id=name, source=open_source(path, subflavors={"leaf": name}, **keys)))


def read(order):
    shuffle = Shuffle(buffer_size=3, sequence_length=2, parallel_sequences=2)
    return ReadSpec(of=ReferencesSpec(of=order, shuffle=shuffle))


def windows(path, stride, size=2):
    return BatchSpec(of=read(leaf(path, stride)), batch_size=size, collate=real)


def staged(*bodies):
    """Stages as (micro-batches, body); the last one has no end."""
    ends = np.cumsum([length for length, _ in bodies]).tolist()
    stages = zip(range(len(bodies)), [0, *ends], [*ends[:-1], None], bodies, strict=False)
    return StagedSpec(
        stages=tuple(
            Stage(name=f"s{number}", of=of, begin=begin, end=end)
            for number, begin, end, (_, of) in stages
        )
    )


def streams(given, name="c"):
    """What each lane has returned of a leaf, token by token."""
    found: list[list[int]] = [[] for _ in range(LANES)]
    for g, batch in sorted(given.items()):
        for leaf_id, tokens in batch:
            found[g % LANES] += tokens if leaf_id == name else []
    return found


@cache
def of_one_stage(path, chunks, stride):
    """What each lane reads in four epochs by windows of one length."""
    body = BatchSpec(of=read(leaf(path, stride)), batch_size=CHUNK // stride, collate=real)
    return streams(run(loaders_of(body, 1, LANES), 4 * chunks))


def saved(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


@pytest.mark.parametrize("stride", STRIDES)
def test_lanes_read_the_same_tokens_by_windows_of_any_length(stride, corpus):
    lanes, (_, chunks) = of_one_stage(*corpus, stride), corpus
    count = chunks * CHUNK // LANES
    for epoch in range(4):
        tokens = [token for lane in lanes for token in lane[epoch * count :][:count]]
        assert sorted(tokens) == list(range(chunks * CHUNK))
    if chunks == LARGE or stride < CHUNK:  # else a draw of each lane is dealt at a time
        assert lanes == of_one_stage(*corpus, 2)


steps = st.tuples(st.integers(1, 20), st.sampled_from(STRIDES))


@settings(max_examples=8)
@given(
    lengths=st.lists(steps, min_size=2, max_size=5),
    ranks=st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3),
    at=st.lists(st.integers(0, 40), min_size=2, max_size=2).map(sorted),
)
def test_stages_of_any_lengths_read_every_token_once_restored_anywhere_on_any_ranks(
    corpus, lengths, ranks, at
):
    path, chunks = corpus
    spec = staged(*((length * LANES, windows(path, stride)) for length, stride in lengths))
    given, states = {}, None
    for rank, (begin, end) in zip(ranks, pairwise([0, *at, 40]), strict=True):
        loaders = loaders_of(spec, rank, LANES)
        for loader in loaders if states else ():
            loader.restore_state_global(states)
        given |= run(loaders, (end - begin) * LANES // rank)
        states = saved(loaders)
    assert list(given) == list(range(40 * LANES))
    assert_goes_on(streams(given), of_one_stage(path, chunks, lengths[0][1]))


def assert_goes_on(found, expected):
    for lane, own in zip(found, expected, strict=True):
        assert lane
        assert lane[: len(own)] == own[: len(lane)]


def blended(path, stride, weights):
    """Windows of two leaves, whose weights follow the run."""
    parts = [Part(leaf(path, stride, name), weights) for name in "cd"]
    shuffle = Shuffle(buffer_size=3, sequence_length=2, parallel_sequences=2)
    tree = ReferencesSpec(of=BlendSpec(tuple(parts)), shuffle=shuffle, clock=CLOCK)
    return BatchSpec(of=ReadSpec(of=tree), batch_size=3, collate=real)


EDITS = {
    "longer": (lambda path: windows(path, 4), lambda path: windows(path, 24)),
    "shorter": (lambda path: windows(path, 12), lambda path: windows(path, 3, 5)),
    "neither": (lambda path: windows(path, 4), lambda path: windows(path, 6, 1)),
    "weights": (lambda path: blended(path, 2, UP), lambda path: blended(path, 8, DOWN)),
    "stages": (
        lambda path: staged((16, windows(path, 4)), (16, windows(path, 8))),
        lambda path: staged((12, windows(path, 3)), (400, windows(path, 24, 1))),
    ),
    "to stages": (
        lambda path: windows(path, 2, 3),
        lambda path: staged((32, windows(path, 12)), (400, windows(path, 8))),
    ),
}


@pytest.mark.parametrize("rounds", [3, 8])
@pytest.mark.parametrize("edit", EDITS)
def test_after_an_edit_windows_of_another_length_go_on(edit, rounds, tmp_path):
    path = written(tmp_path, LARGE)
    before, after = (make(path) for make in EDITS[edit])
    loaders = loaders_of(before, 2, LANES)
    given = run(loaders, rounds * LANES // 2)
    later = loaders_of(after, 4, LANES)
    for loader in later:
        loader.restore_state_global(saved(loaders), **KEEPING)
    given |= run(later, 6)
    states = saved(later)
    last = loaders_of(after, 1, LANES)
    last[0].restore_state_global(states)
    given |= run(last, 5 * LANES)
    one = windows(path, 2) if edit != "weights" else blended(path, 2, UP)
    whole = run(loaders_of(one, 1, LANES), 100 * LANES)
    for name in "cd" if edit == "weights" else "c":
        assert_goes_on(streams(given, name), streams(whole, name))


def together(samples):
    return list(samples)


def of_packs(packs):
    return real([sample for pack in packs for sample in pack])


def singles_of_seven(drawn):
    """Every third sample of a buffer alone, then the others."""
    return [[sample] for start in (0, 1, 2) for sample in drawn[start::3]]


def packed(path, stride):
    packs = SelectPackSpec(
        of=read(leaf(path, stride)), select=singles_of_seven, pack=together, buffer_size=7
    )
    return BatchSpec(of=packs, batch_size=2, collate=of_packs)


@pytest.mark.parametrize("strides", [(2, 12, 24), (4, 6, 8), (24, 8, 3)])
@pytest.mark.parametrize("length", [4, 9])
def test_windows_that_packing_holds_come_first_in_windows_of_another_length(
    length, strides, tmp_path
):
    path = written(tmp_path, LARGE)
    bodies = [packed(path, stride) for stride in strides[:2]]
    spec = staged(*((length * LANES, of) for of in bodies), (99, windows(path, strides[2], 4)))
    loaders = loaders_of(spec, 2, LANES)
    given = run(loaders, (length + 2) * LANES // 2)
    later = loaders_of(spec, 1, LANES)
    later[0].restore_state_global(saved(loaders))
    given |= run(later, (length + 8) * LANES)
    expected = of_one_stage(path, LARGE, strides[0])
    for lane, own in zip(streams(given), expected, strict=True):
        assert sorted(lane) == sorted(own[: len(lane)])


RUN = """
splits:
  train:
    staged:
      unit: tokens
      stages:
        - {name: short, for: 600K, path: web.bin, dtype: uint32, seq_len: 4096}
        - {name: long, params: {batch_size: 1}, path: web.bin, dtype: uint32, seq_len: 32768}
"""


def start(rank, ranks):
    config = WorkerConfig(rank, ranks, lanes=4)
    facts = {"batch_size": 3, "microbatches_per_step": 4, "worker_config": config}
    return get_loader(get_train_dataset("run.yaml", **facts))


@pytest.mark.parametrize("at", [50, 52, 54], ids=["before", "at", "after"])
def test_a_run_of_4k_and_32k_reads_every_token_of_an_epoch_once(at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    num_tokens = 48 * 32768
    np.arange(num_tokens + 777, dtype=np.uint32).tofile("web.bin")
    Path("run.yaml").write_text(RUN)
    # Each lane has 39 of 96 short windows: 4 chunks and 7/8 of the next one. 7 chunks follow.
    first, later = start(0, 1), [start(rank, 2) for rank in range(2)]
    given = run([first], at)
    for loader in later:
        loader.restore_state_global(saved([first]))
    given |= run(later, (84 - at) // 2)
    counts, lengths = np.zeros(num_tokens, int), []
    for batch in given.values():
        lengths.append(batch["tokens"].shape)
        np.add.at(counts, batch["tokens"][batch["loss_mask"]].numpy(), 1)
    assert lengths == [(3, 4096)] * 52 + [(1, 32768)] * 32
    assert (counts == 1).all()
