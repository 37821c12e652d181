"""Blocks of samples out of several datasets."""

import numpy as np
import pytest
from tars import bare, dataset

from energy_data.data.registry import open_source
from energy_data.data.tar.source import WebdatasetSource
from energy_data.errors import StructureError

pytestmark = pytest.mark.usefixtures("reading")


def sources_of(tmp_path, size):
    folders = [dataset(tmp_path / name, size=size) for name in "abc"]
    return [open_source(folder, subflavors={"n": n}) for n, folder in enumerate(folders)]


@pytest.mark.parametrize("size", [40, 5_000, 40_000])
@pytest.mark.parametrize("count", [0, 1, 5, 31, 32, 200])
def test_a_block_of_several_datasets_is_as_if_each_was_read_alone(tmp_path, size, count):
    sources, rng = sources_of(tmp_path, size), np.random.default_rng(0)
    numbers, indices = rng.integers(0, 3, count), rng.integers(0, 60, count)
    together = WebdatasetSource.read_together(sources, numbers, indices)
    for sample, number, index in zip(together, numbers, indices, strict=True):
        [alone] = sources[number].read(np.array([index]))
        assert bare(sample) == bare(alone)
        for field in ("__key__", "__sources__", "__subflavors__"):
            assert sample[field] == alone[field]


def test_one_dataset_in_two_entries(tmp_path):
    source, indices = open_source(dataset(tmp_path)), np.arange(60).repeat(2)
    together = WebdatasetSource.read_together([source] * 2, np.arange(120) % 2, indices)
    assert [s["__key__"] for s in together] == [s["__key__"] for s in source.read(indices)]


def test_the_error_names_the_dataset_whose_shard_is_missing(tmp_path):
    sources = sources_of(tmp_path, 40)
    (tmp_path / "b" / "shard-001.tar").unlink()
    with pytest.raises(StructureError, match="cannot be opened") as caught:
        WebdatasetSource.read_together(sources, np.arange(60) % 3, np.arange(60))
    assert caught.value.dataset == str(tmp_path / "b")


def test_an_index_whose_samples_overlap_is_an_error(tmp_path):
    source = open_source(dataset(tmp_path))
    index = next(tmp_path.glob("*.idx"))
    offsets = np.fromfile(index, "<u8")
    offsets[2], offsets[3] = offsets[3], offsets[2]
    offsets.tofile(index)
    with pytest.raises(StructureError, match="is invalid"):
        source.read(np.arange(60))
