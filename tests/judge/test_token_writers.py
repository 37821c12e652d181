"""Files of tokens that Megatron-LM and datatrove wrote are read as they were written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from place import PYTHON
from token_files import flat, some_documents

from energy_data.data.registry import open_source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="the writers are not installed"),
]
DOCUMENTS = some_documents(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("written")
    writer = Path(__file__).parent / "token_writer.py"
    (written / "documents.json").write_text(json.dumps(DOCUMENTS))
    subprocess.run([PYTHON, writer, written], check=True)
    return written


def read(path, field="tokens", **keys):
    source = open_source(path, **keys)
    return [sample[field].tolist() for sample in source.read(np.arange(len(source)))]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_documents_and_windows_of_megatron(folder, dtype):
    assert read(folder / f"megatron_{dtype}.bin") == DOCUMENTS
    assert read(folder / f"megatron_{dtype}_twice.bin") == DOCUMENTS * 2
    stream = flat(DOCUMENTS).tolist()
    assert read(folder / f"megatron_{dtype}.bin", seq_len=100)[7] == stream[700:800]


@pytest.mark.parametrize("size", [2, 4])
def test_documents_and_loss_masks_of_datatrove(folder, size):
    assert read(folder / f"datatrove_{size}.ds") == DOCUMENTS
    masks = [[token % 2 == 0 for token in one] for one in DOCUMENTS]
    assert read(folder / f"datatrove_{size}.ds", "loss_mask") == masks
