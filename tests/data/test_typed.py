"""Samples of declared types: what dataset.yaml says, and what is made of the parts."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tars import write_tar

from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.files.local import LocalFile
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.prepare import prepare
from energy_data.data.typed.sample_types import WEBDATASETS, CaptioningSample, TextSample
from energy_data.data.typed.samples import CrudeSample, Sample, edataclass
from energy_data.data.typed.wrap import TypedSource, open_typed
from energy_data.energon import BaseWebdatasetFactory
from energy_data.errors import ExcludedError, SampleError, SpecError

TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}
LOADER = """
from energy_data.errors import SkipSample
def sample_loader(raw):
    if raw["__key__"] == "s1":
        raise SkipSample
    return {"text": ",".join(sorted(name for name in raw if not name.startswith("__")))}
def part_filter(part):
    return part != "bin"
def failing(raw):
    raise RuntimeError("no luck")
"""


@pytest.fixture
def folder(tmp_path):
    for shard in range(2):
        files = []
        for n in range(shard * 3, shard * 3 + 3):
            said = json.dumps({"a": [{"b": f"text {n}"}], "n": n}).encode()
            files += [(f"s{n}.txt", f"txt {n}".encode()), (f"s{n}.json", said), (f"s{n}.bin", b"x")]
        write_tar(tmp_path / f"{shard}.tar", files)
    prepare(tmp_path, workers=1)
    return tmp_path


def say(folder: Path, name: str = "dataset.yaml", **said) -> Path:
    (folder / ".nv-meta" / name).write_text(yaml.safe_dump(said, sort_keys=False))
    return folder


def read(source: TypedSource) -> list:
    return source.read(np.arange(len(source)))


def test_fields_are_taken_from_parts_and_from_within_them(folder):
    say(folder, sample_type=TEXT, field_map={"text": "json[a][0][b]"})
    samples = read(open_typed(folder, decoder=SampleDecoder()))
    assert [type(one) for one in samples] == [TextSample] * 6
    assert [one.text for one in samples] == [f"text {n}" for n in range(6)]


def test_what_is_read_is_counted(folder):
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    source = open_typed(folder)
    read(source)
    assert source.bytes_read == 6 * 3 * 1024


def test_a_sample_says_which_it_is_and_where_from(folder):
    say(folder, sample_type=TEXT, field_map={"text": "txt"}, tags={"a": 1, "b": 2})
    source = open_typed(folder, decoder=SampleDecoder(), subset=(2, 6), subflavors={"b": 3})
    sample = source.read(np.array([2]))[0]
    assert sample.__key__ == "s4"
    assert sample.__restore_key__ == ("Webdataset", 4)
    assert sample.__subflavors__ == {"a": 1, "b": 3}
    [said] = sample.__sources__
    assert (said.dataset_path, said.index, said.shard_name) == (str(folder), 4, "1.tar")
    assert said.file_names == ("s4.txt",)


@pytest.mark.parametrize("text", ["png,txt", "json[z],txt", "json[a][7],txt", "json[n][0],txt"])
def test_the_first_option_that_is_there_counts(folder, text):
    say(folder, sample_type=TEXT, field_map={"text": text})
    assert read(open_typed(folder, decoder=SampleDecoder()))[3].text == "txt 3"


def test_a_field_that_is_not_there_makes_a_bad_sample_that_says_what_is(folder):
    say(folder, sample_type=TEXT, field_map={"text": "json[a][0][c]"})
    error = read(open_typed(folder, decoder=SampleDecoder()))[0]
    assert isinstance(error, SampleError)
    assert str(error) == (
        f"dataset {folder}, shard 0.tar, key s0, sample 0: cannot make a TextSample from it: "
        "field 'text' (json[a][0][c]): there is no json[a][0][c], only: b. Check dataset.yaml."
    )


def test_parts_that_no_field_needs_are_not_decoded(folder):
    write_tar(folder / "0.tar", [("s0.txt", b"x"), ("s0.json", b"broken")])
    prepare(folder, force=True, workers=1)
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    assert read(open_typed(folder, decoder=SampleDecoder()))[0].text == "x"


@pytest.mark.parametrize("name", sorted(WEBDATASETS))
def test_older_files_name_a_webdataset_for_each_type(folder, name):
    module = "megatron.energon.flavors"
    fields = {"text": "txt"} if name == "TextWebdataset" else {}
    say(folder, __module__=module, __class__=name, field_map=fields)
    if name == "TextWebdataset":
        assert read(open_typed(folder, decoder=SampleDecoder()))[0].text == "txt 0"
    else:
        with pytest.raises(SpecError, match="field_map"):
            open_typed(folder)


@pytest.mark.parametrize("said", [None, {"__module__": "megatron.energon", "__class__": "Crude"}])
def test_crude_samples_are_dicts_of_parts(folder, said):
    if said is None:
        (folder / ".nv-meta" / "dataset.yaml").unlink()
    else:
        say(folder, **{**said, "__class__": "CrudeWebdataset", "part_filter": ["txt", "bin"]})
    sample = read(open_typed(folder, decoder=SampleDecoder()))[4]
    assert type(sample) is CrudeSample
    assert (sample["__key__"], sample["__shard__"], sample["txt"]) == ("s4", "1.tar", "txt 4")
    assert ("json" in sample) == (said is None)


def test_without_a_decoder_parts_stay_bytes(folder):
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    assert read(open_typed(folder, decoder=None))[0].text == b"txt 0"


@pytest.mark.parametrize(
    "said",
    [
        {"decoder": {"__module__": "megatron.energon", "__class__": "SampleDecoder"}},
        {"image_decode": "pil"},
    ],
)
def test_dataset_yaml_says_how_to_decode_before_the_task_does(folder, said):
    say(folder, sample_type=TEXT, field_map={"text": "txt"}, **said)
    assert read(open_typed(folder, decoder=None))[0].text == "txt 0"


def test_dataset_yaml_can_leave_bytes(folder):
    for said in ({"auto_decode": False}, {"decoder": None}):
        say(folder, sample_type=TEXT, field_map={"text": "txt"}, **said)
        assert read(open_typed(folder, decoder=SampleDecoder()))[0].text == b"txt 0"


class Upper:
    def __call__(self, sample):
        return {k: v.upper() if isinstance(v, bytes) else v for k, v in sample.items()}


def test_a_decoder_of_ones_own_gets_the_sample_with_bytes(folder):
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    assert read(open_typed(folder, decoder=Upper()))[0].text == b"TXT 0"


def test_other_files_say_type_and_split(folder):
    split = {"split_parts": {"mine": ["1.tar"]}, "exclude": ["1.tar/s4"]}
    say(folder, "split2.yaml", **split)
    say(folder, "texts.yaml", sample_type=TEXT, field_map={"text": "txt"})
    source = open_typed(
        folder,
        split_part="mine",
        dataset_config="texts.yaml",
        split_config="split2.yaml",
        decoder=SampleDecoder(),
    )
    one, other = read(source)
    assert (one.text, other.text) == ("txt 3", "txt 5")
    assert other.__restore_key__ == ("Webdataset", 2)  # as Energon counts
    assert read(pickle.loads(pickle.dumps(source)))[0] == one


@pytest.mark.parametrize("option", ["dataset_config", "split_config"])
@pytest.mark.parametrize("name", ["none.yaml", "../../x.yaml"])
def test_files_that_are_not_there_are_named(folder, option, name):
    with pytest.raises(SpecError, match=name.replace(".", r"\.")):
        open_typed(folder, **{option: name})


def test_sample_loaders_run_only_if_their_folder_is_allowed(folder, monkeypatch):
    (folder / ".nv-meta" / "sample_loader.py").write_text("raise SystemExit('ran')")
    say(folder, sample_type=TEXT, sample_loader="sample_loader.py", part_filter="sample_loader.py")
    with pytest.raises(SpecError) as caught:
        open_typed(folder)
    assert f"allow_modules=['{folder}'], or set ENERGY_DATA_ALLOW_MODULES={folder}" in str(
        caught.value
    )
    with pytest.raises(SpecError):
        open_typed(folder, policy=ImportPolicy.of([f"{folder}-other", "sample_loader"]))


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_an_allowed_sample_loader_makes_the_fields(folder, by, monkeypatch):
    (folder / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    say(
        folder,
        sample_type=TEXT,
        sample_loader="sample_loader.py:sample_loader",
        part_filter="sample_loader.py:part_filter",
    )
    if by == "environment":
        monkeypatch.setenv("ENERGY_DATA_ALLOW_MODULES", str(folder))
    trust = None if by == "environment" else ImportPolicy.of([str(folder)])
    source = open_typed(folder, policy=trust, decoder=SampleDecoder())
    samples = read(source)
    assert samples[0].text == "json,txt"
    assert isinstance(samples[1], ExcludedError)
    monkeypatch.delenv("ENERGY_DATA_ALLOW_MODULES", raising=False)
    (folder / ".nv-meta" / "sample_loader.py").write_text("changed")
    assert read(pickle.loads(pickle.dumps(source)))[0] == samples[0]


def test_a_sample_loader_that_fails_makes_a_bad_sample(folder):
    (folder / ".nv-meta" / "sample_loader.py").write_text(LOADER)
    say(
        folder,
        sample_type=TEXT,
        sample_loader="sample_loader.py:failing",
        part_filter=["txt"],
    )
    error = read(open_typed(folder, policy=ImportPolicy.of([str(folder)])))[0]
    assert "cannot make a TextSample from it: RuntimeError: no luck" in str(error)
    assert isinstance(error.__cause__, RuntimeError)


@edataclass
class Own(Sample):
    number: int


class OwnWebdataset(BaseWebdatasetFactory[Own]):
    __sample_type__ = Own


@pytest.mark.parametrize("key", ["sample_type", "dataset"])
def test_a_type_of_ones_own_needs_to_be_imported_or_allowed(folder, key, monkeypatch):
    own = {"sample_type": {"__module__": "test_typed", "__class__": "Own"}}
    dataset = {"__module__": "test_typed", "__class__": "OwnWebdataset"}
    say(folder, **(own if key == "sample_type" else dataset), field_map={"number": "json[n]"})
    assert [one.number for one in read(open_typed(folder))] == list(range(6))
    monkeypatch.delitem(sys.modules, "test_typed")
    with pytest.raises(SpecError, match=r"import test_typed before, pass allow_modules=\['test_t"):
        open_typed(folder)
    source = open_typed(folder, policy=ImportPolicy.of(["test_typed"]), decoder=SampleDecoder())
    assert [one.number for one in read(source)] == list(range(6))


WRONG = [
    ({}, "sample_type: it is missing, and so is `__class__`"),
    ({"sample_type": TEXT}, "field_map: it is missing, and so is `sample_loader`"),
    ({"sample_type": "TextSample"}, "must be a mapping with __module__ and __class__"),
    (
        {"sample_type": {"__module__": "os", "__class__": "system"}, "field_map": {"a": "b"}},
        "os.system is unknown code",
    ),
    (
        {"sample_type": TEXT, "field_map": {"txt": "txt"}},
        "TextSample has no field txt, only: text.",
    ),
    ({"sample_type": TEXT, "field_map": {"txt": "txt"}}, "TextSample also needs text"),
    ({"sample_type": TEXT, "field_map": {"text": "json["}}, "text: it must be like `jpg`"),
    ({"sample_type": TEXT, "field_map": {"text": 3}}, "text: it must be like `jpg`"),
    ({"sample_type": TEXT, "field_map": []}, "must be a mapping of fields to parts"),
    ({"sample_type": TEXT, "fieldmap": {"text": "txt"}}, "Did you mean 'field_map'?"),
    (
        {"sample_type": TEXT, "field_map": {"text": "txt"}, "sample_loader": "a.py:b"},
        "`field_map` and `sample_loader` exclude each other",
    ),
    ({"sample_type": TEXT, "sample_loader": "a.py:b"}, "part_filter: it is missing"),
    ({"sample_type": TEXT, "field_map": {"text": "txt"}, "subflavors": 3}, "subflavors: it must"),
    ({"sample_type": TEXT, "field_map": {"text": "txt"}, "tags": 3}, "tags: it must be a mapping"),
    (
        {"sample_type": TEXT, "field_map": {"text": "txt"}, "tags": {}, "subflavors": {}},
        "tags: it is another name of `subflavors`. Keep one",
    ),
    (
        {"sample_type": TEXT, "field_map": {"text": "txt"}, "image_decode": "jpeg"},
        "there is no mode 'jpeg', only: l8,",
    ),
    (
        {"sample_type": TEXT, "field_map": {"text": "txt"}, "decoder": {"a": 1}},
        "decoder: it must be a mapping with __module__",
    ),
    ({"__module__": "megatron.energon", "__class__": "Webdataset"}, "is not a known dataset class"),
    (
        {
            "__module__": "megatron.energon",
            "__class__": "CrudeWebdataset",
            "field_map": {"text": "txt"},
        },
        "field_map: CrudeWebdataset does not take it",
    ),
    (
        {"__module__": "evil", "__class__": "CrudeWebdataset"},
        "evil.CrudeWebdataset is unknown code",
    ),
    ({"__class__": "OwnWebdataset"}, "__class__: it must be a mapping with __module__"),
]


@pytest.mark.parametrize(("said", "message"), WRONG)
def test_what_is_wrong_with_dataset_yaml_is_said_with_its_place(folder, said, message):
    say(folder, **said)
    with pytest.raises(SpecError) as caught:
        open_typed(folder)
    assert message in str(caught.value)
    assert all(one.startswith(f"{folder}/.nv-meta/dataset.yaml") for one in caught.value.faults)


def test_the_place_is_a_line_and_a_column(folder):
    (folder / ".nv-meta" / "dataset.yaml").write_text("# x\n\nsample_type: 3\nfield_map: {a: b}\n")
    with pytest.raises(SpecError, match=r"dataset\.yaml:3:1: sample_type: it must be a mapping"):
        open_typed(folder)


def test_images_are_float_tensors_unless_asked_for_otherwise(folder):
    image = pytest.importorskip("PIL.Image")
    path = folder / "i.png"
    image.new("RGB", (3, 2), (255, 0, 51)).save(path)
    write_tar(folder / "0.tar", [("s0.png", path.read_bytes()), ("s0.txt", b"x")])
    prepare(folder, force=True, workers=1)
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    say(folder, sample_type=kind, field_map={"image": "jpg,png", "caption": "txt"})
    sample = read(open_typed(folder, decoder=SampleDecoder(), subset=(0, 1)))[0]
    assert isinstance(sample, CaptioningSample)
    assert (sample.image.dtype, sample.image.shape) == (torch.float32, (3, 2, 3))
    assert torch.equal(sample.image[:, 0, 0], torch.tensor([255.0, 0, 51]) / 255)


def test_blocks_of_several_typed_datasets_are_read_together(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("b") / "x.jsonl"
    other.write_text("".join(f'{{"n": {n}}}\n' for n in range(5)))
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    tars = [open_typed(folder, subset=(n, 6), decoder=SampleDecoder()) for n in (0, 2)]
    numbers, indices = np.array([0, 1, 1, 0]), np.array([3, 0, 3, 0])
    found = TypedSource.read_together(tars, numbers, indices)
    assert [(one.text, one.__restore_key__[1]) for one in found] == [
        ("txt 3", 3),
        ("txt 2", 2),
        ("txt 5", 5),
        ("txt 0", 0),
    ]
    mixed = [tars[0], open_typed(other)]
    found = TypedSource.read_together(mixed, numbers, indices)
    assert [type(one).__name__ for one in found] == [
        "TextSample",
        "CrudeSample",
        "CrudeSample",
        "TextSample",
    ]
    assert found[2]["json"] == {"n": 3}
    assert found[2]["__sources__"][0].file_names == ("3.json",)


@pytest.mark.parametrize("block", [1, 40])
def test_large_parts_that_no_field_needs_are_not_read(folder, block, monkeypatch):
    large = b"x" * 300_000
    write_tar(folder / "0.tar", [("s0.mp4", large), ("s0.txt", b"a"), ("s0.jpg", large)])
    prepare(folder, force=True, workers=1)
    say(folder, sample_type=TEXT, field_map={"text": "txt"})
    source, sizes = open_typed(folder, subset=(0, 1)), []
    read, read_into = LocalFile.read, LocalFile.read_into
    monkeypatch.setattr(
        LocalFile, "read", lambda self, at, size: sizes.append(size) or read(self, at, size)
    )
    monkeypatch.setattr(
        LocalFile,
        "read_into",
        lambda self, buffer, at: sizes.append(len(buffer)) or read_into(self, buffer, at),
    )
    assert [one.text for one in source.read(np.zeros(block, np.int64))] == ["a"] * block
    assert max(sizes) < 100_000


def test_a_field_may_be_a_packed_part(folder):
    write_tar(folder / "0.tar", [("s0.txt.gz", gzip.compress(b"packed")), ("s0.json", b"{}")])
    prepare(folder, force=True, workers=1)
    say(folder, sample_type=TEXT, field_map={"text": "txt.gz"})
    assert read(open_typed(folder, subset=(0, 1)))[0].text == "packed"
