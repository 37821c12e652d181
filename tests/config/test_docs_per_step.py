"""`docs_per_step` in a metadataset: at the top of a split, and nowhere else."""

from __future__ import annotations

import pytest
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split, compile_stream, steps_of
from energy_data.config.load import load
from energy_data.errors import SpecError
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder


def parsed(node):
    return parse_metadataset(f"splits:\n  train: {node}\n", name="m.yaml")


def test_it_says_the_same_as_in_python():
    said = "{target: [[0, 64], [9, 256]], mode: exact, shares: 4, timeout_s: 2, of: {path: x}}"
    rules = DocsPerStep(target=[[0, 64], [9, 256]], mode="exact", shares=4, timeout_s=2)
    assert steps_of(parsed(f"{{docs_per_step: {said}}}"), "train") == rules
    assert steps_of(parsed("{path: x}"), "train") is None


def test_the_tree_below_is_that_without_it(datasets):
    node = "{blend: [{path: a, weight: 3}, {path: b}]}"
    with_steps = parsed(f"{{docs_per_step: {{target: 5, of: {node}}}}}")
    assert compile_split(with_steps, "train", open_source=datasets) == compile_split(
        parsed(node), "train", open_source=datasets
    )


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        (
            "{blend: [{docs_per_step: {target: 5, of: {path: x}}}]}",
            "m.yaml:2:20: splits.train.blend[0]: must have `path`, ",
        ),
        (
            "{docs_per_step: {target: 5, mode: exact, count: tokens, of: {path: x}}}",
            "m.yaml:2:26: splits.train.docs_per_step: mode 'exact' counts 'documents' or 'groups', "
            "got count 'tokens'. Use mode 'at_least'.",
        ),
        (
            "{docs_per_step: {target: 0, of: {path: x}}}",
            "m.yaml:2:35: splits.train.docs_per_step.target: must be a whole number >= 1, or pairs "
            "[step, number from then on], found the number 0. Write it like `target: [[0, 64], "
            "[1000, 256]]`.",
        ),
        (
            "{docs_per_step: {target: [[3, 5]], of: {path: x}}}",
            "m.yaml:2:26: splits.train.docs_per_step: target must be a number >= 1, or pairs",
        ),
        (
            "{docs_per_step: {taget: 5, of: {path: x}}}",
            "m.yaml:2:27: splits.train.docs_per_step: unknown key 'taget'. Did you mean 'target'?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(node, fault):
    with pytest.raises(SpecError) as caught:
        parsed(node)
    assert str(caught.value).startswith(fault)


def test_inside_a_split_it_says_where_to_put_it():
    with pytest.raises(
        SpecError, match=r"found 'docs_per_step'\. It groups .* over all of the split"
    ):
        parsed("{blend: [{docs_per_step: {target: 5, of: {path: x}}}]}")


def test_a_file_with_steps_may_be_the_whole_of_a_split_but_no_part_of_it(tmp_path, datasets):
    (tmp_path / "steps.yaml").write_text(
        "splits: {train: {docs_per_step: {target: 5, of: {path: x}}}}"
    )
    (tmp_path / "whole.yaml").write_text("splits: {train: {path: steps.yaml}}")
    (tmp_path / "part.yaml").write_text("splits: {train: {blend: [{path: steps.yaml}]}}")
    whole = load(tmp_path / "whole.yaml")
    assert steps_of(whole, "train") == DocsPerStep(target=5)
    compile_split(whole, "train", open_source=datasets)
    with pytest.raises(
        SpecError, match=r"steps.yaml:1:33: .*must be all of a split, found its file"
    ):
        compile_split(load(tmp_path / "part.yaml"), "train", open_source=datasets)


def stages(text, datasets, **facts):
    builder = StreamBuilder(batch_size=4, task_encoder=DefaultTaskEncoder(), **facts)
    metadataset = parse_metadataset(text, name="m.yaml")
    spec = compile_stream(metadataset, "train", open_source=datasets, builder=builder).spec
    return spec.stages


OVER = """
splits:
  train:
    docs_per_step:
      target: 8
      mode: MODE
      of:
        staged: {unit: UNIT, stages: [{name: a, end: 4, path: x}, {name: b, path: y}]}
"""


@pytest.mark.parametrize(
    ("mode", "unit", "per_step", "expected"),
    [
        ("exact", "steps", None, ("steps", 4)),
        ("exact", "steps", 6, ("steps", 4)),
        ("at_least", "steps", None, ("steps", 4)),
        ("at_least", "steps", 6, ("microbatches", 24)),
        ("at_least", "microbatches", None, ("microbatches", 4)),
    ],
)
def test_below_one_rule_stages_count_its_steps_where_nothing_else_is_a_step(
    datasets, mode, unit, per_step, expected
):
    text = OVER.replace("MODE", mode).replace("UNIT", unit)
    first = stages(text, datasets, microbatches_per_step=per_step)[0]
    assert (first.counts, first.end) == expected


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            "blend: [{path: x, weight: {linear: {0: 1, 9: 5}}}, {path: y}]",
            "stage 'b': weights that change follow the micro-batches of the run, and",
        ),
        (
            "path: y, ramp: {over: 1}",
            "stage 'b': a ramp follows the micro-batches of the run, and where",
        ),
        (
            "path: y, for: 1, on_exhausted: advance",
            "the length of a stage of steps of any size is not known in advance",
        ),
        (
            "docs_per_step: {target: 3, of: {path: y}}",
            "must have `path`, ",
        ),
    ],
)
def test_what_cannot_be_of_stages_that_count_steps_is_said_with_its_place(datasets, stage, message):
    text = OVER.replace("MODE", "at_least").replace("UNIT", "steps")
    with pytest.raises(SpecError) as caught:
        stages(text.replace("{name: b, path: y}", f"{{name: b, {stage}}}"), datasets)
    assert message in str(caught.value)
    assert "m.yaml:" in str(caught.value)
