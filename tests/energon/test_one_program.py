"""A task encoder written for Energon, with stages and steps of documents, on several ranks."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path

import pytest
import torch
from data import CRUDE, TEXTS, make_dataset
from encoders import Everything, Words, WordsBatch, facts
from loading.steps import WAIT_S, together
from torch.distributed import HashStore

from energy_data import SkipSample, WorkerConfig, get_loader, get_train_dataset, sample_rng
from energy_data.loading.loader import Loader
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.grouper import StepGrouper, for_steps

LANES = 4

RANK = """
import json, sys
from pathlib import Path
from torch import distributed

sys.path.insert(0, sys.argv[1])
from test_one_program import LANES, dataset_of, given_by
from energy_data import get_loader

folder, out, steps = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
loader = get_loader(dataset_of(folder, rank, ranks, shares=LANES))
saved = [json.loads(path.read_text()) for path in sorted(out.glob("state-*"))]
if saved:
    loader.restore_state_global(saved)
(out / f"found-{ranks}-{rank}").write_text(json.dumps(given_by(loader, steps)))
distributed.barrier()
if not saved:
    (out / f"state-{rank}").write_text(json.dumps(loader.state_dict()))
distributed.barrier()
distributed.destroy_process_group()
"""


class ByThread(Everything):
    """Draws no global random numbers: the ranks of these tests are threads, which share them."""

    def preencode_sample(self, sample):
        number = int(sample.__key__.rpartition("-")[2])
        if number % 7 == 3:
            raise SkipSample
        if number % 7 == 5:
            raise ValueError("bad on purpose")
        noise = sample_rng().random()
        for part in range(1 + number % 2):
            text = f"{sample.text}/{part}"
            yield Words.derive_from(sample, text=text, length=1 + number % 4, noise=noise)

    def batch(self, samples):
        return WordsBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=tuple(sample.__restore_key__ for sample in samples),
            text=[sample.text for sample in samples],
            noise=torch.tensor([sample.noise for sample in samples]),
            number=self.current_batch_index,
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("program")
    make_dataset(made / "crude", CRUDE, count=30, images=False)
    make_dataset(made / "texts", TEXTS, count=40, images=False)
    return made


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL, "energy_data.core.user_call")


def dataset_of(folder, rank=0, ranks=1, **rules):
    crude, texts = ({"path": str(folder / name)} for name in ("crude", "texts"))
    stages = [
        {"name": "one", "end": 3, "blend": [{**crude, "weight": 2}, {**texts, "weight": 1}]},
        {"name": "two", "blend": [crude, texts], "params": {"packing_buffer_size": 6}},
    ]
    steps = {"target": 9, **rules, "of": {"staged": {"unit": "steps", "stages": stages}}}
    return get_train_dataset(
        {"splits": {"train": {"docs_per_step": steps}}},
        batch_size=2,
        packing_buffer_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=5,
        task_encoder=ByThread(),
        worker_config=WorkerConfig(rank, ranks, lanes=LANES),
    )


def loaders_of(folder, ranks, **rules):
    store = HashStore()
    loaders = []
    for rank in range(ranks):
        dataset = dataset_of(folder, rank, ranks, **rules)
        steps = dataset.docs_per_step
        loader = Loader(for_steps(dataset, steps), in_steps=True)
        loaders.append(StepGrouper(loader, steps, Exchange(dataset.worker_config, WAIT_S, store)))
    return loaders


def given_by(loader, steps):
    """The batches of one rank up to the end of a step: what is in them, with their step."""
    found = []
    for batch in loader:
        step = loader.last_step
        found.append((step.step, loader.last_batch, facts(batch), step.step_docs))
        if step.is_last and step.step + 1 >= steps:
            return found
    return found


def taken(loaders, steps):
    """The batches of whole steps over all ranks, step by step."""
    each = together(loaders, lambda loader: given_by(loader, steps))
    return sorted(one for mine in each for one in mine)


def test_stages_and_steps_with_cookers_and_packs_go_on_exactly(folder):
    expected = taken(loaders_of(folder, 2), 8)
    assert all(docs >= 9 for *_, docs in expected)
    assert taken(loaders_of(folder, 2), 8) == expected
    for before in (2, 3, 5):
        loaders = loaders_of(folder, 2)
        first = taken(loaders, before)
        states = [loader.state_dict() for loader in loaders]
        again = loaders_of(folder, 2)
        for loader in again:
            loader.restore_state_global(states)
        assert first + taken(again, 8) == expected


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("before", [2, 3, 5])
def test_steps_of_fixed_shares_go_on_on_other_ranks(folder, ranks, before):
    expected = taken(loaders_of(folder, 2, shares=LANES), 8)
    assert all(docs >= 9 for *_, docs in expected)
    loaders = loaders_of(folder, 2, shares=LANES)
    first = taken(loaders, before)
    states = [loader.state_dict() for loader in loaders]
    again = loaders_of(folder, ranks, shares=LANES)
    for loader in again:
        loader.restore_state_global(states)
    assert first + taken(again, 8) == expected


@pytest.mark.parametrize("ranks", [1, 4])
def test_steps_of_real_ranks_go_on_on_other_ranks(folder, tmp_path, gloo_ranks, ranks):
    expected = taken(loaders_of(folder, 2, shares=LANES), 6)
    here = str(Path(__file__).parent)
    for count, steps in ((2, 3), (ranks, 6)):
        gloo_ranks.run_well(RANK, tmp_path, count, here, str(folder), str(tmp_path), str(steps))
    files = tmp_path.glob("found-*")
    found = sorted(one for file in files for one in json.loads(file.read_text()))
    assert found == json.loads(json.dumps(expected))


def test_its_stages_are_given_by_the_usual_loader(folder):
    loader = get_loader(dataset_of(folder))
    batches = [facts(batch) for batch in islice(loader, 20)]
    state = loader.state_dict()
    rest = [facts(batch) for batch in islice(loader, 10)]
    again = get_loader(dataset_of(folder))
    again.load_state_dict(state)
    assert [facts(batch) for batch in islice(again, 10)] == rest
    assert len({text for texts, *_ in batches for text in texts}) > 20


@pytest.mark.parametrize("workers", [0, 2])
def test_stages_of_micro_batches_go_on_on_other_ranks(folder, workers):
    def streams(ranks):
        crude, texts = ({"path": str(folder / name)} for name in ("crude", "texts"))
        stages = [{"name": "one", "end": 5, **crude}, {"name": "two", **texts}]
        return [
            get_loader(
                get_train_dataset(
                    {"splits": {"train": {"staged": {"unit": "steps", "stages": stages}}}},
                    batch_size=2,
                    microbatches_per_step=4,
                    packing_buffer_size=4,
                    task_encoder=Everything(),
                    worker_config=WorkerConfig(rank, ranks, workers, lanes=LANES),
                )
            )
            for rank in range(ranks)
        ]

    def rounds(loaders, count):
        each = [[facts(batch) for batch in islice(loader, count)] for loader in loaders]
        return [one for one_round in zip(*each, strict=True) for one in one_round]

    expected = rounds(streams(1), 48)
    two = streams(2)
    assert rounds(two, 10) == expected[:20]
    states = [loader.state_dict() for loader in two]
    four = streams(4)
    for loader in four:
        loader.restore_state_global(states)
    assert rounds(four, 5) == expected[20:40]
