"""The examples of Energon's documentation return here what they return there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from data import CAPTIONS, CRUDE, TEXTS, make_dataset
from test_names import PYTHON

PROGRAM = Path(__file__).with_name("snippets.py").read_text()
STORED = json.loads(Path(__file__).with_name("snippets_7.4.1.json").read_text())
HEADER = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n"
FILES = {
    "blend.yaml": """
  train:
    blend:
      - {weight: 3, path: ./ones}
      - {weight: 1, path: ./twos, split_part: val}
  val:
    blend:
      - {weight: 3, path: ./ones}
      - {weight: 1, path: ./twos}
""",
    "times.yaml": """
  train:
    blend_epochized:
      - {repetitions: 2, path: ./ones}
      - {repetitions: 1, path: ./twos}
""",
    "aux.yaml": """
  train:
    blend:
      - path: ./crude
        aux: {extra: ./twos}
        subflavors: {kind: text}
      - path: ./crude
        aux: {extra: ./twos}
        subflavors: {kind: lazy}
""",
    "join.yaml": """
  train:
    join:
      - path: ./ones
      - {path: ./pairs, nonmatch: skip}
    joiner: {__module__: joined_type, __class__: JoinedSample}
""",
    "subsets.yaml": """
  train:
    subset: {range: [0%, 50%]}
    blend:
      - {weight: 1.0, path: ./ones, subset: {range: [0, 10]}}
      - {weight: 1.0, path: ./twos}
  val: {path: ./ones, split_part: train, subset: {range: [80%, 100%]}}
  test: {path: ./ones, subset: {range: [14, end]}}
""",
}
JOINED = """
from dataclasses import dataclass
from megatron.energon import Sample, TextSample

@dataclass
class JoinedSample(Sample):
    text1: str
    text2: str

    @staticmethod
    def from_joined(ds1: TextSample, ds2: TextSample) -> "JoinedSample":
        return JoinedSample.derive_from(ds1, text1=ds1.text, text2=ds2.text)
"""


def write(folder, package):
    """Write data, and what the program imports, for one of the packages; return the program."""
    make_dataset(folder / "captions", CAPTIONS, count=12)
    for name, kind in {"ones": TEXTS, "twos": TEXTS, "crude": CRUDE}.items():
        make_dataset(folder / name, kind, count=16, shards=2, images=False)
    make_dataset(folder / "pairs", TEXTS, count=10, images=False, name="ones")
    (folder / "ones" / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    for name, text in FILES.items():
        (folder / name).write_text(HEADER + text)
    (folder / "joined_type.py").write_text(JOINED.replace("megatron.energon", package))
    return PROGRAM.replace("megatron.energon", package)


def returned(output):
    """Return what each example returns."""
    return dict(json.loads(line) for line in output.splitlines() if line.startswith('["'))


@pytest.fixture(scope="module")
def ours(tmp_path_factory, gloo_ranks):
    folder = tmp_path_factory.mktemp("ours")
    allows = "import os\nos.environ['ENERGY_DATA_ALLOW_MODULES'] = 'joined_type'\n"
    return returned(gloo_ranks.run_alone(allows + write(folder, "energy_data.energon"), folder))


@pytest.mark.parametrize("name", STORED)
def test_an_example_returns_what_energon_returns(ours, name):
    assert ours[name] == STORED[name]


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="Energon is not installed")
def test_the_stored_results_are_those_of_the_real_energon(tmp_path):
    (tmp_path / "program.py").write_text(write(tmp_path, "megatron.energon"))
    command = [PYTHON, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert returned(done.stdout) == STORED
