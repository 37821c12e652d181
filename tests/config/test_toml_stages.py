"""A trainer's TOML with data stages: what is wrong with it, and the metadataset that it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from yaml_text import parse_metadataset

from energy_data.cli.plan import AnyTask
from energy_data.config.compile import compile_stream
from energy_data.config.load import load
from energy_data.config.toml_metadataset import metadataset_text
from energy_data.config.toml_stages import read_run
from energy_data.errors import SpecError
from energy_data.nodes.run_plan import RunPlan
from energy_data.tasks.mixture import StreamBuilder

METADATASETS = Path(__file__).parents[2] / "metadatasets"
TYPES = ["huggingface", "nanoset", "preprocessed", "packed_memmap"]
WINDOW = {"seq_len": 9, "stride": 8}


def table(**fields):
    """Return the lines of a table: the fields, and a nanoset where they do not say otherwise."""
    data = {"dataset_type": "nanoset", "dataset_folders": ["a"], "seq_len": 8, **fields}
    return [f"{name} = {_toml(value)}" for name, value in data.items() if value is not None]


def _toml(value):
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(one):08x}" for one in value) + '"'
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list | tuple) else repr(value)


def toml(*stages, **training):
    """Return the text of a TOML. stages: the fields of each that differ from `table`."""
    lines = ["[training]", *(f"{name} = {_toml(value)}" for name, value in training.items())]
    for stage in stages:
        lines += ["[[training.data_stages]]", *table(**stage)]
    return "\n".join(lines)


def imported(text, folder="."):
    """Return the metadataset of a TOML, as YAML."""
    Path("run.toml").write_text(text, encoding="utf-8")
    return metadataset_text(read_run("run.toml"), "run.toml", folder)


def faults(text):
    with pytest.raises(SpecError) as caught:
        imported(text)
    return [fault.removeprefix("run.toml: ") for fault in caught.value.faults]


def train(text, **options):
    """Return what a TOML becomes, as plain data."""
    return yaml.safe_load(imported(text, **options))["splits"]["train"]


def stages_of(text):
    return train(text)["staged"]["stages"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


A, B = {"name": "a", "start_step": 0}, {"name": "b", "start_step": 5}

WRONG = {
    # Required fields
    "training.data_stages[0]: the key 'name' is missing": [{"start_step": 0}],
    "training.data_stages[0]: the key 'start_step' is missing": [{"name": "a"}],
    "training.data_stages[0]: the key 'dataset_type' is missing": [{**A, "dataset_type": None}],
    "training.data_stages[0]: the key 'seq_len' is missing": [{**A, "seq_len": None}],
    # Sources of data
    "training.data_stages[0].dataset: `huggingface` needs a dataset. Add its name, as `dataset`.": [
        {**A, "dataset_type": "huggingface"}
    ],
    "training.data_stages[0].dataset: must be text, not blank, found the text '  '.": [
        {**A, "dataset_type": "huggingface", "dataset": "  "}
    ],
    "training.data_stages[0].dataset_folders: a nanoset needs folders. Add": [
        {**A, "dataset_folders": []}
    ],
    "training.data_stages[0].dataset_folders: must be a list of folders, none of them blank, "
    "found [a, ' ']": [{**A, "dataset_folders": ["a", " "]}],
    "training.data_stages[0].dataset: `preprocessed` needs a dataset. Add `dataset` or": [
        {**A, "dataset_type": "preprocessed"}
    ],
    "training.data_stages[0].dataset_path: `packed_memmap` needs a path, which the trainer has": [
        {**A, "dataset_type": "packed_memmap", "dataset": "default"}
    ],
    "training.data_stages[0].dataset_type: must be 'huggingface', 'nanoset', 'preprocessed' or "
    "'packed_memmap', found the text 'nanosets'. Did you mean 'nanoset'?": [
        {**A, "dataset_type": "nanosets"}
    ],
    # Weights
    "[0].dataset_weights: there must be one weight per folder, found 1 for 2.": [
        {**A, "dataset_folders": ["a", "b"], "dataset_weights": [1.0]}
    ],
    "[0].dataset_weights: must be a list of numbers from 0 to 1 whose sum is 1, found [0.5, 0.4]. "
    "Their sum is 0.9.": [{**A, "dataset_folders": ["a", "b"], "dataset_weights": [0.5, 0.4]}],
    "[0].dataset_weights: must be a list of numbers from 0 to 1 whose sum is 1, found [-0.5": [
        {**A, "dataset_folders": ["a", "b"], "dataset_weights": [-0.5, 1.5]}
    ],
    "[0].dataset_weights: must be a list of numbers from 0 to 1 whose sum is 1, found [.nan]": [
        {**A, "dataset_weights": [float("nan")]}
    ],
    "[0].dataset_weights: must be a list of numbers from 0 to 1 whose sum is 1, found []": [
        {**A, "dataset_weights": []}
    ],
    # Ranges
    "training.data_stages[0].seq_len: must be a whole number >= 1, found the number 0.": [
        {**A, "seq_len": 0}
    ],
    "training.data_stages[0].dataset_random_seed: must be a whole number >= 0, found the number "
    "-1.": [{**A, "dataset_random_seed": -1}],
    "[0].start_step: must be a step, a whole number >= 0, found the number -1.": [
        {**A, "start_step": -1}
    ],
    "training.data_stages[0].end_step: must be a step, a whole number >= 0, or 'auto', found the "
    "text 'end'.": [{**A, "end_step": "end"}],
    "training.data_stages[0].name: must be a name without '/', '.' or blanks at its ends, found": [
        {**A, "name": " "}
    ],
    "training.data_stages[1].start_step: stage 'b': it would never run, the run ends at 20": [
        A,
        {**B, "start_step": 20},
    ],
    # Coverage
    "training.data_stages[1].name: stage 'a': an earlier stage has this name.": [
        A,
        {**B, "name": "a"},
    ],
    "training.data_stages[0].end_step: stage 'a': it ends at 0, but begins at 0.": [
        {**A, "end_step": 0}
    ],
    "training.data_stages[1].start_step: stage 'b': it begins at 5, but stage 'a' ends at 4: no "
    "stage covers steps 4 to 5. Close the gap.": [{**A, "end_step": 4}, B],
    "training.data_stages[1].start_step: stage 'b': it begins at 5, but stage 'a' ends at 6: they "
    "overlap.": [{**A, "end_step": 6}, B],
    "training.data_stages[1].start_step: stage 'b': it begins at 0, as stage 'a' does.": [
        A,
        {**B, "start_step": 0},
    ],
    "training.data_stages[1].end_step: stage 'b': it is the last and ends at 10, but the run at "
    "20. Remove its end.": [A, {**B, "end_step": 10}],
    "training.dataset: the first stage begins at step 5. Before it, `huggingface` needs a": [B],
    # Keys
    "training.data_stages[0]: unknown key 'end_steps'. Did you mean 'end_step'?": [
        {**A, "end_steps": 5}
    ],
    "training.data_stages[0]: unknown key 'lr'. There are name, start_step, end_step, ": [
        {**A, "lr": 5}
    ],
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_with_a_stage_is_reported_with_table_and_key(fault):
    assert any(fault in found for found in faults(toml(*WRONG[fault], steps=20)))


def test_all_problems_are_reported_together():
    wrong = [{**A, "end_step": 4, "seq_len": 0}, {**B, "name": "a", "dataset_random_seed": -1}]
    found = faults(toml(*wrong, steps=20, local_batch_size=3, global_batch_size=16))
    assert [fault.split(": ")[0] for fault in found] == [
        "training.global_batch_size",
        "training.data_stages[0].seq_len",
        "training.data_stages[1].dataset_random_seed",
        "training.data_stages[1].name",
        "training.data_stages[1].start_step",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"[training]\nsteps = \n", "run.toml:2:9: not valid TOML: Invalid value."),
        (b"[training", "run.toml: not valid TOML: Expected ']' at the end of a table declaration."),
        (b"a = '\xff'", "run.toml:1:6: not UTF-8, found the byte 0xff. Save the file as UTF-8."),
        (b"a = " + b"[" * 5000, "run.toml: nested too deeply. Flatten it."),
        (b"a = " + b"9" * 5000, "run.toml: not valid TOML: Exceeds the limit (4300 digits)"),
        (b"steps = 5", "run.toml: training: must be a table, found nothing. Write `[training]`."),
        (b"training = 5", "run.toml: training: must be a table, found the number 5."),
        (b"[training.data_stages]\nname = 'a'", "run.toml: training.data_stages: must be an array"),
        (b"training = {a = 1979-05-27}", "run.toml: training.a: must be plain data, found a date."),
    ],
)
def test_a_file_that_is_no_such_toml_is_reported_with_its_place(text, fault):
    Path("run.toml").write_bytes(text)
    with pytest.raises(SpecError) as caught:
        read_run("run.toml")
    assert caught.value.faults[0].startswith(fault)


def test_a_nanoset_becomes_windows_whose_labels_end_one_later():
    folders = {"dataset_folders": ["a", "b"]}
    weighted, whole, single = stages_of(
        toml(
            {**A, **folders, "dataset_weights": [0.75, 0.25]},
            {**B, **folders, "seq_len": 32},
            {**B, "name": "c", "start_step": 9},
        )
    )
    leaves = [{"path": "a", **WINDOW, "weight": 0.75}, {"path": "b", **WINDOW, "weight": 0.25}]
    assert weighted == {"name": "a", "end": 5, "blend": leaves}
    wide = {"seq_len": 33, "stride": 32}
    leaves = [{"path": "a", **wide}, {"path": "b", **wide}]
    assert whole == {"name": "b", "end": 9, "blend_epochized": leaves}
    assert single == {"name": "c", "path": "a", **WINDOW}


@pytest.mark.parametrize(
    ("fields", "node", "comment"),
    [
        (
            {"dataset_type": "huggingface", "dataset": "allenai/c4"},
            {"params": {"seq_len": 8}, "path": "hf://datasets/allenai/c4"},
            None,
        ),
        (
            {"dataset_type": "huggingface", "dataset": "c4"},
            {"params": {"seq_len": 8}, "path": "hf://datasets/c4"},
            "If this is a name of the trainer's own, write that of the Hub.",
        ),
        (
            {"dataset_type": "huggingface", "dataset": "c4", "dataset_path": "/data/c4"},
            {"params": {"seq_len": 8}, "path": "/data/c4"},
            "`huggingface` makes no use of dataset here.",
        ),
        (
            {"dataset_type": "preprocessed", "dataset": "./rows"},
            {"path": "rows"},
            None,
        ),
        (
            {"dataset_type": "preprocessed", "dataset": "org/rows"},
            {"path": "hf://datasets/org/rows"},
            None,
        ),
        (
            {"dataset_type": "packed_memmap", "dataset_path": "rows.bin"},
            {"path": "rows.bin", "dtype": "uint32", "seq_len": 9},
            "The TOML does not say what a row is. This is 9 uint32.",
        ),
        (
            {"dataset_type": "packed_memmap", "dataset_path": "rows.npy"},
            {"path": "rows.npy", "seq_len": 9},
            None,
        ),
        (
            {"dataset_type": "packed_memmap", "dataset_path": "/chats/v1.0", "dataset": "default"},
            {"path": "/chats/v1.0/*_token.npy", "seq_len": 9},
            "Windows run over all sequences: _index.npy and _mask.npy are not read.",
        ),
        (
            {"dataset": "c4"},
            {"path": "a", **WINDOW},
            "`nanoset` makes no use of dataset here.",
        ),
    ],
)
def test_each_type_of_dataset_has_its_node_and_comments_on_what_differs(fields, node, comment):
    folders = ["a"] if len(fields) == 1 else None
    text = imported(toml({**A, "dataset_folders": folders, **fields}))
    (stage,) = yaml.safe_load(text)["splits"]["train"]["staged"]["stages"]
    assert stage == {"name": "a", **node}
    comments = [line.strip() for line in text.splitlines() if line.startswith("        #")]
    assert f"# {comment}" in comments if comment else not comments


def test_bounds_end_where_the_next_stage_begins_and_auto_says_so_too():
    last = {"name": "c", "start_step": 9, "end_step": "auto"}
    found = train(toml(last, {**B, "end_step": "auto"}, {**A, "end_step": 5}, steps=20))["staged"]
    assert (found["unit"], found["total"]) == ("steps", 20)
    bounds = [(one["name"], one.get("start"), one.get("end")) for one in found["stages"]]
    assert bounds == [("a", None, 5), ("b", None, 9), ("c", None, None)]


def test_without_stages_the_run_is_what_training_describes():
    text = "\n".join(["[training]", "steps = 20", *table()])
    assert train(text) == {"path": "a", **WINDOW}
    assert train('[training]\ndataset = "x/y"') == {"path": "hf://datasets/x/y"}
    assert "    # Give the task encoder seq_len=2048.\n" in imported('[training]\ndataset = "x/y"')
    assert faults("[training]\nsteps = 5") == [
        "training.dataset: `huggingface` needs a dataset. Add its name, as `dataset`."
    ]


def test_before_a_first_stage_that_begins_later_training_is_the_default():
    text = (
        "\n".join(["[training]", "steps = 20", *table(seq_len=16)]) + toml(B)[len("[training]") :]
    )
    found = train(text)["staged"]
    assert found == {
        "unit": "steps",
        "total": 20,
        "resume": "ablation",
        "default": {"path": "a", "seq_len": 17, "stride": 16},
        "stages": [{"name": "b", "start": 5, "path": "a", **WINDOW}],
    }


def test_data_of_training_that_stages_replace_is_named_in_a_comment():
    text = imported(toml(A, dataset_type="nanoset", dataset="x", seq_len=8))
    assert "# The stages replace these of [training]: dataset_type, dataset.\n" in text


def test_a_stage_with_another_seed_than_the_run_restarts_with_it():
    first, second, third = stages_of(
        toml(
            {**A, "dataset_random_seed": 7},
            {**B, "dataset_random_seed": 0},
            {"name": "c", "start_step": 9},
            dataset_random_seed=7,
        )
    )
    assert "seed" not in first
    assert (second["on_enter"], second["seed"]) == ("restart", 0)
    assert "seed" not in third


def test_the_header_says_how_to_make_the_run():
    text = imported(toml(A, local_batch_size=4, global_batch_size=64, dataset_random_seed=7))
    call = "#       META, batch_size=4, microbatches_per_step=16,\n"
    assert f"{call}#       seed=7, max_samples_per_sequence=1)\n" in text
    unknown = "#       META, batch_size=LOCAL_BATCH_SIZE, microbatches_per_step=NUMBER_OF_RANKS,\n"
    assert f"{unknown}#       seed=1234, max" in imported(toml(A, global_batch_size=-1))
    assert "training.epochs, 2. This run does not." in imported(toml(A, epochs=2))
    assert "after training.steps, 5." in imported(toml({**A, "end_step": 9}, steps=5))


def test_relative_paths_are_those_of_the_folder_of_the_metadataset():
    folders = {"dataset_folders": ["data/a/", "../b", "/c", "s3://d/e"]}
    (stage,) = train(toml({**A, **folders}), folder="metas")["staged"]["stages"]
    paths = [leaf["path"] for leaf in stage["blend_epochized"]]
    assert paths == ["../data/a", "../../b", "/c", "s3://d/e"]


def test_an_odd_text_is_read_back_as_it_was():
    odd = ["010", "1:30", "1e-3", "null", "a: b # c", "{x}", "é\x85\u2028", "x" * 300, "- 'y'"]
    (stage,) = stages_of(toml({**A, "name": "1e3", "dataset_folders": odd}))
    text = imported(toml({**A, "name": "1e3", "dataset_folders": odd}))
    staged = parse_metadataset(text).tree("train")
    assert [one.name for one in staged.stages] == ["1e3"]
    assert [leaf["path"] for leaf in stage["blend_epochized"]] == odd


WORD = st.text("ab01:-e#'\"&!%é,>|", min_size=1, max_size=8)  # much of which YAML has meanings for


@st.composite
def valid_runs(draw):
    """Draw stages of a TOML, and its fields of [training]."""
    starts = sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=4)))
    names = draw(st.lists(WORD, min_size=len(starts), max_size=len(starts), unique=True))
    stages = [
        {**draw(data()), "name": n, "start_step": s} for n, s in zip(names, starts, strict=True)
    ]
    for stage, end in zip(stages, [*starts[1:], "auto"], strict=True):
        stage["end_step"] = draw(st.sampled_from([None, "auto", end]))
    training = {**draw(data()), "steps": starts[-1] + draw(st.integers(1, 10**6))}
    return draw(st.permutations(stages)), {k: v for k, v in training.items() if v is not None}


@st.composite
def data(draw):
    """Draw what a table says about data."""
    kind = draw(st.sampled_from(TYPES))
    seed = draw(st.none() | st.integers(0, 10**9))
    found = {
        "dataset_type": kind,
        "seq_len": draw(st.integers(1, 10**6)),
        "dataset_random_seed": seed,
    }
    if kind == "huggingface":
        return {**found, "dataset_folders": None, "dataset": f"owner/{draw(WORD)}"}
    if kind != "nanoset":
        return {**found, "dataset_folders": None, "dataset_path": "/data/" + draw(WORD)}
    folders = draw(st.lists(WORD, min_size=1, max_size=4))
    parts = draw(st.lists(st.integers(0, 100), min_size=len(folders), max_size=len(folders)))
    weights = [part / sum(parts) for part in parts] if sum(parts) else None
    return {**found, "dataset_folders": folders, "dataset_weights": weights}


@settings(max_examples=40)
@given(valid_runs())
def test_a_valid_toml_becomes_a_metadataset_with_its_bounds(run):
    stages, training = run
    if any(stage["name"] == "default" for stage in stages):
        return
    tree = parse_metadataset(imported(toml(*stages, **training))).tree("train")
    ordered = sorted(stages, key=lambda stage: stage["start_step"])
    starts = [(one["name"], one["start_step"]) for one in ordered]
    found = [(one.stage.name, one.start) for one in tree.bounds]
    assert found == ([("default", 0)] if starts[0][1] else []) + starts
    ends = [one.end for one in tree.bounds]
    assert ends == [*(start for _, start in found[1:]), None]
    assert [one.stage.seed for one in tree.bounds[-len(starts) :]] == [
        None if seed in (None, training.get("dataset_random_seed", 1234)) else seed
        for seed in (one["dataset_random_seed"] for one in ordered)
    ]


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_toml_is_an_error_of_ours_or_a_metadataset(data):
    text = (METADATASETS / "stages_ablation.toml").read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        begin, end = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
        end = min(end, begin + data.draw(st.integers(0, 40)))
        put = data.draw(
            st.sampled_from(["", "[", "]", "=", "\n", '"', "-1", "nan", "a.b", "{}", "9" * 30])
        )
        text = text[:begin] + put + text[end:]
    found = []
    try:
        parse_metadataset(imported(text))
    except SpecError as error:
        found = error.faults
    assert all(fault.startswith("run.toml:") for fault in found)


def plan_of(metadataset, datasets):
    encoder = AnyTask({"seq_len": 4096})
    builder = StreamBuilder(batch_size=8, task_encoder=encoder, microbatches_per_step=32)
    return RunPlan(compile_stream(metadataset, "train", open_source=datasets, builder=builder).spec)


def shares(plan):
    """Return the share of each dataset in each stage."""
    return [
        {leaf.leaf.source.path: pytest.approx(leaf.share, abs=1e-5) for leaf in of_stage}
        for of_stage in plan.leaves
    ]


def rules(plan):
    return plan.staged.resume, [
        (one.name, one.begin, one.end, one.on_enter, one.seed) for one in plan.stages
    ]


@pytest.mark.parametrize("pattern", ["mixture", "seeds", "ablation"])
def test_the_toml_of_a_pattern_draws_as_its_metadataset_does(pattern, datasets, monkeypatch):
    monkeypatch.chdir(METADATASETS)
    datasets.num_samples = {"data/books": 256_000}  # an epoch in 1,000 steps
    text = metadataset_text(read_run(f"stages_{pattern}.toml"), pattern)
    found = plan_of(parse_metadataset(text), datasets)
    expected = plan_of(load(f"stages_{pattern}.yaml"), datasets)
    assert rules(found) == rules(expected)
    assert shares(found) == shares(expected)


def test_the_toml_of_a_context_extension_has_longer_windows_of_the_same_data(datasets):
    text = metadataset_text(read_run(METADATASETS / "stages_context.toml"), "context")
    plan = plan_of(parse_metadataset(text), datasets)
    assert [(one.name, one.num_steps) for one in plan.stages] == [
        ("short", 900_000),
        ("long", None),
    ]
    web, papers = (str(Path.cwd() / "data" / name) for name in ("web", "papers"))
    assert shares(plan) == [{web: 1}, {papers: 0.75, web: 0.25}]
    windows = {
        tuple(value for key, value in keys if key in WINDOW) for _, _, _, *keys in datasets.opened
    }
    assert windows == {(4097, 4096), (32769, 32768)}
