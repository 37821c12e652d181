"""The documents of `packed_ids` as text: tokenized, then packed to 4,096 tokens."""

from dataclasses import replace

import torch

from benchmarks.cases import packed_ids
from benchmarks.tokenizer import encode


def write(number: int) -> bytes:
    return packed_ids.document(number).encode()


def decode(raw: bytes) -> torch.Tensor:
    return torch.tensor(encode(raw.decode()))


CASE = replace(packed_ids.CASE, name="packed", part="txt", write=write, decode=decode, step_ms=200)
