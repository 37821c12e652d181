import json
import re
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from token_files import write_datatrove

from energy_data import WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from energy_data.cli.main import main

BLEND = """\
splits:
  train:
    blend:
      - {path: ./books, weight: 5}
      - blend:
          - path: ./code
          - path: ./books
        weight: 2.5
      - {path: ./web, weight: 0}
  val:
    concat: [{path: ./books, split_part: train}, {path: ./code, split_part: train}]
"""
EPOCHIZED = """\
splits:
  train:
    blend_epochized:
      - {path: ./books, repetitions: 3}
      - {path: ./code, repetitions: 0.5}
"""


@pytest.fixture
def datasets(dataset):
    dataset("books", 6, 4)
    dataset("code", 30)
    dataset("web", 5)


def nodes(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["nodes"]


def counted(path, *, batches, batch_size, lanes, ranks, seed):
    """Return how often each dataset comes up in the first micro-batches of a real stream."""
    counts = Counter()
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, lanes=lanes)
        dataset = get_train_dataset(
            path, batch_size=batch_size, worker_config=config, seed=seed, shuffle_buffer_size=10
        )
        for batch in islice(get_loader(dataset), len(range(rank, batches, ranks))):
            counts.update(Path(source.dataset).name for [source] in batch["__sources__"])
    return counts


@pytest.mark.parametrize("text", [BLEND, EPOCHIZED])
@pytest.mark.parametrize(("batches", "lanes", "ranks"), [(1, 4, 1), (23, 4, 2), (50, 6, 3)])
def test_computed_draws_are_those_of_a_stream_counted_by_hand(
    energy_data, datasets, write, text, batches, lanes, ranks
):
    path = write("meta.yaml", text)
    done = energy_data(
        *("inspect", "meta.yaml", "--json", "--seed", 3),
        *("--batches", batches, "--batch-size", 7, "--lanes", lanes),
    )
    drawn = {node["id"]: node["drawn"] for node in nodes(done) if node["id"]}
    counts = counted(path, batches=batches, batch_size=7, lanes=lanes, ranks=ranks, seed=3)
    assert drawn == {
        f"{name}:train": counts[name]
        for name in ("books", "code", "web")
        if f"{name}:train" in drawn
    }
    assert sum(drawn.values()) == batches * 7


def test_micro_batches_of_steps_of_documents_are_counted_too(energy_data, datasets, write):
    write("plain.yaml", BLEND)
    write(
        "steps.yaml",
        "splits: {train: {docs_per_step: {target: 64, of: {path: ./plain.yaml}}}}\n",
    )
    counted = ("--json", "--batches", 30, "--batch-size", 7)
    plain, steps = (
        {
            node["id"]: node["drawn"]
            for node in nodes(energy_data("inspect", name, *counted))
            if node["id"]
        }
        for name in ("plain.yaml", "steps.yaml")
    )
    assert plain == steps
    assert sum(plain.values()) == 210


def test_epochs_are_draws_by_samples_over_all_places_of_a_leaf(energy_data, datasets, write):
    write("meta.yaml", BLEND)
    done = energy_data("inspect", "meta.yaml", "--json", "--batches", 60, "--batch-size", 10)
    books = [node for node in nodes(done) if node["id"] == "books:train"]
    assert [node["drawn"] for node in books] == [500, 500]  # (5 + 1.25) of 7.5 of 600
    assert [node["epochs"] for node in books] == [50, 50]
    assert [node["fraction"] for node in books] == pytest.approx([5 / 7.5, 1.25 / 7.5])


@pytest.mark.parametrize("batches", [1, 4, 5, 90])
def test_validation_is_counted_up_to_its_end(energy_data, datasets, write, batches):
    path = write("meta.yaml", BLEND)
    done = energy_data(
        *("inspect", "meta.yaml", "--split", "val", "--json"),
        *("--batches", batches, "--batch-size", 7),
    )
    counts = Counter()
    loader = get_loader(get_val_dataset(path, batch_size=7, worker_config=WorkerConfig()))
    for batch in islice(loader, batches):
        counts.update(f"{Path(source.dataset).name}:train" for [source] in batch["__sources__"])
    drawn = {node["id"]: node["drawn"] for node in nodes(done) if node["id"]}
    assert drawn == {"books:train": counts["books:train"], "code:train": counts["code:train"]}


def test_the_tree_is_shown_with_sizes_shares_and_places(energy_data, datasets, write):
    write("meta.yaml", BLEND)
    done = energy_data("inspect", "meta.yaml", "--lanes", 8)
    title, header, *lines = done.stdout.splitlines()
    assert title == "meta.yaml, split train: 3 leaves, 45 samples, 8 lanes"
    assert header.split("  ")[0] == "node"
    assert [line.split() for line in lines] == [
        ["blend", "100.00", "meta.yaml:3"],
        ["books", "10", "5", "66.67", "books:train", "meta.yaml:4"],
        ["blend", "2.5", "33.33", "meta.yaml:5"],
        ["code", "30", "1", "16.67", "code:train", "meta.yaml:6"],
        ["books", "10", "1", "16.67", "books:train", "meta.yaml:7"],
        ["web", "5", "0", "0.00", "web:train", "meta.yaml:9"],
    ]


