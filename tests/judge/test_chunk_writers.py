"""What MosaicML Streaming, litdata and WIDS wrote is read as it was written."""

from __future__ import annotations

import json
import subprocess
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from place import CHUNKS_PYTHON

from energy_data.data.registry import open_source
from energy_data.errors import SpecError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHUNKS_PYTHON).exists(), reason="the writers are not installed"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("written")
    writer = Path(__file__).parent / "chunk_writer.py"
    subprocess.run([CHUNKS_PYTHON, writer, written], check=True)
    return written


def plain(value):
    """As the writer writes down what it has written."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return str(value) if isinstance(value, (bytes, Decimal)) else value


def read(path, **options):
    source = open_source(path, **options)
    source.check_files()
    return [
        {name: plain(value) for name, value in sample.items() if name[:2] != "__"}
        for sample in source.read(np.arange(len(source)))
    ]


def assert_equal(found, written):
    """Compare samples; those of JPEGs as far as decoders agree."""
    assert len(found) == len(written)
    for one, other in zip(found, written, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if "jpeg" in name:
                assert np.abs(np.subtract(one[name], other[name])).max() <= 2
            else:
                assert one[name] == other[name]


@pytest.mark.parametrize("name", ["None", "zstd:7", "gz", "bz2", "merged"])
def test_columns_of_streaming(folder, name):
    assert_equal(read(folder / f"mds_{name}"), json.loads((folder / "mds.json").read_text()))


@pytest.mark.parametrize("name", ["litdata", "litdata_zstd"])
def test_items_of_litdata(folder, name):
    assert_equal(read(folder / name), json.loads((folder / "litdata.json").read_text()))


def test_items_of_litdata_that_are_tuples_and_tokens(folder):
    assert read(folder / "litdata_tuple")[7] == {"0": 7, "1": ["é7", {"k": 7}]}
    assert [one["tokens"] for one in read(folder / "litdata_tokens")] == [
        list(range(n + 1)) for n in range(20)
    ]


@pytest.mark.parametrize(
    ("name", "problem"), [("pickle", "it is a pickle"), ("batch", "compression_level 'batch'")]
)
def test_what_cannot_be_read_of_litdata_is_refused(folder, name, problem):
    with pytest.raises(SpecError, match=problem):
        open_source(folder / f"litdata_{name}")


def test_an_index_of_wids(folder):
    assert [one["txt"] for one in read(folder / "wids.json")] == [
        f"{shard}-{n}" for shard in range(3) for n in range(4)
    ]
