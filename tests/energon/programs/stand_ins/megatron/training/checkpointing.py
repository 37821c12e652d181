"""The files of a checkpoint."""

from __future__ import annotations


def get_checkpoint_name(folder: str, iteration: int, *, pipeline_rank: int, basename: str) -> str:
    return f"{folder}/iter_{iteration:07d}/mp_rank_00/{basename}"