def test_repetitions_are_told_from_weights(energy_data, datasets, write):
    write("meta.yaml", EPOCHIZED)
    *_, books, code = energy_data("inspect", "meta.yaml").stdout.splitlines()
    assert books.split()[:5] == ["books", "10", "x", "3", "66.67"]
    assert code.split()[:5] == ["code", "30", "x", "0.5", "33.33"]
    found = nodes(energy_data("inspect", "meta.yaml", "--json"))
    assert [node.get("repetitions") for node in found] == [None, 3, 0.5]
    assert all("share" not in node and "weight" not in node for node in found)


def test_brackets_in_ids_are_shown_as_they_are(energy_data, datasets, write):
    write("meta.yaml", "splits: {train: {path: ./books, subset: {range: [2, 8]}}}\n")
    assert "books:train[2:8]" in energy_data("inspect", "meta.yaml").stdout


def test_lines_into_a_pipe_are_never_broken(energy_data, datasets, write):
    name = 100 * "long"
    write("meta.yaml", f"splits: {{train: {{path: ./books, id: {name}}}}}\n")
    assert energy_data("inspect", "meta.yaml").stdout.splitlines()[-1].split() == [
        *("books", "10", "100.00", name, "meta.yaml:1")
    ]


@pytest.mark.parametrize("width", [None, 72, 100])
def test_lines_on_a_terminal_fit_it_and_lose_nothing(
    energy_data, datasets, write, capsys, monkeypatch, width
):
    name = 5 * "a_long_name"
    write("meta.yaml", f"splits: {{train: {{path: ./books, id: {name}}}}}\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width or ""))
    main(["inspect", "meta.yaml", "--batches", "5", "--batch-size", "4"], standalone_mode=False)
    lines = re.sub("\x1b.*?m", "", capsys.readouterr().out).splitlines()  # its bold header
    assert max(map(len, lines)) <= (width or 80)
    begin, end = lines[2].index("leaf id"), lines[2].index("where")
    assert "".join(line[begin:end].strip() for line in lines[3:]) == name


def test_a_dataset_is_inspected_as_a_tree_of_one_leaf(energy_data, datasets):
    done = energy_data("inspect", "books", "--batches", 5, "--batch-size", 4)
    assert done.stdout.splitlines()[-1].split() == [
        *("books", "10", "100.00", "20", "2.000", "books:train", "books")
    ]


def test_tokens_are_shown_where_they_are_known(energy_data, datasets, write, tmp_path):
    write_datatrove(tmp_path / "tokens", [[1, 2, 3], [4], [5, 6]])
    split = "splits:\n  train:\n    blend: [{path: ./books}, {path: ./tokens.ds}]\n"
    shown = energy_data("inspect", write("meta.yaml", split)).stdout
    assert re.search(r"node +samples +tokens +weight", shown)
    assert re.search(r"books +10 +1 +50.00", shown)
    assert re.search(r"tokens.ds +3 +6 +1 +50.00", shown)
    declared = split.replace("books", "books, tokens_per_sample: 2.5")
    found = nodes(energy_data("inspect", write("meta.yaml", declared), "--json"))
    assert [node["num_tokens"] for node in found] == [None, 25, 6]


def test_json_has_the_run_and_the_places(energy_data, datasets, write):
    write("meta.yaml", BLEND)
    done = json.loads(energy_data("inspect", "meta.yaml", "--json").stdout)
    assert (done["metadataset"], done["split"]) == ("meta.yaml", "train")
    assert done["run"].items() >= {"batches": None, "lanes": 16, "seed": 0}.items()
    assert done["nodes"][1]["place"] == {"file": "meta.yaml", "line": 4, "column": 9}
    assert "drawn" not in done["nodes"][1]


def test_batches_without_their_size_are_wrong_usage(energy_data, datasets):
    done = energy_data("inspect", "books", "--batches", 5)
    assert done.exit_code == 2
    assert "--batches and --batch-size go together" in done.stderr


def test_a_split_that_is_not_there_is_an_error(energy_data, datasets, write):
    write("meta.yaml", BLEND)
    done = energy_data("inspect", "meta.yaml", "--split", "test")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "meta.yaml: splits: there is no split 'test', it has train or val"
    )


CHANGING = """\
splits:
  train:
    blend:
      - {path: ./books, weight: {linear: {0: 1, 40: 3}}}
      - {path: ./code, weight: {step: {0: 0, 20: 2}}}
"""


def test_weights_that_change_are_shown_and_counted_as_they_change(energy_data, datasets, write):
    write("meta.yaml", CHANGING)
    done = energy_data("inspect", "meta.yaml")
    assert done.exit_code == 0
    assert "linear 0: 1, 40: 3 steps" in done.stdout
    counted = ("--batches", "80", "--batch-size", "4")
    refused = energy_data("inspect", "meta.yaml", *counted)
    assert refused.exit_code != 0
    assert "Give `microbatches_per_step`" in refused.stderr
    steps = ("--microbatches-per-step", "2", "--json")
    found = nodes(energy_data("inspect", "meta.yaml", *counted, *steps))
    assert found[1]["weight"] == "linear 0: 1, 40: 3 steps"
    drawn = {node["id"]: node["drawn"] for node in found if node["id"]}
    # Half of the run has books alone; then they rise from 2 to 3 beside 2.
    assert abs(drawn["books:train"] - (160 + 160 * 0.554)) < 20
