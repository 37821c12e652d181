"""Ramps between stages: the mixture before fades out, sample by sample."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

import pytest
from loading.runs import loaders_of, run

from energy_data.config.compile import compile_stream
from energy_data.config.load import load
from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import NumberSource

SIZES = {"a": 3000, "b": 700, "c": 400}
BEFORE = {"name": "one", "end": 20, "blend": [{"path": "a", "weight": 3}, {"path": "b"}]}
AFTER = {"name": "two", "for": 60, "blend": [{"path": "a"}, {"path": "c", "weight": 3}]}
RAMP = {"over": 30}


def opened(path, *, split_part, subset, subflavors):
    name = path.rsplit("/", 1)[-1]
    return NumberSource(SIZES[name], name)


def staged(*stages, **keys):
    data = {"splits": {"train": {"staged": {"stages": list(stages), **keys}}}}
    return load(data)


def stream(*stages, batch_size=5, **keys):
    builder = StreamBuilder(
        batch_size=batch_size, task_encoder=DefaultTaskEncoder(), microbatches_per_step=4
    )
    return compile_stream(
        staged(*stages, **keys),
        "train",
        open_source=opened,
        builder=builder,
        run=Context(lanes=4),
    ).spec


def drawn(spec, ranks=1, rounds=320):
    """Return the keys of the samples of each micro-batch."""
    batches = run(loaders_of(spec, ranks, lanes=4), rounds)
    return {g: batch["__key__"] for g, batch in batches.items()}


def shares(batches, steps):
    keys = [key[0] for g in range(4 * steps.start, 4 * steps.stop) for key in batches[g]]
    return {name: count / len(keys) for name, count in Counter(keys).items()}


def test_the_mixture_before_fades_into_the_one_after():
    batches = drawn(stream(BEFORE, {**AFTER, "ramp": RAMP}))
    assert shares(batches, range(20)) == pytest.approx({"a": 3 / 4, "b": 1 / 4}, abs=0.02)
    middle = shares(batches, range(30, 40))  # f is 1/2 in the middle of it
    assert middle == pytest.approx({"a": 1 / 2, "b": 1 / 8, "c": 3 / 8}, abs=0.03)
    assert shares(batches, range(50, 80)) == pytest.approx({"a": 1 / 4, "c": 3 / 4}, abs=0.02)
    early, late = shares(batches, range(20, 25)), shares(batches, range(45, 50))
    assert early["c"] < 0.1 < 0.6 < late["c"]


def test_over_a_whole_ramp_each_leaf_has_the_mean_of_both():
    batches = drawn(stream(BEFORE, {**AFTER, "ramp": {"kind": "cosine", "over": 60}}))
    whole = shares(batches, range(20, 80))
    assert whole == pytest.approx({"a": 1 / 2, "b": 1 / 8, "c": 3 / 8}, abs=0.01)


def test_leaves_go_on_through_a_ramp_without_a_repeat():
    batches = drawn(stream(BEFORE, {**AFTER, "ramp": RAMP}))
    for name, size in SIZES.items():
        keys = [key for g in batches for key in batches[g] if key[0] == name]
        assert len(set(keys[: size - 8])) == len(keys[: size - 8])


def test_a_ramp_is_the_same_on_any_ranks_and_restored_at_any_place():
    spec = stream(BEFORE, {**AFTER, "ramp": RAMP})
    expected = drawn(spec)
    for rounds in (19, 40, 47, 60, 99, 101):
        loaders = loaders_of(spec, 2, lanes=4)
        run(loaders, rounds)
        states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
        others = loaders_of(spec, 4, lanes=4)
        for loader in others:
            loader.restore_state_global(states)
        for g, batch in run(others, 10).items():
            assert batch["__key__"] == expected[g]


@pytest.mark.parametrize("steps", [21, 35, 49, 60])
def test_weights_go_on_at_their_place_in_the_run_after_an_edit_behind_it(steps):
    loaders = loaders_of(stream(BEFORE, {**AFTER, "ramp": RAMP}), 1, lanes=4)
    batches = {g: batch["__key__"] for g, batch in run(loaders, 4 * steps).items()}
    state = json.loads(json.dumps(loaders[0].state_dict()))
    renamed = {**AFTER, "ramp": RAMP, "name": "another"}
    (loader,) = loaders_of(stream(BEFORE, renamed), 1, lanes=4)
    loader.load_state_dict(state, on_mismatch="keep_matching")
    batches |= {g: batch["__key__"] for g, batch in run([loader], 320 - 4 * steps).items()}
    assert shares(batches, range(20, 50))["b"] == pytest.approx(1 / 8, abs=0.01)
    assert all(key[0] in "ac" for g in range(200, 320) for key in batches[g]), "the ramp has ended"
    for name, size in SIZES.items():
        keys = [key for g in sorted(batches) for key in batches[g] if key[0] == name]
        assert len(set(keys[: size - 8])) == len(keys[: size - 8]), "nothing comes twice"
        assert len(keys) < size or len(set(keys[: size + 8])) == size, "nothing is left out"


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ([{**BEFORE, "ramp": RAMP}, AFTER], "the first stage has no stage before it to ramp from"),
        ([BEFORE, {**AFTER, "ramp": {"over": 61}}], "takes 244 micro-batches, the stage has 240"),
        ([BEFORE, {**AFTER, "ramp": {"over": 0}}], "the ramp has no length"),
        ([BEFORE, {**AFTER, "ramp": RAMP, "on_enter": "restart"}], "`on_enter: continue`"),
        (
            [BEFORE, {**AFTER, "ramp": RAMP, "params": {"batch_size": 2}}],
            "a ramp blends samples of both stages within a batch, and batch_size differ",
        ),
        (
            [{"name": "one", "end": 20, "blend": [{"path": "a", "weight": {"step": {0: 1}}}]},
             {**AFTER, "ramp": RAMP}],
            "the weights of the stage before change over the run",
        ),
        (
            [{"name": "one", "on_exhausted": "advance", "path": "b"}, {**AFTER, "ramp": RAMP}],
            "the stage before ends with its data and has none left for the ramp",
        ),
    ],
)  # fmt: skip
def test_a_ramp_that_cannot_be_is_refused_with_its_place(stages, problem):
    with pytest.raises(SpecError, match=problem) as caught:
        stream(*stages)
    (fault,) = caught.value.faults
    assert "].ramp: stage" in fault


@dataclass
class Cut(DefaultTaskEncoder):
    seq_len: int | None = 8


@pytest.mark.parametrize(
    ("unit", "first", "last", "problem"),
    [
        ("tokens", {}, {"seq_len": None}, "the number of tokens in a sample is not known"),
        ("steps", {"microbatches_per_step": 4}, {}, "the number of micro-batches in a step is not"),
    ],
)
def test_a_ramp_into_the_last_stage_needs_to_know_its_unit_too(unit, first, last, problem):
    stages = (
        {"name": "one", "end": 400, "path": "b", "params": first},
        {"name": "two", "path": "a", "ramp": {"over": 30}, "params": last},
    )
    with pytest.raises(SpecError, match=problem) as caught:
        compile_stream(
            staged(*stages, unit=unit),
            "train",
            open_source=opened,
            builder=StreamBuilder(batch_size=5, task_encoder=Cut()),
        )
    assert "stage 'two'" in str(caught.value)
