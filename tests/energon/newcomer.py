"""What somebody does who begins with Energon: prepare, blend, train, save, go on. A program.

Only the import below is other than it would be there.
"""

import sys

import torch
from megatron.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)


@edataclass
class Digits(Sample):
    digits: torch.Tensor
    weight: float


@edataclass
class DigitsBatch(Batch):
    digits: torch.Tensor
    weights: torch.Tensor


@stateless
def cook(sample: dict) -> Digits:
    return Digits(
        **basic_sample_keys(sample),
        digits=torch.tensor([float(c) for c in sample["txt"].split()[-1]]),
        weight=sample["__subflavors__"]["weight"],
    )


class DigitsEncoder(DefaultTaskEncoder[dict, Digits, DigitsBatch, DigitsBatch]):
    cookers = (Cooker(cook),)
    decoder = DefaultTaskEncoder.decoder

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Digits) -> Digits:
        if sample.digits[-1] == 9:
            raise SkipSample
        noise = torch.rand(len(sample.digits)) / 100
        return Digits.derive_from(sample, digits=sample.digits + noise, weight=sample.weight)

    @stateless
    def batch(self, samples: list[Digits]) -> DigitsBatch:
        length = max(len(sample.digits) for sample in samples)
        padded = torch.zeros(len(samples), length)
        for row, sample in zip(padded, samples, strict=True):
            row[: len(sample.digits)] = sample.digits
        return DigitsBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=tuple(sample.__restore_key__ for sample in samples),
            digits=padded,
            weights=torch.tensor([sample.weight for sample in samples]),
        )


def new_loader(num_workers: int):
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers)
    dataset = get_train_dataset(
        "blend.yaml",
        batch_size=4,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        worker_config=config,
        task_encoder=DigitsEncoder(),
    )
    return get_savable_loader(dataset)


def train(loader, steps: int) -> list[str]:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    seen = []
    for step, batch in zip(range(steps), loader, strict=False):
        loss = ((batch.digits * weight).sum(dim=1) * batch.weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(f"{step} {batch.__key__} {batch.digits.sum().item():.6f}")
    return seen


if __name__ == "__main__":
    workers = int(sys.argv[1])
    loader = new_loader(workers)
    train(loader, 7)
    torch.save({"loader": loader.save_state_rank()}, "checkpoint.pt")
    expected = train(loader, 5)

    again = new_loader(workers)
    state = torch.load("checkpoint.pt", weights_only=len(sys.argv) > 2)
    again.restore_state_rank(state["loader"])
    assert train(again, 5) == expected, "restored, it goes on differently"

    config = WorkerConfig(rank=0, world_size=1, num_workers=workers)
    val = get_val_dataset(
        "blend.yaml", batch_size=4, worker_config=config, task_encoder=DigitsEncoder()
    )
    keys = [key for batch in get_savable_loader(val) for key in batch.__key__]
    print(len(keys), len(set(keys)))  # noqa: T201 - a program tells its result
