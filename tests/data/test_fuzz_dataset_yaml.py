"""Whatever is in dataset.yaml, split files and .info: an error of ours, or samples."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import dataset

from energy_data.data.typed.wrap import open_typed
from energy_data.errors import DataError, SampleError, SpecError

GOOD = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "json[number],txt"},
    "subflavors": {"a": 1},
    "part_filter": ["txt"],
    "sample_loader": "sample_loader.py:sample_loader",
    "decoder": {"__module__": "megatron.energon", "__class__": "SampleDecoder"},
    "image_decode": "pil",
    "auto_decode": True,
    "__module__": "megatron.energon",
    "__class__": "TextWebdataset",
    "split_config": "split.yaml",
    "split_part": "train",
}
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(list(GOOD)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return dataset(tmp_path_factory.mktemp("fuzz"), shards=1, samples=2)


def outcome(folder):
    try:
        source = open_typed(folder)
        found = source.read(np.arange(len(source)))
    except (SpecError, DataError):
        return
    assert all(isinstance(one, SampleError) or one is not None for one in found)


@given(
    keys=st.sets(st.sampled_from(list(GOOD)), max_size=5),
    changed=st.dictionaries(st.sampled_from(list(GOOD)), JUNK, max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_any_keys_with_any_values(folder, keys, changed):
    said = {key: GOOD[key] for key in keys} | changed
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(said))
    outcome(folder)


@given(text=st.binary(max_size=60) | st.text("{}[]:,-&*!|>#% \n'\"ab1", max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_bytes(folder, text):
    data = text if isinstance(text, bytes) else text.encode()
    (folder / ".nv-meta" / "dataset.yaml").write_bytes(data)
    outcome(folder)


@given(text=st.text("ab[],.0-", max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_field_map(folder, text):
    said = {"sample_type": GOOD["sample_type"], "field_map": {"text": text}}
    (folder / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(said))
    outcome(folder)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch /tmp/energy_data_was_here']",
        "sample_type: !!python/name:os.system\nfield_map: {text: txt}",
        "sample_type: {__module__: os, __class__: system}\nfield_map: {text: txt}",
        "sample_type: {__module__: megatron.energon.cli, __class__: main}\nfield_map: {text: txt}",
        "decoder: {__module__: subprocess, __class__: Popen, args: [touch, x]}\n"
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
        "field_map: {text: txt}",
        "sample_loader: /etc/hostname:sample_loader\npart_filter: [txt]\n"
        "sample_type: {__module__: megatron.energon, __class__: TextSample}",
        "split_config: ../../../etc/passwd\n"
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\n"
        "field_map: {text: txt}",
    ],
)
def test_hostile_files_run_nothing(folder, text):
    (folder / ".nv-meta" / "dataset.yaml").write_text(text)
    with pytest.raises((SpecError, DataError)):
        open_typed(folder)
