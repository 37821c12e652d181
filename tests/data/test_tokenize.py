"""Texts as tokens."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch
from text_files import write_tokenizer
from tokenizers import Tokenizer

from energy_data import MissingExtraError, SampleError, SampleSource, SpecError, TextSample
from energy_data.data.text.tokenize import Tokenize

TEXT = "what is the song about</s> 🙂"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("model"))


def ids(folder, text):
    return (
        Tokenizer.from_file(str(folder / "tokenizer.json"))
        .encode(text, add_special_tokens=False)
        .ids
    )


def text_of(folder, tokens):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def test_a_text_becomes_its_tokens_whatever_the_settings_of_the_file(folder):
    (tokens,) = Tokenize(folder)({"text": TEXT * 3}).values()
    assert tokens.dtype == torch.int64
    assert text_of(folder, tokens) == TEXT * 3
    assert Tokenize(folder / "tokenizer.json")({"text": TEXT * 3})["tokens"].equal(tokens)


def test_tokens_are_put_around_the_text_by_name_and_the_first_ones_are_kept(folder):
    whole = Tokenize(folder, add_bos="<s>", add_eos="</s>")({"text": "rain"})["tokens"]
    assert text_of(folder, whole) == "<s>rain</s>"
    assert Tokenize(folder, add_bos="<s>", max_length=2)({"text": "rain"})["tokens"].equal(
        whole[:2]
    )
    with pytest.raises(SpecError, match=r"no token '<eos>'. Correct `add_eos`"):
        Tokenize(folder, add_eos="<eos>")({"text": "rain"})
    assert Tokenize(folder)({"text": ""})["tokens"].shape == (0,)


@pytest.mark.parametrize(
    ("sample", "field"),
    [
        ({"json": {"text": TEXT}}, "json.text"),
        ({"page.txt": TEXT}, "page.txt"),
        (TextSample(__key__="k", __restore_key__=("k",), text=TEXT), "text"),
    ],
)
def test_the_text_is_a_field_of_a_sample_or_an_entry_of_one(folder, sample, field):
    tokens = Tokenize(folder, field=field)(sample)["tokens"]
    assert text_of(folder, tokens) == TEXT


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"json": {"body": "a", "id": 3}},
            "it has no 'text', or it is None, found json.body, json.id",
        ),
        ({"text": None, "url": "x"}, "found text, url. Correct `field`"),
        ({"text": ["a"]}, "its field 'text' must be a str, got list. Name the `field`"),
    ],
)
def test_a_sample_without_a_text_is_an_error_that_names_it(folder, fields, problem):
    sample = {"__key__": "7", "__sources__": (SampleSource("d", "s.jsonl", 7),), **fields}
    with pytest.raises(SampleError, match=r"dataset d, shard s.jsonl, key 7, sample 7: ") as caught:
        Tokenize(folder)(sample)
    assert problem in str(caught.value)


def test_what_is_no_tokenizer_is_an_error(tmp_path):
    with pytest.raises(SpecError, match=r"there is no file .*Name a tokenizer.json, or a folder"):
        Tokenize(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match=r"tokenizer.json: it holds no tokenizer: "):
        Tokenize(tmp_path)({"text": "a"})
    with pytest.raises(SpecError, match="max_length: must be >= 1, got 0"):
        Tokenize(tmp_path, max_length=0)


def test_tokens_are_added_by_name_and_not_by_id(folder):
    with pytest.raises(
        SpecError, match=r"^add_eos: must be the name of .*, got 257. Pass the name"
    ):
        Tokenize(folder, add_eos=257)


def test_without_the_extra_the_error_names_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'energy_data\[tokenizers\]'"):
        Tokenize(folder)({"text": "a"})


def test_its_pickle_is_small_and_needs_no_working_directory(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    tokenize = Tokenize("tokenizer.json")
    tokens = tokenize({"text": TEXT})["tokens"]
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(tokenize)
    assert len(data) < 500
    assert pickle.loads(data)({"text": TEXT})["tokens"].equal(tokens)


def test_the_fingerprint_changes_with_the_tokens_and_not_with_the_path(folder, tmp_path):
    copied = Tokenize(write_tokenizer(tmp_path)).fingerprint
    assert Tokenize(folder).fingerprint == copied
    assert Tokenize(folder, add_eos="</s>").fingerprint != copied
    (tmp_path / "tokenizer.json").write_text("{}")
    assert Tokenize(tmp_path).fingerprint != copied
