"""What is told of stages: by batches, by logs, and on the command line."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from loading.runs import in_order, loader_of
from trees import A, B, batches, samples, staged

from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.stage import with_stage


@dataclass(frozen=True)
class Data:
    keys: tuple
    __stage__: tuple | None = None
    made: int = field(default=0, init=False)


@attrs.frozen
class Attrs:
    keys: tuple
    __stage__: Any = None


@dataclass
class Plain:
    keys: tuple


class Named(NamedTuple):
    keys: tuple


@pytest.mark.parametrize("batch", [Data((1,)), Attrs((1,))])
def test_a_batch_with_a_field_for_it_says_its_stage(batch):
    told = with_stage(batch, 1, "anneal")
    assert told.__stage__ == (1, "anneal")
    assert told.keys == (1,)
    assert type(told) is type(batch)
    assert batch.__stage__ is None


def test_a_dict_gets_a_key_and_other_batches_stay_as_they_are():
    tensor, plain, named = torch.ones(2), Plain((1,)), Named((1,))
    assert with_stage({"x": tensor}, 0, "a") == {"x": tensor, "__stage__": (0, "a")}
    for batch in (tensor, plain, named, [1], "x"):
        assert with_stage(batch, 0, "a") is batch


def test_the_loader_says_the_stage_of_any_batch():
    loader = loader_of(staged(batches(samples(A)), batches(samples(B))), lanes=2)
    assert loader.stage is None
    told = []
    for _ in range(7):
        loader.next_batch()
        told.append(loader.stage)
    assert told == [(0, "s0")] * 5 + [(1, "s1")] * 2


def spec():
    first = BatchSpec(of=samples(A), batch_size=3, collate=tuple)
    loose = staged(first, BatchSpec(of=samples(B), batch_size=2, collate=tuple), first)
    params = [{"batch_size": size, "seq_len": n} for size, n in ((3, 4096), (2, 32768), (3, 4096))]
    stages = [
        attrs.evolve(stage, params=known, microbatches_per_step=1, asked=f"5 steps of {number}")
        for number, (stage, known) in enumerate(zip(loose.stages, params, strict=True))
    ]
    return attrs.evolve(loose, stages=tuple(stages))


PLAN = """\
============================================================
STAGES OF THE RUN
============================================================
Stages: 3

Stage 1: s0
  Steps: 0 -> 5 (5), asked for 5 steps of 0
  Micro-batches: 0 -> 5 (5)
  Samples: 15
  Tokens: 61,440
  On enter: continue
  batch_size: 3
  seq_len: 4,096
  Leaves: 1
    - a: 100 % of the samples, 1.5 epochs

Stage 2: s1
  Steps: 5 -> 10 (5), asked for 5 steps of 1
  Micro-batches: 5 -> 10 (5)
  Samples: 10
  Tokens: 327,680
  On enter: continue
  batch_size: 2
  seq_len: 32,768
  Leaves: 1
    - b: 100 % of the samples, 2.5 epochs

Stage 3: s2
  Steps: 10 -> the end, asked for 5 steps of 2
  Micro-batches: 10 -> the end
  On enter: continue
  batch_size: 3
  seq_len: 4,096
  Leaves: 1
    - a: 100 % of the samples
============================================================
micro-batch 0 is of stage 's0' (1)
============================================================
STAGE TRANSITION
============================================================
Step 5, micro-batch 5: 's0' -> 's1'
  batch_size: 3 -> 2
  seq_len: 4,096 -> 32,768
  leaf a: 100 % -> 0 % of the samples
  leaf b: 0 % -> 100 % of the samples
============================================================
============================================================
STAGE TRANSITION
============================================================
Step 10, micro-batch 10: 's1' -> 's2'
  batch_size: 2 -> 3
  seq_len: 32,768 -> 4,096
  leaf a: 0 % -> 100 % of the samples
  leaf b: 100 % -> 0 % of the samples
  leaf a continues after 15 samples of this rank (1.5 of an epoch)
============================================================"""


def test_the_plan_and_every_transition_are_logged(caplog):
    with caplog.at_level(logging.INFO, "energy_data.loading.reports"):
        in_order([loader_of(spec(), lanes=2)], 12)
    assert "\n".join(record.message for record in caplog.records) == PLAN


def test_a_resumed_run_logs_the_plan_and_where_it_is_and_only_rank_0_logs(caplog):
    loader = loader_of(spec(), lanes=2)
    in_order([loader], 7)
    state = loader.state_dict()
    with caplog.at_level(logging.INFO, "energy_data.loading.reports"):
        again = loader_of(spec(), lanes=2)
        again.load_state_dict(state)
        in_order([again], 1)
        assert caplog.records[0].message == "=" * 60
        assert caplog.records[-1].message == "micro-batch 7 is of stage 's1' (2)"
        caplog.clear()
        even = staged(batches(samples(A)), batches(samples(B)), every=2)
        in_order([loader_of(even, 1, 2, lanes=2)], 12)
        assert not caplog.records


def test_a_run_without_stages_logs_no_plan(caplog):
    with caplog.at_level(logging.INFO, "energy_data.loading.reports"):
        in_order([loader_of(batches(samples(A)))], 3)
    assert not caplog.records
