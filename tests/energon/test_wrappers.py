"""Wrappers: what each gives, and what it refuses."""

from __future__ import annotations

import logging
from itertools import islice

import pytest
from data import TEXTS, make_dataset
from encoders import alone

from energy_data import sample_rng
from energy_data.energon import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    IterMapDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleBufferDataset,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    traverse_metadataset,
)
from energy_data.errors import SpecError


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("wrappers") / "texts", TEXTS, images=False)


def once(path):
    """Return one pass over the samples, one by one."""
    return get_val_dataset(path, batch_size=None, worker_config=alone(lanes=1))


def endless(path, **facts):
    return get_train_dataset(
        path,
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=alone(lanes=1),
        **facts,
    )


def numbers(dataset, count=None):
    return [int(sample.text.split()[-1]) for sample in islice(get_loader(dataset), count)]


def is_even(sample):
    return int(sample.text.split()[-1]) % 2 == 0


def doubled(stream):
    for sample in stream:
        yield sample
        yield sample


def test_wrappers_give_what_they_say(texts):
    all_ = numbers(once(texts))
    assert sorted(all_) == list(range(20))
    assert numbers(FilterDataset(once(texts), filter_fn=is_even)) == [n for n in all_ if n % 2 == 0]
    twice = IterMapDataset(once(texts), doubled, stateless_iter_fn=True)
    assert numbers(twice) == [n for n in all_ for _ in range(2)]
    assert numbers(LimitDataset(once(texts), 3)) == all_[:3]
    assert numbers(ConcatDataset(once(texts), once(texts))) == all_ * 2
    assert numbers(GcDataset(once(texts))) == all_
    mapped = MapDataset(once(texts), lambda sample: sample.text)
    assert list(mapped) == [f"texts {n}" for n in all_]
    batches = BatchDataset(once(texts), 8, lambda samples: len(samples))
    assert list(batches) == [8, 8, 4]
    assert [len(one) for one in (once(texts), batches, LimitDataset(batches, 2))] == [20, 3, 2]


def in_fives(samples):
    return [samples[at : at + 5] for at in range(0, len(samples), 5)]


def ends(samples):
    yield samples[0].text
    yield samples[-1].text


def test_packs_are_selected_and_a_packer_may_give_several_samples_for_one(texts):
    packed = PackingDataset(once(texts), 10, in_fives, lambda samples: samples[-1].text)
    all_ = numbers(once(texts))
    assert list(packed) == [f"texts {n}" for n in all_[4::5]]
    packed = PackingDataset(once(texts), 10, in_fives, ends)
    assert list(packed) == [f"texts {n}" for at in range(0, 20, 5) for n in all_[at : at + 5 : 4]]


def is_lucky(sample):
    return sample_rng().integers(3) > 0


def lucky(texts, num_workers=0):
    dataset = get_train_dataset(
        texts,
        batch_size=None,
        shuffle_buffer_size=6,
        max_samples_per_sequence=4,
        worker_config=alone(num_workers),
    )
    return get_loader(FilterDataset(dataset, filter_fn=is_lucky))


def test_a_filter_may_draw_lots_which_are_those_of_the_sample(texts):
    expected = [sample.text for sample in islice(lucky(texts), 60)]
    assert 15 <= len(set(expected)) <= 20  # in each epoch others are left out
    loader = lucky(texts, 3)
    assert [sample.text for sample in islice(loader, 25)] == expected[:25]
    state = loader.save_state_rank()
    loader.close()
    again = lucky(texts)
    again.restore_state_rank(state)
    assert [sample.text for sample in islice(again, 35)] == expected[25:]
    assert again.stats().skipped["rejected by a filter"] > 10


@pytest.mark.parametrize("repeats", [0.5, 1, 2, 2.5])
def test_repetitions_are_exact_fractions_too(texts, repeats):
    drawn = numbers(RepeatDataset(once(texts), repeats=repeats))
    assert len(drawn) == 20 * repeats
    assert {drawn.count(n) for n in set(drawn)} <= {int(repeats), int(repeats) + 1}


def test_what_is_endless_stays_so_and_what_ends_can_be_made_endless(texts):
    assert numbers(RepeatDataset(endless(texts)), 45) == numbers(endless(texts), 45)
    assert len(numbers(RepeatDataset(once(texts)), 45)) == 45


