"""`staged` in a metadataset: what its bounds mean, and every way in which they can be wrong."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from textwrap import dedent

import pytest
from attrs import evolve, frozen
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split, compile_stream
from energy_data.errors import SpecError
from energy_data.nodes.run_plan import RunPlan
from energy_data.nodes.staged import StagedSpec
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import NumberSource


@dataclass
class Cut(DefaultTaskEncoder):
    """A task encoder with a parameter."""

    seq_len: int = 8

    def __post_init__(self):
        if self.seq_len < 1:
            raise ValueError("a sample has at least one token")


class Made(NumberSource):
    @property
    def fingerprint(self):
        return hashlib.blake2b(self.name.encode(), digest_size=8).hexdigest()


def open_source(path, *, split_part, subset, subflavors, **keys):
    return Made(600, f"{path}:{split_part}")


PIPELINE = StreamBuilder(batch_size=4, task_encoder=Cut(), microbatches_per_step=2)


def compiled(staged, builder=PIPELINE, split="train"):
    text = f"splits:\n  {split}:\n" + "".join(
        f"    {line}\n" for line in dedent(staged).strip().splitlines()
    )
    spec = compile_stream(
        parse_metadataset(text, name="m.yaml"), split, open_source=open_source, builder=builder
    ).spec
    assert isinstance(spec, StagedSpec)
    return spec


def bounds(staged, **facts):
    return [(one.name, one.begin, one.end) for one in compiled(staged, **facts).stages]


def faults(staged, **facts):
    with pytest.raises(SpecError) as caught:
        compiled(staged, **facts)
    return str(caught.value)


def stages(*lines, unit="steps", more=""):
    listed = "".join(f"\n    - {{{line}, path: x}}" for line in lines)
    return f"staged:\n  unit: {unit}\n  {more}\n  stages:{listed}"


@pytest.mark.parametrize(
    ("unit", "first", "second", "expected"),
    [
        ("steps", "end: 5", "for: 5", [(0, 10), (10, 20)]),
        ("steps", "end: 1K", "end: 1.5K", [(0, 2000), (2000, 3000)]),
        ("microbatches", "end: 6", "for: 2", [(0, 6), (6, 8)]),
        ("microbatches", "end: 5", "end: 8", [(0, 6), (6, 8)]),  # whole steps
        ("samples", "end: 24", "end: 30", [(0, 6), (6, 8)]),
        ("samples", "end: 25", "end: 50", [(0, 8), (8, 14)]),  # what is over counts for the next
        ("tokens", "end: 64", "end: 1K", [(0, 2), (2, 32)]),
        ("epochs", "end: 1", "for: 0.5", [(0, 150), (150, 226)]),
    ],
)
def test_bounds_become_micro_batches_in_whole_steps(unit, first, second, expected):
    text = stages(f"name: a, {first}", f"name: b, {second}", "name: c", unit=unit)
    assert bounds(text) == [
        ("a", *expected[0]),
        ("b", *expected[1]),
        ("c", expected[1][1], None),
    ]


def test_batch_size_tokens_and_steps_of_each_stage_count():
    spec = compiled(
        stages(
            "name: a, for: 320",
            "name: b, for: 320, params: {seq_len: 32, batch_size: 1}",
            "name: c, for: 320, params: {microbatches_per_step: 5}",
            "name: d, params: {microbatches_per_step: 3}",
            unit="tokens",
        )
    )
    assert [one.begin for one in spec.stages] == [0, 10, 20, 30]
    assert [one.microbatches_per_step for one in spec.stages] == [2, 2, 5, 3]
    assert [one.params["seq_len"] for one in spec.stages] == [8, 32, 8, 8]
    assert [one.of.batch_size for one in spec.stages] == [4, 1, 4, 4]


def test_an_attrs_task_encoder_has_parameters_too():
    @frozen
    class Coded(DefaultTaskEncoder):
        seq_len: int = 8

    changed = PIPELINE.with_params({"batch_size": 3})
    assert changed.batch_size == 3
    builder = StreamBuilder(batch_size=1, task_encoder=Coded(16)).with_params({"seq_len": 4})
    assert builder.params["seq_len"] == 4


def test_the_order_of_stages_in_the_file_does_not_matter():
    ordered = stages("name: a", "name: b, start: 5", "name: c, start: 9")
    mixed = stages("name: c, start: 9", "name: a, start: 0", "name: b, start: 5")
    assert bounds(ordered) == bounds(mixed) == [("a", 0, 10), ("b", 10, 18), ("c", 18, None)]
    assert compiled(ordered).to_dict() == compiled(mixed).to_dict()


def test_default_fills_the_gap_at_the_front():
    text = stages("name: a, start: 5", more="default: {path: base}")
    assert bounds(text) == [("default", 0, 10), ("a", 10, None)]
    place = "m.yaml:7:28: splits.train.staged.stages[0].start: stage 'a': "
    fault = "no stage covers steps 0 to 5. Begin at 0, or add a `default`"
    assert place + fault in faults(stages("name: a, start: 5"))


WRONG = {
    "8:28: splits.train.staged.stages[1].start: stage 'b': it begins at 7, but stage 'a' ends at "
    "5: no stage covers steps 5 to 7. Close the gap.": ("name: a, end: 5", "name: b, start: 7"),
    "8:28: splits.train.staged.stages[1].start: stage 'b': it begins at 3, but stage 'a' ends "
    "at 5: they overlap. Let one end where the other begins.": (
        "name: a, end: 5",
        "name: b, start: 3",
    ),
    "8:28: splits.train.staged.stages[1].start: stage 'b': it begins at 0, as stage 'a' does. One "
    "of them would never run.": ("name: a, end: 5", "name: b, start: 0"),
    "7:36: splits.train.staged.stages[0].end: stage 'a': it ends at 3, but begins at 5. Let "
    "it end later, or remove it.": ("name: a, start: 5, end: 3", "name: b, start: 0"),
    "7:26: splits.train.staged.stages[0].for: stage 'a': it ends at 0": ("name: a, for: 0",),
    "7:34: splits.train.staged.stages[0].for: stage 'a': both `end` and `for` are given.": (
        "name: a, end: 5, for: 5",
        "name: b",
    ),
    "8:18: splits.train.staged.stages[1].name: stage 'a': an earlier stage has this "
    "name. Choose another.": ("name: a, end: 5", "name: a"),
    "8:18: splits.train.staged.stages[1].name: stage 'b': its beginning is not known": (
        "name: a",
        "name: b",
    ),
    "7:18: splits.train.staged.stages[0].name: must be a name without": ("name: ' '",),
    "7:26: splits.train.staged.stages[0].end: stage 'a': must be whole in steps, found 2.5. Round "
    "it.": (
        "name: a, end: 2.5",
        "name: b",
    ),
    "7:29: splits.train.staged.stages[0].params: stage 'a': unknown parameter 'seq_length'. Did "
    "you mean 'seq_len'?": ("name: a, params: {seq_length: 5}",),
    "7:29: splits.train.staged.stages[0].params: stage 'a': batch_size: must be a whole number >= "
    "1, got 0.": ("name: a, params: {batch_size: 0}",),
    "7:29: splits.train.staged.stages[0].params: stage 'a': the task encoder does not take "
    "seq_len=0: a sample has at least one token.": ("name: a, params: {seq_len: 0}",),
    "8:62: splits.train.staged.stages[1]: staged: leaf 'x:train' is shuffled differently in "
    "the stages 'a' and 'b'": ("name: a, end: 5", "name: b, params: {shuffle_buffer_size: 50}"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_with_a_stage_is_told_with_its_place(fault):
    assert fault in faults(stages(*WRONG[fault]))


def test_a_leaf_that_cannot_go_on_is_told_with_its_own_place_in_the_later_stage():
    line = "name: b, params: {shuffle_buffer_size: 5}, blend: [{path: x}, {path: y}]"
    text = f"staged: {{stages: [{{name: a, end: 5, path: y}}, {{{line}}}]}}"
    assert "m.yaml:3:121: splits.train.staged.stages[1].blend[1]: staged: leaf 'y:" in faults(text)


def test_all_faults_of_the_stages_are_told_at_once():
    text = stages("name: a, end: 5, for: 2", "name: a, start: 9", "name: c, start: 4, end: 4")
    told = faults(text).splitlines()
    assert len(told) >= 4
    assert all(line.startswith("m.yaml:") for line in told)


def test_the_end_of_the_run_may_be_said_and_is_checked():
    last = stages("name: a, end: 5", "name: b, for: 5", more="total: 20")
    assert "stage 'b': it is the last and ends at 10, but the run at 20. Remove its end." in faults(
        last
    )
    never = stages("name: a, end: 20", "name: b", more="total: 20")
    assert "stage 'b': it would never run, the run ends at 20 steps." in faults(never)
    assert bounds(stages("name: a, end: 5", "name: b, for: 50", more="total: 20"))


def test_steps_need_to_know_what_a_step_is_and_tokens_what_a_sample_has():
    plain = StreamBuilder(batch_size=4, task_encoder=DefaultTaskEncoder())
    text = stages("name: a, end: 5", "name: b")
    assert (
        "m.yaml:7:26: splits.train.staged.stages[0].end: stage 'a': the number of micro-batches "
        "in a step is not known" in faults(text, builder=plain)
    )
    said = stages("name: a, end: 5, params: {microbatches_per_step: 3}", "name: b")
    assert bounds(said, builder=plain)[0] == ("a", 0, 15)
    tokens = stages("name: a, end: 5", "name: b", unit="tokens")
    assert "the number of tokens in a sample is not known" in faults(tokens, builder=plain)


def test_stages_stand_above_all_that_mixes_and_are_for_streams_without_end():
    inner = "blend:\n  - staged:\n      stages: [{name: a, path: x}]"
    assert "m.yaml:4:9: splits.train.blend[0]: `staged` must be the outermost" in faults(inner)
    nested = "staged:\n  stages:\n    - name: a\n      staged: {stages: [{name: b, path: x}]}"
    told = faults(nested)
    assert "m.yaml:5:11: splits.train.staged.stages[0]: `staged` must be the outermost node" in told
    finite = StreamBuilder(batch_size=4, task_encoder=Cut(), finite=True)
    assert "stages need an endless stream. Remove `repeat=False`." in faults(
        stages("name: a"), builder=finite
    )


@pytest.mark.parametrize("value", ["abc", "[1, 2]", "1.5", "true"])
def test_tokens_of_a_sample_are_a_whole_number(value):
    @dataclass
    class Any(DefaultTaskEncoder):
        seq_len: object = 8

    text = stages(f"name: a, end: 64, params: {{seq_len: {value}}}", "name: b", unit="tokens")
    told = faults(text, builder=evolve(PIPELINE, task_encoder=Any()))
    place = "m.yaml:7:38: splits.train.staged.stages[0].params: stage 'a': seq_len: "
    assert f"{place}must be a whole number >= 1 to count tokens, got " in told


def test_validation_has_a_mixture_of_its_own():
    text = "{stages: [{name: a, end: 5, path: x}, {name: b, path: y}]}"
    meta = parse_metadataset(f"splits: {{val: {{staged: {text}}}}}", name="m.yaml")
    with pytest.raises(SpecError, match=r"for training\. .*give validation a mixture of its own"):
        compile_split(meta, "val", open_source=open_source)


def test_one_id_is_one_dataset_over_all_stages():
    text = "staged: {stages: [{name: a, end: 5, path: x, id: one}, {name: b, path: y, id: one}]}"
    assert "the id 'one' stands for two different datasets" in faults(text)


SHUFFLED = "{name: b, path: x, shuffle_over_epochs_multiplier: 3}"


def test_a_dataset_that_is_shuffled_over_other_epochs_in_a_later_stage_does_not_begin_anew():
    told = faults("staged: {stages: [{name: a, end: 5, path: x}, " + SHUFFLED + "]}")
    assert told.startswith(
        "m.yaml:3:102: splits.train.staged.stages[1]: x: its shuffle_over_epochs"
    )
    assert "is 3 here, and 1 in stage 'a' at m.yaml:3:23, so the dataset would start again" in told
    inside = "{name: b, blend: [{path: y}, {path: x, shuffle_over_epochs_multiplier: null}]}"
    told = faults("staged: {stages: [{name: a, end: 5, path: x, id: one}, " + inside + "]}")
    assert "x: its shuffle_over_epochs_multiplier is null here, and 1 in stage 'a'" in told


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        (", columns: [n]", ", columns: [n, m]", "columns is [n, m] here, and [n] in stage 'a'"),
        ("", ", columns: [n]", "columns is [n] here, and null in stage 'a'"),
        (", seq_len: 4", ", seq_len: 8, cu_seqlens: true", "cu_seqlens is true here, and null in"),
    ],
)
def test_a_dataset_of_which_a_later_stage_reads_other_fields_does_not_begin_anew(
    first, second, problem
):
    stages = "staged: {{stages: [{{name: a, end: 5, path: x{}}}, {{name: b, path: x{}}}]}}"
    told = faults(stages.format(first, second))
    assert f"x: its {problem}" in told
    assert "so the dataset would start again. Make them equal, or give it another `id:`" in told
    compiled(stages.format(f"{first}, id: one", f"{second}, id: two"))
    compiled(stages.format(first, f"{second}, on_enter: restart"))


@pytest.mark.parametrize(
    "second",
    [
        SHUFFLED.replace("path", "on_enter: restart, path"),
        SHUFFLED.replace("}", ", id: other}"),
        SHUFFLED.replace("path: x", "path: x, subset: {range: [0%, 50%]}"),
        SHUFFLED.replace("3", "1"),
    ],
)
def test_it_may_where_that_is_said(second):
    bounds("staged: {stages: [{name: a, end: 5, path: x, id: one}, " + second + "]}")


def test_stages_are_what_is_written():
    lines = "name: a, end: 10, on_enter: restart", "name: c, seed: 3, params: {seq_len: 4}"
    spec = compiled(stages(*lines, more="resume: ablation"))
    assert spec.resume == "ablation"
    assert [(one.on_enter, one.seed) for one in spec.stages] == [("restart", None), ("continue", 3)]
    assert [one.params["seq_len"] for one in spec.stages] == [8, 4]


def test_the_plan_says_when_a_stage_is_and_how_large():
    plan = RunPlan(
        compiled(stages("name: a, end: 5", "name: b, for: 10, params: {seq_len: 32}", "name: c"))
    )
    assert [plan.stage_at(step).name for step in (0, 4, 5, 14, 15, 10**9)] == list("aabbcc")
    assert [plan.number_of(g) for g in (9, 10, 29, 30)] == [0, 1, 1, 2]
    assert plan.max_param("seq_len") == 32
    with pytest.raises(KeyError):
        plan.max_param("rope")
    with pytest.raises(ValueError, match="must be >= 0"):
        plan.stage_at(-1)
    second = plan.stages[1]
    assert (second.num_steps, second.num_batches) == (10, 20)
    assert (second.num_samples, second.num_tokens) == (80, 2560)
    assert plan.leaves[1][0].epochs == pytest.approx(80 / 600)
    ended = RunPlan(compiled(stages("name: a, end: 5")))
    assert ended.stage_at(5) is None


def test_a_run_without_stages_is_one_stage_named_default():
    meta = parse_metadataset("splits: {train: {path: x}}")
    spec = compile_stream(meta, "train", open_source=open_source, builder=PIPELINE).spec
    (only,) = RunPlan(spec).stages
    assert (only.name, only.num_batches) == ("default", None)
