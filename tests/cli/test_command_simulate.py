import json
import os

import pytest

from energy_data.data.registry import open_source

pytest.importorskip("obstore")


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "pages.jsonl").write_text('{"text": "ninety-five bytes"}\n' * 2000)
    open_source(tmp_path / "pages.jsonl")
    return "pages.jsonl"


def test_a_dataset_on_a_disk_is_simulated_as_in_a_store_and_no_sample_is_read(
    energy_data, pages, tmp_path
):
    path, facts = tmp_path / pages, (tmp_path / pages).stat()
    path.write_bytes(b"x" * facts.st_size)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # its index fits as before
    nodes = ("--ranks", 4, "--ranks-per-node", 2, "--batches", 40, "--batches-per-second", 50)
    done = energy_data("simulate", pages, "--batch-size", 8, *nodes)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "pages.jsonl, split train: 1 leaf, 2,000 samples, 64 lanes"
    assert lines[1].startswith("leaf id            drawn  fetched MB")
    assert lines[2].split()[:2] == ["pages.jsonl:train", "640"]
    assert lines[3] == "40 micro-batches of each rank, 2 of 4 ranks"
    assert lines[-1].startswith("In a long run, ranks wait 0.0%")


def test_the_numbers_are_printed_as_json(energy_data, pages):
    found = json.loads(energy_data("simulate", pages, "--batch-size", 8, "--json").stdout)
    (leaf,) = found["leaves"]
    assert leaf["epoch_bytes"] == leaf["fetched_bytes"] == 60_000
    assert found["advice"][0].startswith("The store feeds ")


def test_stages_are_simulated(energy_data, pages, write):
    write(
        "run.yaml",
        """\
        splits:
          train:
            staged:
              stages:
                - {name: one, end: 5, path: pages.jsonl}
                - {name: two, end: 20, path: pages.jsonl}
        """,
    )
    done = energy_data("simulate", "run.yaml", "--batch-size", 8, "--lanes", 4, "--json")
    assert json.loads(done.stdout)["batches"] == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--latency", "soon"), "--latency: 'soon' is no time. Write such as 50ms or 0.1s."),
        (("--bandwidth", "fast"), "--bandwidth: 'fast' is no size. Write bytes, or such as 500GB."),
        (("--cache", "large"), "--cache: 'large' is no size."),
        (("--ranks-per-node", 2), "--ranks-per-node: must be at most 1, the ranks of the run."),
        (("--ranks", 3, "--lanes", 4), "--lanes: must be a multiple of 3, the ranks of the run."),
    ],
)
def test_a_wrong_option_is_named(options, said, energy_data, pages):
    done = energy_data("simulate", pages, *options)
    assert done.exit_code != 0
    assert said in done.stderr
