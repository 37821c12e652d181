"""What each method of a task encoder is called with, and what comes of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from data import CAPTIONS, CRUDE, TEXTS, make_dataset
from encoders import Everything, alone, facts

from energy_data.energon import (
    AugmentTaskEncoder,
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    FatalSampleError,
    SkipSample,
    TaskEncoder,
    TextSample,
    basic_sample_keys,
    cooker,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    reraise_exception,
    stateless,
)
from energy_data.errors import SpecError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("encoders")
    make_dataset(made / "captions", CAPTIONS, count=12)
    make_dataset(made / "texts", TEXTS, count=14, images=False)
    make_dataset(made / "crude", CRUDE, count=10, images=False)
    return made


def validation(path, encoder=None, batch_size=4, **options):
    config = options.pop("worker_config", None) or alone()
    return get_val_dataset(
        path, batch_size=batch_size, worker_config=config, task_encoder=encoder, **options
    )


def training(path, encoder=None, batch_size=4, **options):
    config = options.pop("worker_config", None) or alone()
    return get_train_dataset(
        path,
        batch_size=batch_size,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        worker_config=config,
        task_encoder=encoder,
        **options,
    )


def test_by_default_a_batch_is_a_sample_of_stacked_tensors_and_lists(folder):
    batch = next(iter(validation(folder / "captions")))
    assert type(batch) is CaptioningSample
    assert batch.image.shape == (4, 3, 8, 8)
    assert batch.image.dtype == torch.float32
    assert batch.caption == [f"captions {n}" for n in (0, 2, 4, 6)]
    assert batch.__key__[0] == "captions-0000"


class Pair(NamedTuple):
    image: torch.Tensor
    caption: str


@dataclass
class Captions:
    __key__: list[str]
    image: torch.Tensor
    caption: list[str]


@pytest.mark.parametrize("kind", [Pair, Captions, dict])
@pytest.mark.parametrize("place", ["encoded_sample_type", "raw_batch_type", "batch_type"])
def test_the_default_encoder_converts_to_types(folder, kind, place):
    batch = next(iter(validation(folder / "captions", DefaultTaskEncoder(**{place: kind}))))
    assert type(batch) is kind
    image = batch["image"] if kind is dict else batch.image
    assert image.shape == (4, 3, 8, 8)


class Upper(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return TextSample.derive_from(sample, text=sample.text.upper())

    def encode_batch(self, batch):
        return batch.text


class Louder(AugmentTaskEncoder):
    def encode_batch(self, batch):
        return [text + "!" for text in super().encode_batch(batch)]


def test_another_encoder_can_be_augmented(folder, caplog):
    plain = list(validation(folder / "texts", Upper()))
    louder = list(validation(folder / "texts", Louder(Upper())))
    assert plain[0][0] == "TEXTS 0"
    assert louder == [[text + "!" for text in batch] for batch in plain]
    everything = training(folder / "texts", Everything(), packing_buffer_size=4)
    augmented = training(folder / "texts", AugmentTaskEncoder(Everything()), packing_buffer_size=4)
    caplog.set_level(logging.CRITICAL, "energy_data.core.user_call")
    ours, theirs = (
        [facts(one) for one in islice(get_loader(d), 5)] for d in (everything, augmented)
    )
    assert ours == theirs


class Several(DefaultTaskEncoder):
    def encode_sample(self, sample):
        yield sample
        yield TextSample.derive_from(sample, text=sample.text + " again")

    def encode_batch(self, batch):
        for text in batch.text:
            if "1" not in text:
                yield text


def test_generators_give_several_samples_and_any_number_of_batches(folder):
    loader = get_loader(training(folder / "texts", Several(), batch_size=3))
    texts = list(islice(loader, 30))
    assert "texts 2" in texts
    assert "texts 2 again" in texts
    assert not any("1" in text for text in texts)
    loader = get_loader(training(folder / "texts", Several(), batch_size=3))
    begun = list(islice(loader, 7))
    again = get_loader(training(folder / "texts", Several(), batch_size=3))
    again.restore_state_rank(loader.save_state_rank())
    assert begun + list(islice(again, 23)) == texts


class Bad(DefaultTaskEncoder):
    @stateless(failure_tolerance=3)
    def encode_sample(self, sample):
        if int(sample.text.split()[-1]) >= 6:
            raise KeyError("bad on purpose")
        return sample


def test_failures_are_left_out_reported_and_given_up_after_too_many_in_a_row(folder):
    heard = []
    config = alone(lanes=1, global_error_handler=lambda *said: heard.append(said))
    dataset = validation(folder / "texts", Bad(), 1, worker_config=config)
    with pytest.raises(FatalSampleError, match="encode_sample: it failed 3 times in a row"):
        list(dataset)
    assert [str(error) for error, _, _ in heard] == ["'bad on purpose'"] * 3
    assert heard[0][1].text == "texts 6"
    assert heard[0][2][0].dataset_path == str(folder / "texts")


def test_failures_in_a_row_are_part_of_the_state(folder):
    config = alone(lanes=1, global_error_handler=lambda *_: None)
    loader = get_loader(training(folder / "texts", Bad(), 1, worker_config=config))
    expected, states = [], [loader.save_state_rank()]
    for batch in until_fatal(loader):
        expected.append(batch.text)
        states.append(loader.save_state_rank())
    assert len(expected) == 3
    for at, state in enumerate(states):
        again = get_loader(training(folder / "texts", Bad(), 1, worker_config=config))
        again.restore_state_rank(state)
        assert [batch.text for batch in until_fatal(again)] == expected[at:]


def until_fatal(loader):
    """Yield batches until the run gives up; it must."""
    stream = iter(loader)
    while True:
        try:
            yield next(stream)
        except FatalSampleError:
            return


def test_errors_are_raised_where_the_handler_says_so(folder):
    config = alone(lanes=1, global_error_handler=reraise_exception)
    with pytest.raises(KeyError, match="bad on purpose"):
        list(validation(folder / "texts", Bad(), 1, worker_config=config))


@cooker(need_primary=True)
def cook(sample, *, primary):
    assert type(sample) is CrudeSample
    if sample["__key__"].endswith("3"):
        raise SkipSample
    return TextSample(**basic_sample_keys(sample), text=primary.get(".txt", sample).upper())


class Cooking(DefaultTaskEncoder):
    cookers = (
        Cooker(cook, has_subflavors={"language": "en"}),
        Cooker(lambda sample: TextSample(**basic_sample_keys(sample), text="?")),
    )

    def encode_batch(self, batch):
        return batch.text


def test_crude_samples_are_cooked_by_the_cooker_for_their_subflavors(folder):
    one = {"path": str(folder / "crude"), "subflavors": {"language": "en"}}
    two = {"path": str(folder / "crude")}
    texts = [t for batch in validation({"splits": {"val": one}}, Cooking(), 2) for t in batch]
    assert texts == [f"CRUDE {n}" for n in (0, 2, 4, 6, 8, 1, 5, 7, 9)]
    assert next(iter(validation({"splits": {"val": two}}, Cooking(), 2))) == ["?", "?"]
    blend = {"blend": [{**one, "id": "one"}, {**two, "id": "two"}]}
    drawn = next(iter(training({"splits": {"train": blend}}, Cooking(), 20)))
    assert 9 <= drawn.count("?") <= 11


def test_samples_without_a_cooker_are_refused_at_once(folder):
    class Choosy(Cooking):
        cookers = Cooking.cookers[:1]

    with pytest.raises(SpecError, match="no cooker matches its subflavors"):
        training(folder / "crude", Choosy())


def test_without_a_batch_size_samples_come_one_by_one(folder):
    samples = list(validation(folder / "texts", batch_size=None))
    assert len(samples) == 14
    assert type(samples[0]) is TextSample


def test_a_pass_has_each_sample_once_and_one_short_batch(folder):
    dataset = training(folder / "texts", batch_size=4, repeat=False)
    sizes = [len(batch.__key__) for batch in dataset]
    assert (sum(sizes), len(sizes)) == (14, 4)
    dropping = training(folder / "texts", batch_size=4, repeat=False, batch_drop_last=True)
    assert [len(batch.__key__) for batch in dropping] == [4, 4, 4]


class Both(TaskEncoder):
    def encode_sample(self, sample):
        return sample

    def preencode_sample(self, sample):
        return sample


class HalfAPacker(TaskEncoder):
    def select_samples_to_pack(self, samples):
        return [samples]


@pytest.mark.parametrize(
    ("encoder", "options", "message"),
    [
        (Both(), {}, "Both: it overrides both preencode_sample and encode_sample"),
        (HalfAPacker(), {"packing_buffer_size": 3}, "or both select_samples_to_pack and"),
    ],
)
def test_what_cannot_be_is_refused(folder, encoder, options, message):
    with pytest.raises(SpecError, match=message):
        training(folder / "texts", encoder, **options)


def test_arguments_of_older_versions_are_understood(folder):
    dataset = training(folder / "captions", DefaultTaskEncoder(), image_decode="torchrgb8")
    assert next(iter(dataset)).image.dtype == torch.uint8
    dataset = training(folder / "captions", DefaultTaskEncoder(), auto_decode=False)
    assert next(iter(dataset)).image[0][:4] == b"\x89PNG"


@pytest.mark.parametrize("function", [get_train_dataset, get_val_dataset, get_val_datasets])
def test_unknown_arguments_are_a_type_error(folder, function):
    with pytest.raises(TypeError, match="unexpected keyword argument 'bananas'"):
        function(folder / "texts", batch_size=1, bananas=3)
