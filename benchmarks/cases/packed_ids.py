"""Documents of tokens, of 2 bytes each, packed to 4,096: batches of about 16 packs."""

import numpy as np
import torch

from benchmarks.case import TAR_LOADERS, Batch, Case
from benchmarks.tokenizer import END, TOKENIZER, WORDS, encode

LENGTH = 4096


def write(number: int) -> bytes:
    """Return the tokens of a document."""
    return np.array(encode(document(number)), "<u2").tobytes()


def document(number: int) -> str:
    """Return a document of 2 to 8 KB; it begins with its number."""
    draw = np.random.default_rng(number)
    words = draw.integers(0, len(WORDS), int(draw.integers(400, 1600))).tolist()
    return f"{number:09d} " + " ".join(WORDS[word] for word in words)


def decode(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, "<u2").astype(np.int64))


def check(batch: Batch) -> None:
    """Check type and shape, that packs are full, and each document."""
    values = batch["values"]
    assert values.dtype == torch.int64, values.dtype
    assert values.ndim == 2, values.shape
    assert values.shape[1] == LENGTH, values.shape
    assert batch["count"] == int((values != 0).sum())
    assert batch["count"] > 0.85 * values.numel(), batch["count"] / values.numel()
    for row in values:
        ends = (row == END).nonzero()[:, 0].add(1).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            text = TOKENIZER.decode(row[begin:end].tolist())
            assert text == document(int(text[:9]))


CASE = Case(
    name="packed_ids",
    part="ids",
    write=write,
    decode=decode,
    check=check,
    batch_size=64,
    num_samples=8_000,
    samples_per_shard=500,
    decode_by_user=True,
    pack_length=LENGTH,
    documents_per_pack=4,
    loaders=tuple(name for name in TAR_LOADERS if name != "energy_data_encoder"),
)
