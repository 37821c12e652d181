"""Stages that end with their data: where, what is left, and what cannot be known."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass
from itertools import islice

import pytest
from loading.runs import in_order, loaders_of, run
from loading.workers import worker_loader
from trees import batches, leaf, packs, samples
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_stream
from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.packing import Packing
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.run_plan import RunPlan
from energy_data.nodes.stage import DataEnd, Stage, with_data_end
from energy_data.nodes.staged import StagedSpec
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import NumberSource

LANES = 6
SIZES = {"x": 103, "y": 61, "z": 400}
PIPELINE = StreamBuilder(batch_size=4, task_encoder=DefaultTaskEncoder(), microbatches_per_step=4)


def opened(path, *, split_part, subset, subflavors):
    name = path.rsplit("/", 1)[-1]
    return NumberSource(SIZES[name], name)


def compiled(*stages, lanes=LANES, builder=PIPELINE, seed=0, **facts):
    keys = "".join(f"{name}: {value}, " for name, value in facts.items())
    text = f"splits: {{train: {{staged: {{{keys}stages: [{', '.join(stages)}]}}}}}}"
    return compile_stream(
        parse_metadataset(text, name="m.yaml"),
        "train",
        open_source=opened,
        builder=builder,
        run=lanes and Context(seed=seed, lanes=lanes),
    ).spec


def bounds(*stages, **facts):
    return [(one.begin, one.end) for one in compiled(*stages, **facts).stages]


def faults(*stages, **facts):
    with pytest.raises(SpecError) as caught:
        compiled(*stages, **facts)
    return str(caught.value)


FIRST = "{name: a, on_exhausted: advance, path: x}"
THEN = "{name: b, path: z}"


def told(given):
    """What identifies a batch: its samples and its stage."""
    return [(tuple(batch["__key__"]), batch["__stage__"]) for batch in given]


def keys_of(given):
    return [key for batch in given for key in batch["__key__"]]


@pytest.mark.parametrize("lanes", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_ends_before_the_first_step_for_which_a_lane_has_not_enough_left(lanes, seed):
    spec = compiled(FIRST, THEN, lanes=lanes, seed=seed)
    end = spec.stages[0].end
    given = keys_of(run(loaders_of(spec, 1, lanes=lanes, seed=seed), end).values())
    assert len(set(given)) == len(given) == 4 * end
    assert end % 4 == 0
    batches_of_lane = Counter(g % lanes for g in range(end + 4))
    assert 4 * max(batches_of_lane.values()) > 103 // lanes  # one step more, and a lane lacks some
    assert spec.stages[0].data_end == DataEnd(asked=None, unread=103 - 4 * end)


def test_every_sample_left_comes_first_when_its_dataset_is_read_again():
    spec = compiled(FIRST, "{name: b, for: 3, path: y}", "{name: c, path: x}")
    (first, second, _), given = spec.stages, run(loaders_of(spec, 1, lanes=LANES), 60)
    before = keys_of(given[g] for g in range(first.end))
    left = {f"x/{n}" for n in range(103)} - set(before)
    assert len(left) == first.data_end.unread > 0
    of_lane = [range(second.end + (n - second.end) % LANES, 60, LANES) for n in range(LANES)]
    again = [keys_of(given[g] for g in lane) for lane in of_lane]
    # Lane by lane: what it had left, and nothing that it had already, before anything else.
    firsts = [[key for key in keys if key in left] for keys in again]
    assert sorted(key for keys in firsts for key in keys) == sorted(left)
    assert all(keys[: len(own)] == own for keys, own in zip(again, firsts, strict=True))


def test_the_end_that_was_asked_for_holds_if_it_comes_first():
    assert bounds("{name: a, end: 3, on_exhausted: advance, path: x}", THEN)[0] == (0, 12)
    late = compiled("{name: a, end: 9, on_exhausted: advance, path: x}", THEN).stages[0]
    assert late.end == 24
    assert late.data_end == DataEnd(asked=36, unread=103 - 96)


@pytest.mark.parametrize(
    ("unit", "second", "expected"),
    [
        ("steps", "for: 5", (24, 44)),
        ("steps", "end: 10", (24, 40)),
        ("microbatches", "for: 5", (24, 32)),
        ("samples", "for: 40", (24, 36)),  # 10 micro-batches, whole steps
        ("samples", "end: 150", (24, 40)),
        ("epochs", "for: 0.5", (24, 76)),
    ],
)
def test_later_stages_keep_their_length_or_their_end(unit, second, expected):
    stages = [FIRST, f"{{name: b, {second}, path: z}}", "{name: c, path: y}"]
    assert bounds(*stages, unit=unit)[1:] == [expected, (expected[1], None)]


@pytest.mark.parametrize(("second", "expected"), [("for: 5", (24, 44)), ("end: 10", (24, 40))])
def test_so_they_do_if_the_stage_had_an_end_that_came_too_late(second, expected):
    first = FIRST.replace("path", "end: 9, path")
    stages = [first, f"{{name: b, {second}, path: z}}", "{name: c, path: y}"]
    assert bounds(*stages)[1:] == [expected, (expected[1], None)]


def test_all_that_is_played_in_passes_may_end():
    first = "{{name: a, on_exhausted: advance, {}}}"
    for node, samples_of_pass in (
        ("concat: [{path: x}, {path: y}]", 164),
        ("blend_epochized: [{path: x, repetitions: 2}, {path: y}]", 267),
        ("repeat: {times: 2, of: {path: x}}", 206),
        ("epochize: {length: 90, of: {blend: [{path: x}, {path: y}]}}", 90),
    ):
        stage = compiled(first.format(node), THEN).stages[0]
        assert samples_of_pass - stage.data_end.unread == 4 * stage.end
        assert 0 <= stage.data_end.unread < 4 * LANES + 16


def test_a_run_whose_last_stage_ends_with_its_data_ends_there():
    spec = compiled(FIRST)
    loaders = loaders_of(spec, 2, lanes=LANES)
    assert len(in_order(loaders)) == 24
    assert [list(loader) for loader in loaders] == [[], []]


ENDING = [
    "{name: a, end: 9, on_exhausted: advance, path: x}",
    "{name: b, for: 2, blend: [{path: x}, {path: y}]}",
    "{name: c, path: x}",
]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_saved_before_at_and_after_such_an_end_it_goes_on_on_any_ranks_and_workers(ranks, workers):
    spec = compiled(*ENDING)
    expected = told(in_order(loaders_of(spec, 1, lanes=LANES), 44))
    options = {"start_method": "fork"} if workers else {}
    for rank in range(ranks):
        loader = worker_loader(spec, workers, rank, ranks, lanes=LANES, **options)
        try:
            stream, states = iter(loader), []
            for g in range(rank, 44, ranks):
                states.append(json.loads(json.dumps(loader.state_dict())))
                assert told([next(stream)]) == [expected[g]]
            for g in (20, 22, 24, 26, 32, 34):
                loader.load_state_dict(states[g // ranks])
                given = islice(loader, 10 // ranks)
                assert told(given) == expected[g + rank : g + 10 : ranks]
        finally:
            loader.close()


def test_a_state_of_it_fits_the_same_end_written_out_and_the_other_way_round():
    one = compiled(*ENDING)
    other = compiled(ENDING[0].replace("end: 9, on_exhausted: advance", "end: 6"), *ENDING[1:])
    for saving, restoring in ((one, other), (other, one)):
        (first,), (second,) = (loaders_of(spec, 1, lanes=LANES) for spec in (saving, restoring))
        in_order([first], 27)
        second.load_state_dict(first.state_dict())
        assert told(in_order([second], 9)) == told(in_order([first], 9))


UNKNOWN = {
    "a blend never ends, because its children start again one by one. Put it into an "
    "`epochize`": "blend: [{path: x}, {path: y}]",
    "a mix never ends": "mix: {parts: [{path: x}, {path: y}]}",
    "its data does not fill one step: of 40 micro-batches, only 25 are full": (
        "path: x, params: {microbatches_per_step: 40}"
    ),
}


@pytest.mark.parametrize("problem", UNKNOWN)
@pytest.mark.parametrize("rule", ["advance", "error"])
def test_what_has_no_end_that_is_known_is_refused_with_its_place(problem, rule):
    told = faults(f"{{name: a, end: 50, on_exhausted: {rule}, {UNKNOWN[problem]}}}", THEN)
    assert told.startswith("m.yaml:1:")
    assert f"stage 'a': `on_exhausted: {rule}`: {problem}" in told
    assert "Or write `on_exhausted: repeat`." in told


@dataclass
class Packs(DefaultTaskEncoder):
    @property
    def packing(self):
        return Packing(lengths=len, pack=list, limits={"tokens": 4})


def test_packs_are_refused_as_only_running_them_tells_their_number():
    packing = StreamBuilder(batch_size=4, task_encoder=Packs(), microbatches_per_step=4)
    told = faults(FIRST, THEN, builder=packing)
    assert "the number of items of a pack is known only after it has run" in told


def test_the_number_of_lanes_must_be_known():
    told = faults(FIRST, THEN, lanes=None)
    assert "depends on the number of lanes, which is not known. Pass WorkerConfig(" in told


def test_a_stage_that_lasts_longer_than_its_data_may_be_an_error():
    stage = "{{name: a, end: {}, on_exhausted: error, path: x}}"
    assert bounds(stage.format(6), THEN)[0] == (0, 24)
    told = faults(stage.format(7), THEN)
    assert (
        "stage 'a': its data ends at micro-batch 24 of the run, and it lasts until 28 (`on" in told
    )
    told = faults(THEN.replace("path", "end: 2, path"), "{name: a, on_exhausted: error, path: x}")
    assert "it lasts until the end" in told


def test_a_start_that_would_not_hold_is_refused():
    told = faults(
        "{name: a, end: 9, on_exhausted: advance, path: x}", "{name: b, start: 9, path: z}"
    )
    assert "stage 'b': it cannot begin at its `start`" in told


def test_the_plan_and_the_log_say_what_was_asked_and_what_is_left(caplog):
    spec = compiled(*ENDING)
    lines = list(RunPlan(spec).lines())
    said = (
        "ends with its data, before micro-batch 36 that was asked for; 7 of their samples are left"
    )
    assert (
        f"  {said[0].upper()}{said[1:]} and come first when their datasets are read again" in lines
    )
    assert "  Steps: 0 -> 6 (6), asked for an end at 9 steps" in lines
    with caplog.at_level(logging.INFO, "energy_data.loading.reports"):
        in_order(loaders_of(spec, 1, lanes=LANES), 26)
    switch = caplog.text.partition("STAGE TRANSITION")[2]
    assert f"'a' {said}" in switch


def stage(of, **facts):
    return Stage(**{"name": "a", "of": of, "begin": 0, "microbatches_per_step": 2, **facts})


def test_stages_made_in_python_may_end_so_too():
    x, y, run = batches(samples(leaf("x", 40))), batches(samples(leaf("y", 50))), Context(lanes=4)
    first = with_data_end(stage(x, end=40), run)
    second = with_data_end(stage(y, name="b", begin=12, end=16), run)
    made = (first, second, with_data_end(stage(x, name="c", begin=16), run))
    assert [(one.begin, one.end) for one in made] == [(0, 12), (12, 16), (16, 28)]
    assert len(in_order(loaders_of(StagedSpec(stages=made), 2, lanes=4))) == 28
    assert with_data_end(stage(LimitSpec(of=y, length=9)), run).end == 8


@pytest.mark.parametrize(
    "of", [FilterSpec(of=samples(leaf("x")), predicate=bool), packs(samples(leaf("x")))]
)
def test_what_leaves_samples_out_has_no_end_that_is_known(of):
    with pytest.raises(SpecError, match=r"the number of items of a (filter|pack) is known"):
        with_data_end(stage(batches(of)), Context(lanes=4))
