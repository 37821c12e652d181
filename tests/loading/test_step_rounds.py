"""Empty micro-batches."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass

import torch

from energy_data.loading.steps.rounds import empty_like


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    __docs__: int = 5


class Plain:
    def __init__(self):
        self.__docs__, self.__labels__ = 5, [1, 2]


def test_an_empty_micro_batch_says_that_nothing_is_in_it():
    said = {"__docs__": 5, "__tokens__": 4096, "__labels__": [7], "__groups__": 1}
    for batch in (said, UserDict(said)):
        assert dict(empty_like(batch)) == dict.fromkeys(said, 0)
        assert batch["__tokens__"] == 4096
    frozen, plain = Frozen(torch.ones(3)), Plain()
    assert (len(empty_like(frozen).x), empty_like(frozen).__docs__) == (0, 0)
    assert (empty_like(plain).__docs__, empty_like(plain).__labels__) == (0, 0)
    assert (frozen.__docs__, plain.__docs__, plain.__labels__) == (5, 5, [1, 2])
