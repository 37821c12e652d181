"""Writes files of tokens with the writers of Megatron-LM and datatrove; runs in their environment.

Usage: token_writer.py FOLDER, with a list of lists of tokens in its documents.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder


def main() -> None:
    folder = Path(sys.argv[1])
    documents = json.loads((folder / "documents.json").read_text())
    for dtype in (np.uint16, np.int32):
        prefix = folder / f"megatron_{dtype.__name__}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
        for one in documents:
            builder.add_item(torch.tensor(one))
            builder.end_document()
        builder.finalize(f"{prefix}.idx")
        merged = IndexedDatasetBuilder(f"{prefix}_twice.bin", dtype=dtype)
        merged.add_index(str(prefix))
        merged.add_index(str(prefix))
        merged.finalize(f"{prefix}_twice.idx")
    for size in (2, 4):
        file = TokenizedFile(
            str(folder), f"datatrove_{size}.ds", save_loss_metadata=True, token_size=size
        )
        for one in documents:
            file.write(one, np.array([token % 2 == 0 for token in one]))
        file.close()


if __name__ == "__main__":
    main()
