"""The options of a run of Megatron-LM."""

from __future__ import annotations

from types import SimpleNamespace

ARGS = SimpleNamespace(
    data_path=["captions.yaml"],
    micro_batch_size=3,
    packing_buffer_size=None,
    num_workers=1,
    eval_iters=1,
    dataloader_save="states",
    load=None,
    iteration=0,
)


def get_args() -> SimpleNamespace:
    return ARGS
