"""Samples of declared types: dataclasses that are derived from, extended, joined and pinned."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import pytest
import torch

from energy_data.data.typed.sample_types import (
    SAMPLE_TYPES,
    CaptioningSample,
    ImageSample,
    TextSample,
)
from energy_data.data.typed.samples import Sample, SourceInfo, edataclass, pinned
from energy_data.errors import SpecError

SOURCE = SourceInfo(dataset_path="/d", index=7, shard_name="s.tar", file_names=("a.txt",))


@edataclass
class Long(TextSample):
    length: int = 0


def text(key="a", value="x", **fields):
    return TextSample(
        __key__=key, __restore_key__=("Webdataset", 7), __sources__=(SOURCE,), text=value, **fields
    )


def test_fields_are_given_by_name_only():
    with pytest.raises(TypeError, match="positional"):
        TextSample("a", ("Webdataset", 1), None, None, "x")


def test_a_user_type_adds_fields_and_pickles():
    sample = Long(__key__="a", __restore_key__=(), text="x", length=1)
    assert pickle.loads(pickle.dumps(sample)) == sample


def test_a_sample_takes_notes_that_are_no_fields():
    sample = text()
    sample.note = 1
    assert sample.note == 1


def test_derive_from_keeps_the_basic_fields_and_takes_the_others():
    sample = text(__subflavors__={"a": 1})
    derived = ImageSample.derive_from(sample, image=torch.zeros(3, 1, 1), __key__="b")
    assert derived.__key__ == "b"
    assert derived.__restore_key__ == ("Webdataset", 7)
    assert derived.__subflavors__ is sample.__subflavors__
    assert derived.__sources__ == (SOURCE,)


def test_extend_keeps_all_fields_of_the_base():
    longer = Long.extend(text(), length=3)
    assert (longer.text, longer.length) == ("x", 3)
    assert longer.__sources__ == (SOURCE,)


def test_extend_refuses_what_is_no_base():
    with pytest.raises(SpecError, match="extends its base classes only, got a TextSample"):
        ImageSample.extend(text())


def test_joined_samples_have_the_basic_fields_of_the_first_and_the_last_of_the_others():
    image = ImageSample(
        __key__="b", __restore_key__=(), __sources__=(SOURCE,), image=torch.zeros(1)
    )

    @edataclass
    class Both(Sample):
        text: str
        image: torch.Tensor

    joined = Both.from_joined(text(), None, image, text("c", "last"))
    assert joined.__key__ == "a"
    assert joined.text == "last"
    assert joined.image is image.image
    assert joined.__sources__ == (SOURCE, SOURCE, SOURCE)


@pytest.mark.parametrize("args", [(), (None,), (None, text())])
def test_a_join_without_its_first_sample_is_refused(args):
    with pytest.raises(SpecError, match="samples in a row"):
        TextSample.from_joined(*args)


def test_a_join_by_names_needs_a_joiner_of_its_own():
    with pytest.raises(SpecError, match="by the names a, b"):
        TextSample.from_joined(a=text(), b=text())


def test_the_table_has_every_type_under_its_name():
    assert all(kind.__name__ == name for name, kind in SAMPLE_TYPES.items())
    assert SAMPLE_TYPES["CaptioningSample"] is CaptioningSample
    assert list(SAMPLE_TYPES) == sorted(SAMPLE_TYPES)


def test_source_info_has_the_names_of_both():
    assert (SOURCE.dataset, SOURCE.shard) == (SOURCE.dataset_path, SOURCE.shard_name)


class Pair(NamedTuple):
    one: torch.Tensor
    two: list


def test_pinning_reaches_every_tensor(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    zero, one = torch.zeros(1), torch.ones(1)
    value = {"a": [zero, "x"], "b": Pair(zero, [(zero,)])}
    assert pinned(value) == {"a": [one, "x"], "b": Pair(one, [(one,)])}
    sample = ImageSample(__key__="a", __restore_key__=("W", 1), image=zero)
    assert sample.pin_memory().image == one
    assert sample.image == zero
