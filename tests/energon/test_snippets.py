"""The examples of Energon's documentation return here what they return there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def run(folder, python, package):
    """Run the program with one of the packages, and return what each example returns."""
    make_dataset(folder / "captions", CAPTIONS, count=12)
    for name, kind in {"ones": TEXTS, "twos": TEXTS, "crude": CRUDE}.items():
        make_dataset(folder / name, kind, count=16, shards=2, images=False)
    make_dataset(folder / "pairs", TEXTS, count=10, images=False, name="ones")
    (folder / "ones" / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    for name, text in FILES.items():
        (folder / name).write_text(HEADER + text)
    for name, text in {"program.py": PROGRAM, "joined_type.py": JOINED}.items():
        (folder / name).write_text(text.replace("megatron.energon", package))
    done = subprocess.run(
        [python, "program.py"],
        cwd=folder,
        env={**os.environ, "ENERGY_DATA_ALLOW_MODULES": "joined_type"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    return dict(map(json.loads, lines))


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ours"), sys.executable, "energy_data.energon")


@pytest.mark.parametrize("name", STORED)
def test_an_example_returns_what_energon_returns(ours, name):
    assert ours[name] == STORED[name]


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="Energon is not installed")
def test_the_stored_results_are_those_of_the_real_energon(tmp_path):
    assert run(tmp_path, PYTHON, "megatron.energon") == STORED
