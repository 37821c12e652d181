"""The real Energon and we read the same out of the same files, whoever prepared them."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import tarfile

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from media import video, wav
from plain import digest, plain_sample

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.registry import open_store
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SampleError

pytestmark = pytest.mark.slow

MODULE = {"__module__": "megatron.energon"}


def kind(name):
    return {"sample_type": {**MODULE, "__class__": name}}


LOADER = """
def sample_loader(raw):
    parts = sorted(name for name in raw if name[0] != "_")
    return {"text": raw["txt"] + str(parts), "__key__": "k" + raw["__key__"]}
def part_filter(part):
    return part in ("txt", "npy")
"""
TYPES = {
    "crude": {**MODULE, "__class__": "CrudeWebdataset", "subflavors": {"a": 1}},
    "crude_filtered": {**MODULE, "__class__": "CrudeWebdataset", "part_filter": ["txt", "json"]},
    "captioning": {**kind("CaptioningSample"), "field_map": {"image": "png", "caption": "txt"}},
    "captioning_old": {
        **MODULE,
        "__class__": "CaptioningWebdataset",
        "field_map": {"image": "webp,png", "caption": "json[captions][1]"},
        "subflavors": {"b": {"c": [1, 2]}},
    },
    "vqa": {
        **kind("VQASample"),
        "field_map": {"image": "seg.png", "context": "json[q][text]", "answers": "json[captions]"},
    },
    "choices": {
        **kind("MultiChoiceVQASample"),
        "field_map": {"image": "png", "context": "txt", "correct_choice_idx": "cls"},
    },
    "label": {**kind("ImageClassificationSample"), "field_map": {"image": "png", "label": "cls"}},
    "image": {**kind("ImageSample"), "field_map": {"image": "npy"}},
    "interleaved": {**kind("InterleavedSample"), "field_map": {"sequence": "json[captions]"}},
    "similarity": {
        **kind("SimilarityInterleavedSample"),
        "field_map": {"images": "npz", "texts": "json[captions]", "similarity_matrix": "pth"},
    },
    "ocr": {
        **kind("OCRSample"),
        "field_map": {"image": "png", "text": "txt", "lines_text": "json[captions]"},
    },
    "text_by_functions": {
        **kind("TextSample"),
        "sample_loader": "sample_loader.py:sample_loader",
        "part_filter": "sample_loader.py:part_filter",
    },
    "decoder": {
        **kind("ImageSample"),
        "field_map": {"image": "png"},
        "decoder": {**MODULE, "__class__": "SampleDecoder", "image_decode": "rgba8"},
    },
}


def parts_of(number):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (5, 7, 4), np.uint8)
    said = {"captions": [f"ä{number}", f"b{number}"], "q": {"text": f"why {number}?"}}
    return {
        "png": saved(image.fromarray(pixels[..., :3]).save, "PNG"),
        "seg.png": saved(image.fromarray(pixels[..., 0]).save, "PNG"),
        "rgba.png": saved(image.fromarray(pixels).save, "PNG"),
        "jpg": saved(image.fromarray(pixels[..., :3]).save, "JPEG"),
        "json": json.dumps(said).encode(),
        "txt": f"grün {number}".encode(),
        "cls": f"{number}".encode(),
        "npy": saved(lambda file: np.save(file, rng.normal(size=(2, 3)))),
        "npz": saved(lambda file: np.savez(file, x=np.arange(number), y=np.float32(1))),
        "pth": saved(lambda file: torch.save({"t": torch.arange(number)}, file)),
        "bin": rng.bytes(50),
    }


def saved(save, *options):
    file = io.BytesIO()
    save(file, *options)
    return file.getvalue()


def write(folder):
    """Write 5 shards of 4 samples, in the three formats of tars."""
    kinds = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
    for shard in range(5):
        folder.mkdir(exist_ok=True)
        with tarfile.open(folder / f"s-{shard}.tar", "w", format=kinds[shard % 3]) as tar:
            for number in range(shard * 4, shard * 4 + 4):
                for extension, data in parts_of(number).items():
                    member = tarfile.TarInfo(f"d/{number:04d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


@pytest.fixture(scope="module", params=["ours", "theirs"])
def folder(request, tmp_path_factory, energon):
    """Return a folder that one of the two prepared, with a dataset.yaml for each type."""
    folder = tmp_path_factory.mktemp("data") / request.param
    write(folder)
    options = ["--split-ratio", "3,1,1", "--non-interactive", "--sample-type", "CrudeWebdataset"]
    if request.param == "theirs":
        energon.prepares(folder, *options)
    else:
        done = CliRunner().invoke(main, ["prepare", str(folder), *options])
        assert done.exit_code == 0, done.output
    meta = folder / ".nv-meta"
    (meta / "sample_loader.py").write_text(LOADER)
    for name, said in TYPES.items():
        (meta / f"{name}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    split = {
        "split_parts": {"train": ["s-{2..4}.tar"], "val": ["s-0.tar"], "mine": ["s-{0..1}.tar"]},
        "exclude": ["s-3.tar", "s-2.tar/d/0009", "s-4.tar/d/00{17..18}"],
    }
    (meta / "other.yaml").write_text(yaml.safe_dump(split))
    return folder


def we_read(path, *, config=None, decoder="default", **options):
    decoder = SampleDecoder() if decoder == "default" else decoder
    trust = ImportPolicy.of([str(path)])
    source = open_typed(path, decoder=decoder, policy=trust, **(config or {}), **options)
    samples = source.read(np.arange(len(source)))
    return [plain_sample(one) for one in samples if not isinstance(one, SampleError)]


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize(
    ("split_part", "split_config"),
    [
        ("train", None),
        ("val", None),
        ("test", None),
        ("train", "other.yaml"),
        ("mine", "other.yaml"),
    ],
)
def test_samples_of_every_type_split_and_config_are_equal(
    energon, folder, name, split_part, split_config
):
    config = {"dataset_config": f"{name}.yaml"}
    if split_config:
        config["split_config"] = split_config
    ours = we_read(folder, split_part=split_part, config=config)
    assert same(ours, energon.reads(folder, split_part=split_part, config=config))


def same(ours, theirs):
    """Compare field by field, so that a failure says which."""
    for one, other in zip(ours, theirs, strict=True):
        for name in one:
            assert one[name] == other[name], (name, one["key"])
    return bool(ours)


MODES = ["l8", "rgb8", "rgba8", "l", "rgb", "rgba", "torchl8", "torchrgb8", "torchrgba8"]
MODES += ["torchl", "torchrgb", "torch", "torchrgba", "pill", "pil", "pilrgb", "pilrgba"]


@pytest.mark.parametrize("mode", MODES)
def test_images_are_equal_in_every_mode(energon, folder, mode):
    ours = we_read(folder, decoder=SampleDecoder(image_decode=mode), split_part="val")
    assert same(ours, energon.reads(folder, split_part="val", decoder={"image_decode": mode}))


def test_parts_without_a_decoder_are_equal(energon, folder):
    assert same(we_read(folder, decoder=None), energon.reads(folder, decoder=None))


def test_content_is_guessed_alike(energon, folder):
    ours = we_read(folder, decoder=SampleDecoder(guess_content=True))
    assert same(ours, energon.reads(folder, decoder={"guess_content": True}))


def test_an_epoch_of_training_has_the_same_samples(energon, folder):
    theirs = energon.reads(folder, training=True)
    config = WorkerConfig(lanes=4)
    dataset = get_train_dataset(folder, batch_size=2, repeat=False, worker_config=config)
    keys = [key for batch in get_loader(dataset) for key in batch["__key__"]]
    assert sorted(keys) == sorted(one["key"] for one in theirs)
    assert len(set(keys)) == len(keys) == 12


def test_files_by_key_are_equal(energon, folder):
    store = WebdatasetFileStore(folder)
    listed = sorted(list(one) for one in store.list_all_sample_parts())
    ours = [[*one, digest(store[one[0]][0])] for one in listed]
    assert ours == energon.do("store", folder)


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a": 1}', '{"b": [1, "ä"]}', '{"c": {}}'],
        ["", '{"a": 1}', "", "  ", '{"b": 2}', ""],
        ['{"a": "' + "x" * 100_000 + '"}'] * 3,
    ],
)
@pytest.mark.parametrize("prepared_by", ["ours", "theirs"])
def test_jsonl_files_are_equal(energon, tmp_path, lines, prepared_by):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines) + "\n")
    if prepared_by == "theirs":
        energon.prepares(path)
    else:
        assert CliRunner().invoke(main, ["prepare", str(path)]).exit_code == 0
    ours = we_read(path)
    assert same(ours, energon.reads(path, config={"split_part": None}))
    store = open_store(path)
    lines_by_key = [digest(store[f"{number}.json"][0]) for number in range(len(ours))]
    assert lines_by_key == energon.do("store", path)
    index = (tmp_path / "x.jsonl.idx").read_bytes()
    other = tmp_path / "y.jsonl"
    shutil.copy(path, other)
    energon.prepares(other)
    assert (tmp_path / "y.jsonl.idx").read_bytes() == index


@pytest.mark.parametrize(
    ("mode", "with_audio"), [("AVDecoder", False), ("torch", False), ("torch", True)]
)
def test_audio_and_video_are_equal(energon, tmp_path, mode, with_audio):
    pytest.importorskip("av")
    said = {"mkv": video(suffix="mkv"), "wav": wav(), "txt": b"x"}
    if not with_audio:  # Energon seeks before it reads, which spoils the first frame of AAC
        said["mp4"] = video()
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for extension, data in said.items():
            member = tarfile.TarInfo(f"a.{extension}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert CliRunner().invoke(main, ["prepare", str(tmp_path)]).exit_code == 0
    options = {"av_decode": mode, "video_decode_audio": with_audio}
    ours = we_read(tmp_path, decoder=SampleDecoder(**options))
    assert same(ours, energon.reads(tmp_path, decoder=options))


@pytest.mark.parametrize("layout", ["info_yaml", "no_uuid_or_sqlite", "split_json"])
def test_older_layouts_are_read_alike(energon, tmp_path, layout):
    folder = tmp_path / "a"
    write(folder)
    options = ["--split-ratio", "3,1,1", "--non-interactive", "--sample-type", "CrudeWebdataset"]
    energon.prepares(folder, *options)
    meta = folder / ".nv-meta"
    if layout == "info_yaml":
        info = json.loads((meta / ".info.json").read_text())
        (meta / ".info.yaml").write_text(yaml.safe_dump(info))
        (meta / ".info.json").unlink()
    if layout == "split_json":
        split = yaml.safe_load((meta / "split.yaml").read_text())
        (meta / "split.json").write_text(json.dumps(split))
        (meta / "split.yaml").unlink()
    else:
        (meta / "index.sqlite").unlink()
        (meta / "index.uuid").unlink()
    said = {**MODULE, "__class__": "CaptioningWebdataset"}
    said["field_map"] = {"image": "png", "caption": "txt"}
    (meta / "dataset.yaml").write_text(yaml.safe_dump(said))
    assert same(we_read(folder), energon.reads(folder))


@pytest.mark.parametrize(
    "strategy", ["--media-metadata-by-extension", "--media-metadata-by-header"]
)
def test_facts_about_media_are_equal(energon, tmp_path, strategy):
    pytest.importorskip("av")
    said = {**parts_of(1), "mkv": video(suffix="mkv"), "wav": wav(), "mp4": video()}
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        with tarfile.open(tmp_path / name / "s.tar", "w") as tar:
            for extension, data in said.items():
                member = tarfile.TarInfo(f"a.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    options = ["--split-ratio", "1,0,0", "--non-interactive", strategy, "--skip-dataset-yaml"]
    energon.prepares(tmp_path / "theirs", *options)
    done = CliRunner().invoke(main, ["prepare", str(tmp_path / "ours"), *options])
    assert done.exit_code == 0, done.output
    ours, theirs = facts(tmp_path / "ours"), facts(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for key, one in ours.items():
        assert one == theirs[key], key


def facts(folder):
    database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
    rows = database.execute("SELECT * FROM media_metadata").fetchall()
    filters = database.execute("SELECT strategy, patterns FROM media_filters").fetchall()
    database.close()
    return {key: (kind, json.loads(text)) for key, kind, text in rows} | {"": filters}
