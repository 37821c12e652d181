"""Batching, padding and concatenation; the real Energon is the judge where it is installed."""

from __future__ import annotations

import dataclasses
from math import nan
from typing import NamedTuple

import pytest
import torch

from energy_data.data.typed.sample_types import CaptioningSample
from energy_data.data.typed.samples import edataclass
from energy_data.errors import SpecError
from energy_data.tasks.collate import (
    Batch,
    as_type,
    batch_list,
    batch_pad_stack,
    batch_stack,
    collate,
    concat_pad,
    fields_of,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    name: str


def square(size: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((size, size + 1), value)


def test_tensors_are_padded_with_zeros_at_the_end_of_each_axis():
    stacked = batch_pad_stack([square(1, 5), square(2, 7)])
    assert stacked.tolist() == [[[5, 5, 0], [0, 0, 0]], [[7, 7, 7], [7, 7, 7]]]
    assert batch_pad_stack([torch.tensor(3), torch.tensor(4)]).tolist() == [3, 4]
    assert batch_pad_stack([torch.ones(1, dtype=torch.int16)]).dtype == torch.int16


def test_batches_are_joined_along_their_first_axis_and_padded_in_the_others():
    joined = concat_pad([torch.ones(2, 1), torch.full((1, 3), 2.0)])
    assert joined.tolist() == [[1, 0, 0], [1, 0, 0], [2, 2, 2]]


@pytest.mark.parametrize("join", [batch_pad_stack, concat_pad])
def test_tensors_with_different_numbers_of_axes_are_refused(join):
    with pytest.raises(ValueError, match=r"different numbers of axes.*found \(1,\), \(1, 1\)"):
        join([torch.ones(1), torch.ones(1, 1)])


@pytest.mark.parametrize("kind", [Pair, Record, dict])
def test_generic_batch_and_concat_go_through_fields_and_keep_the_type(kind):
    items = [kind(image=square(1), name="a"), kind(image=square(2), name="b")]
    batch = generic_batch(items)
    assert type(batch) is kind
    assert fields_of(batch)["image"].shape == (2, 2, 3)
    assert fields_of(batch)["name"] == ["a", "b"]
    joined = generic_concat([batch, batch])
    assert type(joined) is kind
    assert fields_of(joined)["image"].shape == (4, 2, 3)
    assert fields_of(joined)["name"] == [["a", "b"], ["a", "b"]]


def test_values_of_which_some_are_none_stay_a_list():
    for values in ([square(2), None], [None, square(2)]):
        assert generic_batch([Pair(value, "a") for value in values]) == Pair(values, ["a", "a"])


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.int64, 0.5), (torch.uint8, 256), (torch.bool, 2), (torch.int8, nan)]
)
def test_values_are_never_cut_to_the_dtype_of_others(dtype, value):
    first, other = torch.ones(2, dtype=dtype), torch.tensor([value, 1, 1])
    assert concat_pad([first[None], torch.ones(1, 2)]).dtype == dtype
    with pytest.raises(ValueError, match=f"cannot become {dtype}.*without loss"):
        batch_pad_stack([first, other])
    batch = collate([{"x": first}, {"x": other}], pad=True)
    assert batch["x"] == [first, other]


def test_stack_and_list_do_what_they_say():
    assert batch_stack([square(2), square(2)]).shape == (2, 2, 3)
    assert batch_list([1, "a"]) == [1, "a"]


def test_a_homogeneous_mix_is_of_one_type():
    mixed = homogeneous_concat_mix([{"x": torch.ones(1, 2)}, {"x": torch.ones(3, 2)}])
    assert mixed["x"].shape == (4, 2)
    with pytest.raises(TypeError, match="found Pair, Record"):
        homogeneous_concat_mix([Pair(square(1), "a"), Record(square(1), "a")])


def test_fields_go_into_types_by_name_and_those_about_the_sample_may_be_missing():
    @dataclasses.dataclass
    class Raw:
        __key__: list[str]
        image: torch.Tensor

    fields = {"__key__": ["a"], "__restore_key__": ("x", 1), "image": square(1)}
    assert as_type(fields, Raw).__key__ == ["a"]
    assert as_type(fields, dict) == fields
    with pytest.raises(TypeError, match="Raw has no field 'text', its fields are __key__, image"):
        as_type({**fields, "text": "a"}, Raw)
    with pytest.raises(TypeError, match="int cannot be created from fields"):
        as_type(fields, int)
    with pytest.raises(TypeError, match="a int has no fields"):
        fields_of(3)


@edataclass
class Captions(Batch):
    caption: list[str]
    length: int = 0


def caption(number: int, **fields) -> CaptioningSample:
    return CaptioningSample(
        __key__=str(number),
        __restore_key__=("Webdataset", number),
        image=square(1),
        caption=f"caption {number}",
        **fields,
    )


def test_a_batch_is_made_of_samples_and_derived_from_others():
    samples = [caption(0, __subflavors__={"a": 1}), caption(1, __sources__=("x", "y"))]
    batch = Captions.from_samples(samples, length=7)
    assert (batch.__key__, batch.caption) == (["0", "1"], ["caption 0", "caption 1"])
    assert batch.__restore_key__ == [("Webdataset", 0), ("Webdataset", 1)]
    assert (batch.__subflavors__, batch.__sources__) == ([{"a": 1}], ("x", "y"))
    derived = Captions.derive_from(batch, caption=[])
    assert (derived.__key__, derived.caption, derived.length) == (["0", "1"], [], 0)


def test_a_batch_says_which_field_its_samples_lack():
    @edataclass
    class Sounds(Batch):
        sound: torch.Tensor

    with pytest.raises(
        SpecError, match=r"Sounds\.from_samples: its field 'sound' is in no Caption"
    ):
        Sounds.from_samples([caption(0)])
