"""Bugs of packing and grouping that Energon had and mended; none of them is ours.

The table of all is in `test_fixed_bugs`.
"""

from __future__ import annotations

import json
from itertools import islice

import pytest
from data import TEXTS, make_dataset
from encoders import alone

from energy_data import sample_rng
from energy_data.energon import (
    DefaultTaskEncoder,
    SkipSample,
    TextSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.errors import DataError


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    made = tmp_path_factory.mktemp("packing") / "texts"
    return make_dataset(made, TEXTS, count=23, shards=1, images=False)


def number_of(sample):
    return int(sample.text.split()[-1])


class Packing(DefaultTaskEncoder):
    """Packs two neighbours, and notes how many samples it was given to select from."""

    def __init__(self):
        super().__init__()
        self.buffers = []

    def select_samples_to_pack(self, samples):
        self.buffers.append([number_of(sample) for sample in samples])
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples):
        return TextSample.derive_from(
            samples[0],
            __restore_key__=tuple(sample.__restore_key__ for sample in samples),
            text="+".join(str(number_of(sample)) for sample in samples),
        )


def loader_of(texts, encoder, num_workers=0, lanes=4, batch_size=1, **options):
    dataset = get_train_dataset(
        texts,
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=alone(num_workers, lanes),
        task_encoder=encoder,
        **options,
    )
    return get_loader(dataset)


def numbers(batches):
    return sorted(int(n) for batch in batches for text in batch.text for n in text.split("+"))


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("buffer_size", [1, 4, 23, 100])
def test_pr115_at_its_end_a_pass_packs_what_is_left(texts, buffer_size, num_workers):
    """PR #115, #114: what was in the buffer when the dataset ended was lost, or it hung."""
    packs = {"packing_buffer_size": buffer_size}
    loader = loader_of(texts, Packing(), num_workers, repeat=False, **packs)
    for _ in range(2):
        assert numbers(loader) == list(range(23))
    loader.close()
    held = get_val_dataset(
        texts,
        batch_size=2,
        worker_config=alone(num_workers),
        task_encoder=Packing(),
        **packs,
    )
    held = get_loader(held)
    assert numbers(held) == list(range(23))
    held.close()


@pytest.mark.parametrize("at", [0, 1, 4, 7, 11])
def test_pr65_every_selection_is_from_a_full_buffer_of_the_next_samples(texts, at):
    """PR #65: the buffer was refilled late, so that packs were selected from ever fewer samples."""
    before, after = Packing(), Packing()
    loader = loader_of(texts, before, lanes=1, packing_buffer_size=6)
    list(islice(loader, at))
    again = loader_of(texts, after, lanes=1, packing_buffer_size=6)
    again.restore_state_rank(loader.save_state_rank())
    list(islice(again, 14))
    buffers = before.buffers + after.buffers
    assert all(len(buffer) == 6 for buffer in buffers)
    drawn = [number for buffer in buffers for number in buffer]
    assert drawn == [number % 23 for number in range(len(drawn))]


class Choosy(Packing):
    def select_samples_to_pack(self, samples):
        return []


def test_pr65_a_selection_that_never_gives_a_pack_is_an_error_and_not_a_hang(texts, monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 20)
    with pytest.raises(DataError, match="no item was returned in 20 draws in a row"):
        next(iter(loader_of(texts, Choosy(), packing_buffer_size=6)))


class Keyed(Packing):
    def postencode_sample(self, sample):
        assert sample.__restore_key__[0].endswith("texts:train"), sample.__restore_key__
        dice = sample_rng().integers(1 << 30)
        return TextSample.derive_from(sample, text=f"{sample.text.split()[0]} {dice}")


def test_pr111_samples_of_a_pack_keep_their_keys_in_every_function(texts):
    """PR #111, PR #12, 1a4e5a6: keys were lost, or those of others, while packs were encoded."""
    loader = loader_of(texts, Keyed(), packing_buffer_size=6)
    dice = {}
    for batch in islice(loader, 60):
        for text, key in zip(batch.text, batch.__restore_key__, strict=True):
            thrown = text.split("+")
            assert len(key) == len(thrown) > 0
            for n, (_, _, index) in zip(thrown, key, strict=True):
                assert 0 <= index < 23
                assert dice.setdefault(key[thrown.index(n)], n) == n
    assert len({index for _, _, index in dice}) == 23


class Anonymous(Packing):
    def pack_selected_samples(self, samples):
        packed = super().pack_selected_samples(samples)
        packed.__restore_key__ = ()
        return packed


def test_packs_that_leave_it_to_us_have_the_keys_of_their_samples(texts):
    keyed, left = (
        next(iter(loader_of(texts, encoder, packing_buffer_size=6)))
        for encoder in (Packing(), Anonymous())
    )
    assert left.__restore_key__ == keyed.__restore_key__ != [()]


class Grouping(DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        return number_of(sample) % 3, None

    def encode_batch(self, batch):
        return [number_of_text(text) for text in batch.text]


def number_of_text(text):
    return int(text.split()[-1])


@pytest.mark.parametrize("num_workers", [0, 3])
def test_pr64_grouped_batches_are_encoded_and_what_waits_is_restored(texts, num_workers):
    """PR #64, #31, 133eb09: `encode_batch` was not called, and groups under way were lost."""
    loader = loader_of(texts, Grouping(), num_workers, batch_size=4)
    expected = list(islice(loader, 20))
    loader.close()
    assert all(isinstance(batch, list) and len(batch) == 4 for batch in expected)
    assert all(len({number % 3 for number in batch}) == 1 for batch in expected)
    for at in range(0, 12, 1 if num_workers == 0 else 5):
        loader = loader_of(texts, Grouping(), num_workers, batch_size=4)
        assert list(islice(loader, at)) == expected[:at]
        state = json.loads(json.dumps(loader.save_state_rank()))
        loader.close()
        again = loader_of(texts, Grouping(), num_workers, batch_size=4)
        again.restore_state_rank(state)
        assert again.save_state_rank() == state
        assert list(islice(again, 8)) == expected[at : at + 8]
        again.close()


class Strict(Packing):
    """As trainers do it: what does not fit is an error of the sample."""

    def encode_sample(self, sample):
        return sample

    def select_samples_to_pack(self, samples):
        for sample in samples:
            if number_of(sample) == 7:
                raise ValueError("longer than the sequence length")
        return super().select_samples_to_pack(samples)

    def pack_selected_samples(self, samples):
        if any(number_of(sample) == 20 for sample in samples):
            raise SkipSample
        return super().pack_selected_samples(samples)


def test_nemo_rl_pr4070_a_sample_that_is_too_long_does_not_end_the_run(texts, caplog):
    """NeMo-RL PR #4070: one that is above the limit ended the job; it is left out and counted."""
    caplog.set_level("CRITICAL", "energy_data.core.user_call")
    loader = loader_of(texts, Strict(), lanes=1, packing_buffer_size=4)
    given = numbers(islice(loader, 60))
    assert len(given) == 60 * 2
    assert {20, 7} & set(given) == set()
    assert loader.stats().skipped["not selected to be packed"] > 0
