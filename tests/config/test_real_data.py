"""A metadataset over tars, read through the real source."""

import io
import tarfile

import numpy as np
import pytest

from energy_data.config.compile import compile_split
from energy_data.config.load import load
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of


@pytest.fixture
def tar(tmp_path):
    """Write a tar of ten samples."""
    path = tmp_path / "data" / "words.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as file:
        for number in range(10):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = 1
            file.addfile(member, io.BytesIO(str(number).encode()))
    return path


def entries(path):
    return leaves_of(compile_split(load(path), "train", open_source=open_source))


@pytest.mark.usefixtures("tar")
def test_samples_of_a_range_carry_their_subflavors(write):
    path = write(
        "a.yaml",
        "splits: {train: {path: data/words.tar, subset: {range: [20%, 50%]}, subflavors: {a: 1}}}",
    )
    (leaf,) = entries(path)
    samples = leaf.source.read(np.arange(leaf.num_samples))
    assert [sample["txt"] for sample in samples] == ["2", "3", "4"]
    assert [sample["__subflavors__"] for sample in samples] == [{"a": 1}] * 3


def test_a_tar_is_loaded_without_a_metadataset(tar):
    (leaf,) = entries(tar)
    assert (leaf.id, leaf.num_samples) == ("words.tar:train", 10)


def test_a_dataset_that_is_not_there_is_a_fault_with_its_place(write):
    with pytest.raises(SpecError) as caught:
        entries(write("a.yaml", "splits: {train: {path: data/none}}"))
    assert "a.yaml:1:24: splits.train: leaf 'data/none:train': " in caught.value.faults[0]