def test_epochs_go_on_where_the_last_ended(texts):
    loader = get_loader(EpochizeDataset(endless(texts), length=7))
    epochs = [[sample.text for sample in loader] for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [7, 7, 7]
    assert [text for epoch in epochs for text in epoch] == [
        f"texts {n}" for n in numbers(endless(texts), 21)
    ]
    mapped = MapDataset(EpochizeDataset(endless(texts), length=7), lambda sample: sample.text)
    assert len(list(get_loader(mapped))) == 7


def test_shuffling_sets_the_order_and_only_there(texts):
    shuffled = numbers(ShuffleBufferDataset(endless(texts), size=10), 20)
    assert sorted(shuffled) == list(range(20))
    assert shuffled != numbers(endless(texts), 20)
    batches = BatchDataset(endless(texts), 2, list)
    with pytest.raises(SpecError, match="must wrap samples as they are read"):
        ShuffleBufferDataset(batches, size=10)


def test_keys_are_logged_on_request(texts, caplog):
    with caplog.at_level(logging.INFO, "energy_data.tasks.datasets"):
        list(islice(LogSampleDataset(once(texts), "val"), 2))
    assert "val: ['texts-0000']" in caplog.text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one: BlendDataset(), "BlendDataset: it has no datasets"),
        (lambda one: BlendDataset(one), "argument 0 must be a pair"),
        (lambda one: BlendDataset((3, 1)), "must be a dataset of energy_data, got a int"),
        (lambda one: ConcatDataset(), "ConcatDataset: it has no datasets"),
        (lambda one: EpochizeDataset(one), "give one of length and num_epochs"),
        (lambda one: EpochizeDataset(one, 0), "an epoch must have >= 1 items"),
        (lambda one: RepeatDataset(one, repeats=0), "repeats must be > 0"),
        (lambda one: RepeatDataset(one, restart=False), "restart=False is not supported"),
        (
            lambda one: RepeatDataset(BatchDataset(one, 2, list), repeats=1.5),
            "repeats must be a whole number",
        ),
        (lambda one: IterMapDataset(one, doubled), "pass stateless_iter_fn=True"),
        (
            lambda one: FilterDataset(
                one, filter_fn=is_even, worker_config=WorkerConfig(rank=0, world_size=2)
            ),
            "FilterDataset: its worker_config and its datasets belong to different runs",
        ),
    ],
)
def test_what_cannot_be_is_refused(texts, make, message):
    with pytest.raises(SpecError, match=message):
        make(once(texts))


def test_a_metadataset_is_traversed_and_loaded(texts):
    file = texts.parent / "meta.yaml"
    node = "path: texts, weight: 3, subflavors: {a: 1}, aux: {b: ./texts, c: 'filesystem://./x'}"
    file.write_text(f"splits: {{train: {{blend: [{{{node}}}]}}}}")
    (found,) = traverse_metadataset(file, split_part="train")
    assert (found.path, found.split_part, found.subflavors) == (texts, "train", {"a": 1})
    assert found.aux == {"b": texts, "c": texts.parent / "x"}
    file.write_text("splits: {train: {blend: [{path: texts, weight: 3, subflavors: {a: 1}}]}}")
    loaded = load_dataset(file).get_datasets(
        training=True, split_part="train", worker_config=alone()
    )
    (one,) = loaded.datasets
    assert one.dataset.paths == [texts]
    assert (len(one.dataset), one.weight, one.dataset.subflavors) == (20, 1.0, {"a": 1})
    with pytest.raises(SpecError, match="not a metadataset"):
        traverse_metadataset(texts, split_part="train")


@pytest.mark.parametrize(
    ("node", "amounts"),
    [
        ("blend: [{path: texts, weight: 3}, {path: texts, id: b}, {path: texts, weight: 0}]", [
            (0.75, None), (0.25, None)
        ]),
        ("blend_epochized: [{path: texts, repetitions: 2}, {path: texts, id: b}]", [
            (None, 2), (None, 1)
        ]),
        ("docs_per_step: {target: 2, of: {blend: [{path: texts}]}}", [(1.0, None)]),
        ("concat: [{path: texts}, {path: texts}]", [(None, None), (None, None)]),
        ("blend: [{blend_epochized: [{path: texts}, {path: texts}]}]", [(None, None)] * 2),
    ],
)  # fmt: skip
def test_datasets_of_one_pass_have_the_weights_and_repetitions_of_the_metadataset(
    texts, node, amounts
):
    file = texts.parent / "amounts.yaml"
    file.write_text(f"splits: {{train: {{{node}}}}}")
    loaded = load_dataset(file).get_datasets(
        training=False, split_part="train", worker_config=alone()
    )
    assert [(one.weight, one.repetitions) for one in loaded.datasets] == amounts
    assert all(len(list(get_loader(one.dataset.build()))) == 20 for one in loaded.datasets)


class Halves(DefaultTaskEncoder):
    """A mixture that is put together anew, as the code of Energon 7 does it."""

    def build_train_datasets(self, *, datasets, worker_config, batch_size, **_):
        parts = [
            (RepeatDataset(one.dataset.build(), worker_config=worker_config), 1.0)
            for one in datasets
        ]
        blend = BlendDataset(*parts, worker_config=worker_config)
        return self.build_batch(blend, batch_size=batch_size, worker_config=worker_config)


@pytest.mark.parametrize("epochs", [1, 3, -1, None])
def test_a_mixture_can_be_put_together_anew(texts, epochs):
    other = make_dataset(texts.parent / f"other{epochs}", TEXTS, images=False)
    blend = [{"path": str(texts), "weight": 9}, {"path": str(other), "weight": 1}]
    dataset = get_train_dataset(
        {"splits": {"train": {"blend": blend}}},
        batch_size=10,
        worker_config=alone(),
        task_encoder=Halves(),
        shuffle_over_epochs_multiplier=epochs,
    )
    batch = next(iter(get_loader(dataset)))
    assert abs(sum(text.startswith("other") for text in batch.text) - 5) <= 1
