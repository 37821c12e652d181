"""`energy-data import-stages`: its output, and a run of what it writes."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from token_files import write_datatrove

from energy_data import WorkerConfig, get_loader, get_train_dataset

TOML = """
[training]
steps = 8
local_batch_size = 2
global_batch_size = 8

[[training.data_stages]]
name = "general"
start_step = 0
end_step = 3
dataset_type = "nanoset"
dataset_folders = ["web", "books"]
dataset_weights = [0.75, 0.25]
seq_len = 16

[[training.data_stages]]
name = "anneal"
start_step = 3
dataset_type = "nanoset"
dataset_folders = ["web", "books"]
dataset_weights = [0.25, 0.75]
seq_len = 16
"""


def test_it_prints_a_metadataset_or_writes_one(energy_data, write, tmp_path):
    write("run.toml", TOML)
    printed = energy_data("import-stages", "run.toml")
    assert printed.exit_code == 0
    assert printed.stdout.startswith("# 'run.toml', imported by `energy-data import-stages`.")
    written = energy_data("import-stages", "run.toml", "-o", "run.yaml")
    assert (written.exit_code, written.output) == (0, "run.yaml: 2 stages\n")
    assert (tmp_path / "run.yaml").read_text() == printed.stdout
    checked = energy_data("check", "--no-data", "run.yaml")
    assert checked.output == "run.yaml: fine; train: 2 leaves\n"


def test_it_replaces_a_metadataset_only_if_asked_to(energy_data, write, monkeypatch):
    toml = write("run.toml", TOML)
    kept = write("run.yaml", "mine")
    refused = energy_data("import-stages", "run.toml", "-o", "run.yaml")
    assert refused.exit_code == 1
    assert refused.stderr == (
        "run.yaml: it exists. Pass --force to replace it, or name another file.\n"
    )
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("energy_data.cli.import_stages.sys", terminal)
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml", answers="n\n").exit_code == 1
    assert kept.read_text() == "mine"
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml", answers="y\n").exit_code == 0
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml", "--force").exit_code == 0
    assert energy_data("import-stages", "run.toml", "-o", "run.toml", "--force").exit_code == 2
    assert toml.read_text() == TOML


def test_problems_of_the_toml_end_with_1_and_write_nothing(energy_data, write, tmp_path):
    write("run.toml", TOML.replace("seq_len = 16", "seq_len = 0"))
    done = energy_data("import-stages", "run.toml", "-o", "run.yaml")
    fault = "must be a whole number >= 1, found the number 0. Write it like `seq_len = 4096`."
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"run.toml: training.data_stages[{number}].seq_len: {fault}" for number in range(2)
    ]
    assert not (tmp_path / "run.yaml").exists()


@pytest.fixture
def folders(tmp_path):
    """Write two folders of nanosets; tokens of books are above 1,000."""
    for name, first in (("web", 0), ("books", 1000)):
        (tmp_path / name).mkdir()
        for number in range(2):
            begin = first + 400 * number
            documents = [list(range(begin, begin + 130)), list(range(begin + 130, begin + 400))]
            write_datatrove(tmp_path / name / f"{number}_tokens", documents)


def start(rank=0, ranks=1, **options):
    options = {"batch_size": 2, "microbatches_per_step": 4, "seed": 1234, **options}
    config = WorkerConfig(rank=rank, world_size=ranks, lanes=4)
    return get_loader(
        get_train_dataset("run.yaml", worker_config=config, max_samples_per_sequence=1, **options)
    )


def drawn(loader, count):
    return [(one["__stage__"], one["tokens"].tolist()) for one in islice(loader, count)]


@pytest.mark.usefixtures("folders")
def test_two_nanosets_train_are_saved_and_switch_at_their_step_on_other_ranks(energy_data, write):
    write("run.toml", TOML)
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml").exit_code == 0
    assert energy_data("check", "run.yaml").exit_code == 0
    expected = drawn(start(), 32)
    assert [stage for stage, _ in expected] == [(0, "general")] * 12 + [(1, "anneal")] * 20
    tokens = np.array([rows for _, rows in expected])
    assert tokens.shape == (32, 2, 17)
    assert (np.diff(tokens) == 1).all()  # the label of a token is the next one
    books = (tokens[:, :, 0] >= 1000).sum(axis=1)
    assert (books[:12].sum(), books[12:].sum()) == (6, 30)
    loader = start()
    drawn(loader, 6)
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = [start(rank, 2) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    assert [
        one for pair in zip(*(drawn(each, 13) for each in ranks), strict=True) for one in pair
    ] == expected[6:]


@pytest.mark.usefixtures("folders")
def test_in_an_epoch_of_a_nanoset_every_token_is_a_label_once(energy_data, write):
    """All but the first token of a file, and those that fill no window."""
    data = 'dataset_type = "nanoset"\ndataset_folders = ["web"]\nseq_len = 16'
    write("run.toml", f"[training]\n{data}")
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml").exit_code == 0
    batches = list(start(batch_size=1, microbatches_per_step=None, repeat=False))
    labels = sorted(token for one in batches for token in one["tokens"][0, 1:].tolist())
    assert labels == [*range(1, 385), *range(401, 785)]


ALONE = 'dataset_type = "nanoset"\ndataset_folders = ["web", "books"]\nseq_len = 16\n'
ABLATION = (
    '[[training.data_stages]]\nname = "ablation"\nstart_step = 3\ndataset_random_seed = 9999\n'
)


@pytest.mark.usefixtures("folders")
def test_an_ablation_continues_a_run_without_stages_as_if_it_had_been_planned(energy_data, write):
    write("run.toml", f"[training]\n{ALONE}")
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml").exit_code == 0
    loader = start()
    before = [one["tokens"].tolist() for one in islice(loader, 12)]
    state = json.loads(json.dumps(loader.state_dict()))
    write("run.toml", f"[training]\nsteps = 8\n{ALONE}\n{ABLATION}{ALONE}")
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml", "--force").exit_code == 0
    planned = drawn(start(), 32)
    assert [tokens for _, tokens in planned[:12]] == before
    assert [stage for stage, _ in planned] == [(0, "default")] * 12 + [(1, "ablation")] * 20
    loader = start()
    loader.load_state_dict(state)
    assert drawn(loader, 20) == planned[12:]


def rows_of_tokens():
    np.arange(170, dtype="<u4").tofile("rows.bin")


def packed_sequences():
    Path("chats").mkdir()
    for name, values in (("token", range(170)), ("mask", [0] * 170), ("index", range(10, 171, 10))):
        np.save(f"chats/a_{name}.npy", np.array(values, np.int32))


def preprocessed_rows():
    Path("rows").mkdir()
    table = pa.table({"inputs": np.arange(170).reshape(10, 17).tolist()})
    pq.write_table(table, "rows/0.parquet")


@pytest.mark.parametrize(
    ("kind", "path", "write_data", "field"),
    [
        ("packed_memmap", "rows.bin", rows_of_tokens, "tokens"),
        ("packed_memmap", "chats", packed_sequences, "tokens"),
        ("preprocessed", "rows", preprocessed_rows, "inputs"),
    ],
)
def test_packed_and_preprocessed_rows_are_read_as_they_are(
    energy_data, write, kind, path, write_data, field
):
    write_data()
    write("run.toml", f'[training]\ndataset_type = "{kind}"\ndataset_path = "{path}"\nseq_len = 16')
    assert energy_data("import-stages", "run.toml", "-o", "run.yaml").exit_code == 0
    batches = list(start(batch_size=1, microbatches_per_step=None, repeat=False))
    rows = sorted(one[field][0].tolist() for one in batches)
    assert rows == np.arange(170).reshape(10, 17).tolist()
