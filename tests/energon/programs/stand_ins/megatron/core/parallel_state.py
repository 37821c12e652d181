"""The ranks of a run: those of a tensor-parallel group follow each other."""

from __future__ import annotations

from torch import distributed

_groups: dict[str, distributed.ProcessGroup] = {}


def initialize_model_parallel(tensor: int) -> None:
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    peers = {
        "tensor": [range(first, first + tensor) for first in range(0, ranks, tensor)],
        "data": [range(first, ranks, tensor) for first in range(tensor)],
    }
    for name, groups in peers.items():
        for members in groups:
            group = distributed.new_group(list(members))  # which all ranks make
            if rank in members:
                _groups[name] = group


def is_initialized() -> bool:
    return bool(_groups)


def get_data_parallel_group() -> distributed.ProcessGroup:
    return _groups["data"]


def get_data_parallel_rank() -> int:
    return _groups["data"].rank()


def get_data_parallel_world_size() -> int:
    return _groups["data"].size()


def get_tensor_model_parallel_group() -> distributed.ProcessGroup:
    return _groups["tensor"]


def get_tensor_model_parallel_rank() -> int:
    return _groups["tensor"].rank()


def get_pipeline_model_parallel_rank() -> int:
    return 0


def get_pipeline_model_parallel_world_size() -> int:
    return 1


def get_context_parallel_rank() -> int:
    return 0


def get_expert_model_parallel_rank() -> int:
    return 0
