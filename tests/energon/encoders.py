"""Task encoders for the tests: one that does everything there is to do."""

from __future__ import annotations

import random

import numpy as np
import torch

from energy_data import sample_rng
from energy_data.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    edataclass,
    stateless,
)


def alone(num_workers: int = 0, lanes: int = 4, **facts) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=num_workers, lanes=lanes, **facts)


@edataclass
class Words(Sample):
    text: str
    length: int
    noise: float


@edataclass
class WordsBatch(Batch):
    text: list[str]
    noise: torch.Tensor
    number: int


@stateless
@cooker(need_primary=True, need_cache=True)
def cook_crude(sample, *, primary, cache, notes=None):
    lazy = cache.get_lazy(primary, ".txt")
    note = "" if notes is None else notes.get("note.txt", sample).decode()
    return TextSample(**basic_sample_keys(sample), text=lazy.get(sample) + note)


class Everything(DefaultTaskEncoder):
    """Cooks, takes apart, packs, groups, and draws random numbers in all ways."""

    cookers = (Cooker(cook_crude),)

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample):
        number = int(sample.__key__.rpartition("-")[2])
        if number % 7 == 3:
            raise SkipSample
        if number % 7 == 5:
            raise ValueError("bad on purpose")
        for part in range(1 + number % 2):
            yield Words.derive_from(
                sample,
                text=f"{sample.text}/{part}",
                length=1 + number % 4,
                noise=random.random() + np.random.rand() + float(torch.rand(())),
            )

    def select_samples_to_pack(self, samples):
        packs = [[]]
        for sample in sorted(samples, key=lambda one: -one.length):
            if sum(one.length for one in packs[-1]) + sample.length > 6:
                packs.append([])
            packs[-1].append(sample)
        return packs

    def postencode_sample(self, sample):
        sample.noise += sample_rng().random()
        return sample

    @stateless
    def pack_selected_samples(self, samples):
        return Words.derive_from(
            samples[0],
            text="+".join(sample.text for sample in samples),
            length=sum(sample.length for sample in samples),
            noise=samples[0].noise + float(torch.rand((), generator=sample_rng("torch"))),
        )

    def batch_group_criterion(self, sample):
        return sample.length % 2, None

    @stateless(restore_seeds=True)
    def batch(self, samples):
        return WordsBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=tuple(sample.__restore_key__ for sample in samples),
            text=[sample.text for sample in samples],
            noise=torch.tensor([sample.noise for sample in samples]) + random.random(),
            number=self.current_batch_index,
        )


class WithoutGlobalSeeds(Everything):
    """The same with `sample_rng` alone, as worker threads need it."""

    @stateless
    def preencode_sample(self, sample):
        for word in Everything.preencode_sample.__wrapped__(self, sample):
            word.noise = sample_rng().random()
            yield word

    @stateless
    def batch(self, samples):
        batch = Everything.batch.__wrapped__(self, samples)
        batch.noise = torch.tensor([sample.noise for sample in samples])
        return batch


def facts(batch: WordsBatch):
    return batch.text, batch.noise.tolist(), batch.number
