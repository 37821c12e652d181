"""Bugs of mixtures, epochs and small datasets that Energon had and mended; none of them is ours.

With real worker processes where it had them with workers. The table of all is in
`test_fixed_bugs`.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from data import TEXTS, make_dataset
from encoders import alone

from energy_data.energon import (
    BlendDataset,
    RepeatDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)

SIZES = {"one": 1, "three": 3, "ten": 10, "forty": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("mixtures")
    for name, count in SIZES.items():
        make_dataset(made / name, TEXTS, count=count, shards=min(count, 2), images=False)
    return made


def counts(loader, count=None):
    """Return how often each sample comes, and close the loader."""
    found = Counter(text for batch in islice(loader, count) for text in batch.text)
    loader.close()
    return found


def of_dataset(found):
    total = Counter()
    for text, times in found.items():
        total[text.split()[0]] += times
    return total


def blend(folder, kind="blend_epochized", **amounts):
    key = "repetitions" if kind == "blend_epochized" else "weight"
    parts = [{"path": str(folder / name), key: amount} for name, amount in amounts.items()]
    return {"splits": {"train": {kind: parts}, "val": {kind: parts}}}


def loader_of(path, num_workers=0, batch_size=1, world_size=1, rank=0, **options):
    config = WorkerConfig(rank, world_size, num_workers, lanes=4 * world_size)
    return get_loader(
        get_train_dataset(path, batch_size=batch_size, worker_config=config, **options)
    )


@pytest.mark.parametrize("num_workers", [0, 3])
def test_pr41_a_blend_of_what_ends_has_all_of_each_and_ends_with_the_last(folder, num_workers):
    """PR #41, #14: epochs were not exact, and a blend went on after its datasets had ended."""
    config = alone(num_workers)
    parts = [
        get_val_dataset(folder / name, batch_size=1, worker_config=config)
        for name in ("one", "three", "ten")
    ]
    found = counts(get_loader(BlendDataset(*zip(parts, (5, 1, 1), strict=True))))
    assert (len(found), set(found.values())) == (14, {1})


@pytest.mark.parametrize("num_workers", [0, 3])
def test_pr89_a_pass_stops_right_after_its_last_sample_and_the_next_begins_anew(
    folder, num_workers
):
    """PR #89, 5bc1ed9, 6c03a5d, c4ad786: repetitions in floats, and one batch too many."""
    loader = loader_of(folder / "ten", num_workers, batch_size=5, repeat=False)
    for _ in range(3):
        passes = [batch.text for batch in loader]
        assert [len(texts) for texts in passes] == [5, 5]
        assert len({text for texts in passes for text in texts}) == 10
    loader.close()


@pytest.mark.parametrize("repeats", [0.3, 1.1, 2.7])
def test_pr89_a_fraction_of_a_pass_is_exact_though_floats_are_not(folder, repeats):
    dataset = get_val_dataset(folder / "ten", batch_size=None, worker_config=alone())
    drawn = list(get_loader(RepeatDataset(dataset, repeats=repeats)))
    assert len(drawn) == round(repeats * 10)


def test_pr89_an_order_over_no_number_of_epochs_has_each_sample_once_in_each(folder):
    """PR #89: `shuffle_over_epochs=None` failed."""
    loader = loader_of(folder / "ten", shuffle_over_epochs_multiplier=None)
    assert set(counts(loader, 40).values()) == {4}  # of 10 samples, in 4 lanes


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("half", [0.5, 1.5, 2.3])
def test_pr147_fractions_of_repetitions_are_exact_with_any_workers(folder, half, num_workers):
    """PR #147 (21ac63c): with several workers each rounded its own part of the fraction."""
    text = blend(folder, ten=half, forty=half, three=1)
    found = counts(loader_of(text, num_workers, repeat=False))
    assert of_dataset(found)["three"] == 3
    assert abs(of_dataset(found)["ten"] - 10 * half) <= 1
    assert abs(of_dataset(found)["forty"] - 40 * half) <= 1
    assert sum(found.values()) == round(50 * half + 3)


def test_6f52019_repetitions_go_on_without_end_in_the_same_proportions(folder):
    """6f52019: `blend_epochized` ended, or began one dataset too early, with `repeat=True`."""
    found = counts(loader_of(blend(folder, ten=1, three=4)), 3 * 22)
    assert of_dataset(found) == {"ten": 30, "three": 36}
    assert {text: times for text, times in found.items() if "ten" in text} == {
        f"ten {n}": 3 for n in range(10)
    }


@pytest.mark.parametrize("num_workers", [0, 4])
def test_pr145_a_dataset_smaller_than_the_workers_is_whole_alone_and_in_a_mixture(
    folder, num_workers
):
    """PR #145 (ed7a4d8): an IndexError, and a worker that was done was not marked as such."""
    alone_ = counts(loader_of(folder / "three", num_workers, repeat=False))
    assert alone_ == {f"three {n}": 1 for n in range(3)}
    mixed = counts(loader_of(blend(folder, three=1, one=2, ten=1), num_workers, repeat=False))
    assert of_dataset(mixed) == {"three": 3, "one": 2, "ten": 10}
    endless = counts(loader_of(blend(folder, "blend", one=1, forty=3), num_workers), 80)
    assert abs(of_dataset(endless)["one"] - 20) <= 4
    config = alone(num_workers)
    held = get_loader(get_val_dataset(folder / "three", batch_size=2, worker_config=config))
    assert counts(held) == alone_


@pytest.mark.parametrize("at", range(4))
def test_pr69_workers_without_samples_disturb_neither_keys_nor_restores(folder, at):
    """PR #68, #69: with a worker that had none, restore keys pointed into another dataset."""
    text = blend(folder, one=1, three=1)

    def drawn(loader, count):
        return [(batch.text, batch.__restore_key__) for batch in islice(loader, count)]

    loader = loader_of(text, 4)
    expected = drawn(loader, 12)
    loader.close()
    assert all(
        f"{key[0][0].rpartition('/')[2].split(':')[0]} {key[0][2]}" == texts[0]
        for texts, key in ((texts, keys) for texts, keys in expected)
        if texts[0].startswith("one")
    )
    loader = loader_of(text, 4)
    assert drawn(loader, at) == expected[:at]
    state = loader.save_state_rank()
    loader.close()
    loader = loader_of(text, 4)
    loader.restore_state_rank(state)
    assert drawn(loader, 8) == expected[at : at + 8]
    loader.close()


def test_pr32_what_is_left_over_of_many_datasets_does_not_pile_up(tmp_path):
    """PR #32: of 40 datasets of 3 samples, the same ranks and workers got all the remainders."""
    names = [f"d{number}" for number in range(40)]
    for name in names:
        make_dataset(tmp_path / name, TEXTS, count=3, shards=1, images=False)
    text = blend(tmp_path, **dict.fromkeys(names, 1))
    by_rank = [
        sum(counts(loader_of(text, world_size=4, rank=rank, repeat=False)).values())
        for rank in range(4)
    ]
    assert by_rank == [30, 30, 30, 30]
    drawn = counts(loader_of(blend(tmp_path, "blend", **dict.fromkeys(names, 1))), 120)
    assert set(of_dataset(drawn).values()) <= {2, 3, 4}
