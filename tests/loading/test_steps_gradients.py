"""Gradients of a step depend neither on ranks nor on how documents fall into micro-batches."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from loading.steps import ranks_of, stream, together


def documents(batch):
    """Documents of 1 to 5 tokens, end to end, as packs are."""
    lengths = [1 + sample["number"] % 5 for sample in batch]
    tokens = [
        torch.arange(3 * n).reshape(n, 3) + sample["number"]
        for n, sample in zip(lengths, batch, strict=True)
    ]
    return {
        "__key__": [sample["__key__"] for sample in batch],
        "__docs__": {"documents": len(batch), "tokens": sum(lengths)},
        "tokens": torch.cat(tokens).double() / 1000,
    }


def tiny_model():
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    with torch.no_grad():  # not by a seed: ranks are threads here, and would share it
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    return model


def gradients(loaders, steps):
    """The gradient of each step, averaged over the ranks as DDP does."""

    def work(loader):
        model = tiny_model()
        found = []
        for batch in loader:
            step = batch["__step__"]
            loss = (model(batch["tokens"]) - 1).square().sum()
            (loss * step.dp_size / step.step_tokens).backward()
            if step.is_last:
                found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
                model.zero_grad()
            if len(found) == steps:
                return torch.stack(found)
        raise AssertionError("the stream ended")

    return torch.stack(together(loaders, work)).mean(dim=0)


EXACT = {"mode": "exact", "target": 22, "shares": 4}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_exact_steps_have_the_same_gradients(ranks, batch_size):
    expected = gradients(ranks_of(stream(documents, 2), 1, **EXACT), 3)
    found = gradients(ranks_of(stream(documents, batch_size), ranks, **EXACT), 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_of_the_same_micro_batches_have_the_same_gradients(ranks):
    expected = gradients(ranks_of(stream(documents), 1, target=24), 3)
    found = gradients(ranks_of(stream(documents), ranks, target=24), 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_step_has_the_gradient_of_one_big_batch():
    loaders = ranks_of(stream(documents), 2, **EXACT)
    given = together(loaders, lambda loader: list(islice(loader, 4)))
    tokens = [batch["tokens"] for mine in given for batch in mine if batch["__step__"].step == 0]
    model, whole = tiny_model(), torch.cat(tokens)
    assert len(whole) == given[0][0]["__step__"].step_tokens
    (model(whole) - 1).square().mean().backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    found = gradients(ranks_of(stream(documents), 2, **EXACT), 1)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-6)


def test_dividing_by_what_a_micro_batch_holds_would_be_wrong():
    loaders = ranks_of(stream(documents), 2, **EXACT)
    (own, _) = together(loaders, lambda loader: list(islice(loader, 2)))
    assert own[0]["__step__"].step_tokens != 2 * len(own[0]["tokens"])
