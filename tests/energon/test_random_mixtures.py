"""The law over random metadatasets: joins, cookers and all a task encoder does, at each size."""

from __future__ import annotations

import json
import logging
from itertools import islice
from random import Random

import pytest
from data import CRUDE, TEXTS, make_dataset
from encoders import Everything, facts

from energy_data.energon import WorkerConfig, get_loader, get_train_dataset

LANES = 4
TREES = range(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("random")
    make_dataset(made / "crude", CRUDE, count=31, images=False)
    make_dataset(made / "raw", CRUDE, count=9, images=False)
    make_dataset(made / "typed", TEXTS, count=20, images=False)
    make_dataset(made / "more" / "typed", TEXTS, count=26, images=False)
    (made / "files").mkdir()
    (made / "files" / "note.txt").write_text("!")
    logging.getLogger("energy_data.core.user_call").setLevel(logging.CRITICAL)
    yield made
    logging.getLogger("energy_data.core.user_call").setLevel(logging.NOTSET)


def dataset_in(folder, rng, number):
    """Return one dataset of a mixture: crude with files, typed, a part of one, or a join."""
    kind = rng.choice(["crude", "crude", "raw", "typed", "part", "join", "join"])
    if kind == "join":
        nonmatch = {"path": str(folder / "typed"), "nonmatch": "skip"}
        return {
            "join": [{"path": str(folder / "more" / "typed")}, nonmatch],
            "joiner": {"__module__": "megatron.energon", "__class__": "TextSample"},
            "subflavors": {"number": number},
        }
    if kind == "part":
        first = rng.randrange(8)
        return {"path": str(folder / "crude"), "subset": {"range": [first, first + 12]}}
    said = {"path": str(folder / kind), "subflavors": {"number": number}}
    if kind == "crude" and number % 2:  # leaves with equal subflavors must have equal files
        said["aux"] = {"notes": f"filesystem://{folder / 'files'}"}
    return said


def mixture_of(folder, rng, kind, depth=2):
    """Return a random blend, by weight or by repetitions, with blends in it."""
    amount, values = {
        "blend": ("weight", (0.2, 1, 3, 7)),
        "blend_epochized": ("repetitions", (0.5, 1, 1.5, 2)),
    }[kind]
    parts = []
    for number in range(rng.randint(2, 4)):
        nested = depth and rng.random() < 0.4
        one = (
            mixture_of(folder, rng, kind, depth - 1) if nested else dataset_in(folder, rng, number)
        )
        parts.append({**one, amount: rng.choice(values)})
    return {kind: parts}


class Tree:
    """A random mixture, with random options."""

    def __init__(self, folder, seed):
        rng = Random(seed)
        kind = rng.choice(["blend", "blend_epochized"])
        self.said = {"splits": {"train": mixture_of(folder, rng, kind)}}
        self.options = {
            "batch_size": rng.randint(1, 3),
            "packing_buffer_size": (5, None, 14, 9)[seed % 4],
            "shuffle_buffer_size": rng.choice([None, 6]),
            "max_samples_per_sequence": rng.choice([None, 4]),
        }

    def loader(self, rank=0, ranks=1, num_workers=0):
        config = WorkerConfig(rank=rank, world_size=ranks, num_workers=num_workers, lanes=LANES)
        dataset = get_train_dataset(
            self.said, worker_config=config, task_encoder=Everything(), **self.options
        )
        return get_loader(dataset)


def on_ranks(loaders, rounds):
    """Return the batches of all ranks by their number in the run."""
    given = {}
    for loader in loaders:
        for batch in islice(loader, rounds):
            given[loader.last_batch] = facts(batch)
        loader.close()
    return dict(sorted(given.items()))


def saved(loaders):
    """Return the states of all ranks, through JSON."""
    return json.loads(json.dumps([loader.save_state_rank() for loader in loaders]))


def test_the_random_mixtures_have_all_there_is_to_mix(folder):
    trees = [Tree(folder, seed) for seed in TREES]
    for wanted in ("join", "aux", "subset", "weight", "repetitions", "crude"):
        having = [tree for tree in trees[:4] if wanted in json.dumps(tree.said)]
        assert having, wanted
    packing = [tree.options["packing_buffer_size"] is not None for tree in trees[:4]]
    assert any(packing)
    assert not all(packing)


@pytest.mark.parametrize("seed", TREES)
def test_a_random_mixture_is_one_stream_that_goes_on_anywhere(folder, seed):
    tree, rng = Tree(folder, seed), Random(f"sizes {seed}")
    expected = on_ranks([tree.loader()], 36)
    assert list(expected) == list(range(36))
    given, state = {}, None
    for ranks in (*rng.sample((1, 2, 4), 3), rng.choice((1, 2))):
        loaders = [tree.loader(rank, ranks) for rank in range(ranks)]
        if state is not None:
            for loader in loaders:
                loader.restore_state_global(rng.sample(state, len(state)))
        given |= on_ranks(loaders, rng.randint(0, 8 // ranks))
        state = saved(loaders)
    assert given == {g: expected[g] for g in range(len(given))}


@pytest.mark.parametrize("seed", TREES[:4])
def test_a_random_mixture_goes_on_with_any_workers_and_again_on_more_ranks(folder, seed):
    tree, rng = Tree(folder, seed), Random(f"workers {seed}")
    expected = on_ranks([tree.loader()], 24)
    at, workers, later = rng.randint(1, 7), rng.randint(1, 4), rng.choice((0, 2))
    loader = tree.loader(num_workers=workers)
    assert [facts(batch) for batch in islice(loader, at)] == list(expected.values())[:at]
    state = saved([loader])
    loader.close()
    loaders = [tree.loader(rank, 2, later) for rank in range(2)]
    for loader in loaders:
        loader.restore_state_global(state)
    assert saved(loaders) != state  # each has its own lanes
    assert on_ranks(loaders, 4) == {g: expected[g] for g in range(at, at + 8)}
