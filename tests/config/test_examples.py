"""Real metadatasets: those of the repository, and those of Energon's own documentation."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from yaml_text import parse_metadataset

from energy_data.cli.plan import AnyTask
from energy_data.config.compile import compile_split, compile_stream
from energy_data.config.load import load
from energy_data.config.schema import metadataset_schema
from energy_data.config.yaml_nodes import Diagnostics, read_text
from energy_data.nodes.leaf import leaves_of
from energy_data.tasks.mixture import StreamBuilder

FILES = sorted((Path(__file__).parents[2] / "metadatasets").glob("*.yaml"))

SIMPLE = """
# Outer object must be a `Metadataset`
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  # Split defines the train/val/test subsets composition
  train:
    # This can be any `MetadatasetBase` class. E.g. a `DatasetMetadataset`, or a `MixMetadataset`.
    # Mix the following datasets
    blend:
      - weight: 5
        path: ./coco
      - weight: 2
        path: ./coyo
      - weight: 1
        path: ./coyo
  val:
    # Only use coco-val for val
    path: ./coco
  test:
    # Only use coyo-test for test
    path: ./coyo
"""
ADVANCED = """
# Outer object must be a `Metadataset`
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  # Split defines the train/val/test subsets composition
  train:
    # This can be any `MetadatasetBase` class. E.g. a `DatasetMetadataset`, or a `MixMetadataset`.
    # Blend the following datasets
    blend:
      - weight: 5
        path: ./coco
        # Set the __subflavor__ property of the coco samples
        subflavor: small_images
        # Set the __subflavors__ property of the samples
        subflavors:
          augmentation_type: small_images
          text_length: short
      # Combine coyo-train and coyo-val
      - weight: 2
        path: ./coyo
        split_part: train
        # Set the __subflavors__ property of the samples
        subflavors:
          augmentation_type: large_images
          text_length: short
      - weight: 1
        path: ./coyo
        split_part: val
        # Set the __subflavors__ property of the samples
        subflavors:
          augmentation_type: large_images
          text_length: short
  # For val and test, MixDataset will actually concatenate the datasets
  val:
    # Only use coco val for val
    path: ./coco
    subflavor: small_images
    subflavors:
      augmentation_type: small_images
      text_length: short
  test:
    path: ./coyo
"""


def leaves(metadataset, split, datasets):
    spec = compile_split(metadataset, split, open_source=datasets)
    return [(leaf.id, leaf.source.subflavors) for leaf in leaves_of(spec)]


def test_there_are_examples():
    assert len(FILES) >= 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_loads_compiles_and_fits_the_schema(path, datasets):
    metadataset = load(path)
    for split in metadataset.splits:
        encoder = AnyTask({"seq_len": 4096})
        builder = StreamBuilder(batch_size=4, task_encoder=encoder, microbatches_per_step=8)
        compile_stream(metadataset, split, open_source=datasets, builder=builder)
    value = read_text(path.read_bytes(), path.name, Diagnostics())
    Draft202012Validator(metadataset_schema()).validate(value.plain())


def test_the_simple_example_of_energon_loads(datasets):
    metadataset = parse_metadataset(SIMPLE)
    assert metadataset.splits == ("train", "val", "test")
    found = leaves(metadataset, "train", datasets)
    assert found == [("coco:train", {}), ("coyo:train", {}), ("coyo:train", {})]
    assert leaves(metadataset, "val", datasets) == [("coco:val", {})]


def test_the_advanced_example_of_energon_loads(datasets):
    metadataset = parse_metadataset(ADVANCED)
    small = {
        "__subflavor__": "small_images",
        "augmentation_type": "small_images",
        "text_length": "short",
    }
    large = {"augmentation_type": "large_images", "text_length": "short"}
    assert leaves(metadataset, "train", datasets) == [
        ("coco:train", small),
        ("coyo:train", large),
        ("coyo:val", large),
    ]
    assert leaves(metadataset, "val", datasets) == [("coco:val", small)]
    assert leaves(metadataset, "test", datasets) == [("coyo:test", {})]
