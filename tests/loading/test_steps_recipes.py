"""The recipes of docs/docs-per-step.md, run with stand-ins for the frameworks they are for.

A stand-in has the methods that the recipe calls, and does to losses and gradients what the real one
does, as its source says. The gradients of all recipes are those of plain averaging.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from loading.steps import ranks_of, stream, together
from loading.test_steps_gradients import documents, gradients, tiny_model

PAGE = (Path(__file__).parents[2] / "docs" / "docs-per-step.md").read_text()
STEPS = 4


def recipe(name):
    """The first block below a heading of the page."""
    (text,) = re.findall(rf"^### {name}\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return compile(text, name, "exec")


def steps_of():
    """The function of the page that collects the micro-batches of a step."""
    names = {}
    exec(recipe("Whole steps"), names)
    return names["steps_of"]


def labelled(batch):
    """Documents of tokens, of which each is a label."""
    made = documents(batch)
    return {**made, "__docs__": {**made["__docs__"], "labels": made["__docs__"]["tokens"]}}


def losses_of(model, batch):
    return (model(batch["tokens"]) - 1).square()


class Recorded:
    """A model whose gradients are written down when the optimizer steps."""

    def __init__(self):
        self.model, self.found = tiny_model(), []

    def step(self):
        self.found.append(torch.cat([p.grad.flatten() for p in self.model.parameters()]))
        self.model.zero_grad()


class DeepSpeed(Recorded):
    """An engine. A boundary counts if it is set before the forward pass."""

    gradient_accumulation_steps = 2
    boundary: bool | None = None
    at_forward: bool | None = None

    def set_gradient_accumulation_boundary(self, is_boundary):
        self.boundary = is_boundary

    def __call__(self, batch):
        self.at_forward = self.boundary
        return losses_of(self.model, batch)

    def backward(self, loss, retain_graph=False, scale_wrt_gas=True):
        assert loss.dim() == 0
        (loss / self.gradient_accumulation_steps if scale_wrt_gas else loss).backward()

    def step(self):
        assert self.boundary is not None
        assert self.boundary == self.at_forward
        if self.boundary:
            super().step()


class Megatron(Recorded):
    """A schedule without pipeline, of one context-parallel rank."""

    def __call__(
        self,
        *,
        forward_step_func,
        data_iterator,
        model,
        num_microbatches,
        seq_length,
        micro_batch_size,
        forward_only=False,
    ):
        for _ in range(num_microbatches):
            output, loss_func = forward_step_func(data_iterator, model)
            outputs = loss_func(output)
            assert len(outputs) == 2
            output, _ = outputs
            output /= num_microbatches
            output.backward()
        assert next(data_iterator, None) is None


@dataclass
class Target:
    num_labels_in_batch: int | None = None


@dataclass
class Input:
    tokens: Any
    targets: list = field(default_factory=lambda: [Target(), Target()])
    num_documents_in_batch: int | None = None


class FastLLM(Recorded):
    """A runner. It divides losses by what the step holds, and multiplies by the two ranks."""

    def __init__(self, by):
        super().__init__()
        self.by, self.iterations = by, []

    def run_step(self, data_iterator, schedule, *, iteration=1):
        for _ in range(schedule):
            for one in next(data_iterator):
                losses = (self.model(one.tokens) - 1).square()
                labels = {target.num_labels_in_batch for target in one.targets}
                (count,) = labels if self.by == "labels" else {one.num_documents_in_batch}
                (losses.sum() * 2 / count).backward()
        assert next(data_iterator, None) is None
        self.iterations.append(iteration)
        self.step()


def halves(batch):
    """The inputs of a micro-batch in two splits."""
    return [Input(part) for part in batch["tokens"].tensor_split(2)]


def averaged(work):
    """What `work` finds, averaged over two ranks. It gets the batches of whole steps."""

    def on_rank(loader):
        batches = []
        for batch in loader:
            batches.append(batch)
            if batch["__step__"].is_last and batch["__step__"].step == STEPS - 1:
                return torch.stack(work(batches))
        raise AssertionError("the stream ended")

    found = torch.stack(together(ranks_of(stream(labelled), 2, **EXPECTED), on_rank))
    return found.mean(dim=0)


EXPECTED = {"mode": "exact", "target": 22, "shares": 4}


@pytest.fixture(scope="module")
def expected():
    return gradients(ranks_of(stream(labelled), 1, **EXPECTED), STEPS)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


def test_deepspeed(expected):
    def work(batches):
        engine = DeepSpeed()
        exec(recipe("DeepSpeed"), {"loader": batches, "engine": engine})
        return engine.found

    close(averaged(work), expected)


def test_megatron(expected):
    def work(batches):
        schedule = Megatron()
        names = {
            "loader": batches,
            "steps_of": steps_of(),
            "forward_backward_func": schedule,
            "model": lambda batch: losses_of(schedule.model, batch),
            "optimizer": schedule,
            "seq_length": 8,
            "micro_batch_size": 1,
        }
        exec(recipe("Megatron"), names)
        return schedule.found

    close(averaged(work), expected)


@pytest.mark.parametrize("by", ["labels", "documents"])
def test_fast_llm(expected, by):
    def work(batches):
        runner = FastLLM(by)
        names = {"loader": batches, "runner": runner, "preprocess": halves, "schedule_for": int}
        names["steps_of"] = steps_of()
        exec(recipe("Fast-LLM"), names)
        assert runner.iterations == [1, 2, 3, 4]
        return runner.found

    found = averaged(work)
    if by == "documents":
        (loader,) = ranks_of(stream(labelled), 1, **EXPECTED)
        steps = [batch["__step__"] for batch in islice(loader, 40)]
        tokens = {step.step: step.step_tokens for step in steps}
        expected = expected * torch.tensor([tokens[n] for n in range(STEPS)])[:, None] / 22
    close(found, expected)
