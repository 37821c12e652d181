from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tars import bare, dataset, expected, one_shard, read_all, sample_files, write_tar

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.core.sample import SampleSource
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError

pytestmark = pytest.mark.usefixtures("reading")

SIZES = [40, 600, 5_000, 40_000]  # in one piece, in several, with parts that are read by themselves
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.mark.parametrize("size", SIZES)
def test_blocks_give_the_samples_in_the_order_asked_for(tmp_path, size):
    source = open_source(dataset(tmp_path, size=size))
    rng = np.random.default_rng(0)
    assert len(source) == 60
    for count in (0, 1, 5, 31, 32, 33, 60):
        numbers = rng.integers(0, 60, count)
        samples = source.read(numbers)
        assert [bare(sample) for sample in samples] == [expected(n, size) for n in numbers.tolist()]
        places = [SampleSource(str(tmp_path), f"shard-{n // 20:03d}.tar", n % 20) for n in numbers]
        assert [sample["__sources__"] for sample in samples] == [(place,) for place in places]


@pytest.mark.parametrize("kind", FORMATS)
def test_names_of_every_format(tmp_path, kind):
    names = [f"{'folder/' * 12}{n}" for n in range(50)]
    if kind != tarfile.USTAR_FORMAT:
        names += [f"grüße/{n}" for n in range(50)] + [f"{'x' * 200}{n}" for n in range(50)]
    files = [(f"{name}.{part}", name.encode()) for name in names for part in ("txt", "b.bin")]
    write_tar(tmp_path / "a.tar", files, kind)
    prepare(tmp_path)
    samples = read_all(open_source(tmp_path))
    assert [sample["__key__"] for sample in samples] == names
    assert [sample["txt"] for sample in samples] == names
    assert [sample["b.bin"] for sample in samples] == [name.encode() for name in names]


def test_samples_with_different_parts_in_one_block(tmp_path):
    rng = np.random.default_rng(0)
    samples = []
    for n in range(100):
        parts = {f"p{k}": rng.bytes(int(rng.integers(0, 30_000))) for k in range(n % 7 + 1)}
        samples.append({"__key__": f"{n}", **parts})
    files = [(f"{s['__key__']}.{k}", s[k]) for s in samples for k in s if k != "__key__"]
    assert [bare(one) for one in read_all(one_shard(tmp_path, files))] == samples


def test_a_sample_of_very_many_parts(tmp_path):
    parts = {f"p{k}": b"x" * 3000 for k in range(2000)}
    source = one_shard(tmp_path, [(f"a.{name}", data) for name, data in parts.items()])
    begin = time.process_time()
    assert [bare(one) for one in read_all(source)] == [{"__key__": "a", **parts}]
    assert time.process_time() - begin < 5


def test_folders_and_links_between_samples_are_passed_over(tmp_path):
    files = [one for n in range(50) for one in (("d/", b""), *sample_files(n))]
    assert [bare(one) for one in read_all(one_shard(tmp_path, files))] == list(
        map(expected, range(50))
    )


def test_bytes_mode_decodes_nothing(tmp_path):
    source = one_shard(tmp_path, sample_files(3), decode="bytes")
    assert {type(v) for k, v in source.read(np.array([0]))[0].items() if k[0] != "_"} == {bytes}


def test_decoders_of_the_user_go_first(tmp_path):
    files = [("1.txt", b"a"), ("1.seg.txt", b"b"), ("1.json", b"{}"), ("1.x", b"c")]
    decoders = {"seg.txt": bytes.upper, "txt": "bytes", "x": bytes.decode}
    source = one_shard(tmp_path, files, decoders=decoders)
    sample = bare(source.read(np.array([0]))[0])
    assert sample == {"__key__": "1", "txt": b"a", "seg.txt": b"B", "json": {}, "x": "c"}


def test_subflavors_are_given_to_every_sample(tmp_path):
    source = one_shard(tmp_path, sample_files(3), subflavors={"a": 1})
    assert source.read(np.array([0]))[0]["__subflavors__"] == {"a": 1}


def test_split_parts_that_are_not_there_are_named(tmp_path):
    dataset(tmp_path)
    with pytest.raises(SpecError, match="no split part 'dev', only: 'train', 'val', 'test'"):
        open_source(tmp_path, split_part="dev")
    with pytest.raises(SpecError, match="'val' has no samples; parts with shards: 'train'"):
        open_source(tmp_path, split_part="val")
    with pytest.raises(SpecError, match="there is no such file or folder"):
        open_source(tmp_path / "nowhere")


def test_excluded_shards_and_samples(tmp_path):
    dataset(tmp_path)
    exclude(tmp_path, "shard-000.tar", "shard-001.tar/d/0002{1..2}")
    source = open_source(tmp_path)
    assert len(source) == 38
    kept = [f"d/{number:05d}" for number in (20, *range(23, 60))]
    assert [sample["__key__"] for sample in source.read(np.arange(38))] == kept
    assert [sample["__key__"] for sample in source.read(np.array([3, 1]))] == [kept[3], kept[1]]


def exclude(folder, *names):
    path = folder / ".nv-meta" / "split.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"exclude": list(names)}))


@pytest.fixture(scope="module", params=[False, True])
def excluding(request, tmp_path_factory):
    folder = dataset(tmp_path_factory.mktemp("excluding"), shards=2, samples=6)
    prepare(folder, force=True, sqlite=request.param)
    return folder


@given(excluded=st.sets(st.integers(0, 11), max_size=10), data=st.data())
def test_a_source_has_the_samples_that_are_not_excluded(excluding, excluded, data):
    exclude(excluding, *(f"shard-{n // 6:03d}.tar/d/{n:05d}" for n in excluded))
    kept = [n for n in range(12) if n not in excluded]
    start = data.draw(st.integers(0, len(kept) - 1))
    end = data.draw(st.integers(start + 1, len(kept)))
    source = pickle.loads(pickle.dumps(open_source(excluding, subset=(start, end))))
    samples = source.read(np.arange(len(source)))
    assert [int(sample["__key__"][2:]) for sample in samples] == kept[start:end]
    assert source.rows_of(range(len(source))) == kept[start:end]
    for outside in (-1, len(source)):
        with pytest.raises(IndexError):
            source.read(np.array([outside]))


def test_the_fingerprint_is_of_the_samples_that_remain(excluding):
    found = set()
    for names in ([], ["shard-000.tar/d/00003"], ["shard-001.tar/d/00007"]):
        exclude(excluding, *names)
        found.add(open_source(excluding, subset=(0, 3)).fingerprint)
        exclude(excluding, *names, "shard-000.tar/d/00011")  # in the other shard
        found.add(open_source(excluding, subset=(0, 3)).fingerprint)
    assert len(found) == 1
    exclude(excluding, "shard-000.tar/d/00001")
    assert open_source(excluding, subset=(0, 3)).fingerprint not in found


def test_an_index_of_keys_that_is_older_than_the_shard_excludes_no_other_sample(tmp_path):
    dataset(tmp_path, shards=1, samples=6)
    prepare(tmp_path, force=True, sqlite=True)
    stale = (tmp_path / ".nv-meta" / "index.sqlite").read_bytes()
    files = [part for number in (9, 3, 5, 4) for part in sample_files(number)[: 2 + number % 2]]
    write_tar(tmp_path / "shard-000.tar", files)
    prepare(tmp_path, force=True)
    (tmp_path / ".nv-meta" / "index.sqlite").write_bytes(stale)
    exclude(tmp_path, "shard-000.tar/d/00004")
    keys = [sample["__key__"] for sample in read_all(open_source(tmp_path))]
    assert keys == ["d/00009", "d/00003", "d/00005"]


@pytest.mark.parametrize(
    "name", ["shard-000.tar/d/00031", "shard-003.tar/d/00001", "shard-003.tar", "d/00001"]
)
def test_what_is_excluded_and_does_not_exist_is_found_by_checking(tmp_path, name):
    exclude(dataset(tmp_path), name, "shard-000.tar/d/00001")
    source = open_source(tmp_path)
    assert len(source) == 59
    with pytest.raises(SpecError, match=f"excludes '{name}', which does not exist"):
        source.check_files()


def test_what_is_excluded_and_does_not_exist_is_logged_once_when_a_run_starts(tmp_path, caplog):
    exclude(dataset(tmp_path), "shard-000.tar/d/00031")
    meta = {"splits": {"train": {"blend": [{"path": str(tmp_path)}, {"path": str(tmp_path)}]}}}
    config = WorkerConfig(0, 1, 2)
    with get_loader(get_train_dataset(meta, batch_size=2, worker_config=config)) as loader:
        next(iter(loader))
    assert [one.message for one in caplog.records] == [
        f"{tmp_path}: split.yaml excludes 'shard-000.tar/d/00031', which does not exist. "
        "Correct it: `shard.tar` or `shard.tar/key`."
    ]


def test_a_part_whose_samples_are_all_excluded_is_an_error(tmp_path):
    exclude(dataset(tmp_path, shards=1), "shard-000.tar/d/{00000..00019}")
    with pytest.raises(SpecError, match="all samples of its part are excluded"):
        open_source(tmp_path)


def test_excluded_samples_use_up_no_draws_of_a_blend(tmp_path):
    for name in ("a", "b"):
        dataset(tmp_path / name, shards=1, samples=8)
    exclude(tmp_path / "a", "shard-000.tar/d/{00002..00004}")
    meta = {
        "splits": {"train": {"blend": [{"path": "a", "weight": 1}, {"path": "b", "weight": 1}]}}
    }
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(meta))
    loader = get_loader(get_train_dataset(tmp_path / "m.yaml", batch_size=10))
    samples = [one[0] for batch in islice(loader, 20) for one in batch["__sources__"]]
    drawn = Counter(Path(source.dataset).name for source in samples)
    assert drawn["a"] + drawn["b"] == 200
    assert abs(drawn["a"] - drawn["b"]) <= 16  # lanes


def test_yaml_info_and_json_splits_of_old_energons(tmp_path):
    meta = dataset(tmp_path) / ".nv-meta"
    info = json.loads((meta / ".info.json").read_text())
    (meta / ".info.yaml").write_text(yaml.safe_dump(info))
    (meta / ".info.json").unlink()
    (meta / "split.json").write_text(json.dumps(yaml.safe_load((meta / "split.yaml").read_text())))
    (meta / "split.yaml").unlink()
    assert len(open_source(tmp_path)) == 60


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".info.json", "{"),
        (".info.json", "[]"),
        (".info.json", "{}"),
        (".info.json", '{"shard_counts": {"a.tar": -1}}'),
        (".info.json", '{"shard_counts": {"a.tar": true}}'),
        (".info.json", '{"shard_counts": {"a.tar": 1e300}}'),
        (".info.json", '{"shard_counts": {"../a.tar": 1}}'),
        (".info.json", '{"shard_counts": {"/etc/a.tar": 1}}'),
        (".info.json", "[" * 100_000),
        (".info.json", "\udcff"),
        ("split.yaml", "split_parts: {train: ["),
        ("split.yaml", "split_parts: {train: [[]]}"),
        ("split.yaml", "split_parts: {train: [3]}"),
        ("split.yaml", "split_parts: {train: ['a{{b']}"),
        ("split.yaml", "split_parts: {train: ['{0..9}{0..9999999999999}']}"),
        ("split.yaml", "split_parts: {train: [b.tar]}"),
        ("split.yaml", "split_parts: [train]"),
        ("split.yaml", "- 1"),
        ("split.yaml", "a: !!python/object/apply:os.system ['true']"),
        ("split.yaml", "&a [*a]"),
        ("split.yaml", "[" * 10_000),
        ("index.uuid", "\udcff"),
    ],
)
def test_damaged_metadata_are_named(tmp_path, name, text):
    dataset(tmp_path)
    (tmp_path / ".nv-meta" / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises((StructureError, SpecError), match=name if name[0] != "." else "info|split"):
        open_source(tmp_path)


def test_a_folder_or_a_pipe_in_place_of_a_shard(tmp_path):
    for make in (os.mkdir, os.mkfifo):
        folder = tmp_path / make.__name__
        source = open_source(dataset(folder))
        (folder / "shard-000.tar").unlink()
        make(folder / "shard-000.tar")
        with pytest.raises(StructureError, match="not a regular file"):
            source.read(np.arange(3))


@pytest.mark.parametrize(
    "damage",
    [
        lambda tar, idx: idx.unlink(),
        lambda tar, idx: idx.write_bytes(b""),
        lambda tar, idx: idx.write_bytes(idx.read_bytes()[:-8]),
        lambda tar, idx: idx.write_bytes(idx.read_bytes()[:-3]),
        lambda tar, idx: idx.write_bytes(idx.read_bytes() + b"\0" * 8),
        lambda tar, idx: idx.write_bytes(b"\xff" * idx.stat().st_size),
        lambda tar, idx: idx.write_bytes(b"\0" * idx.stat().st_size),
        lambda tar, idx: idx.write_bytes(np.fromfile(idx, "<u8")[::-1].tobytes()),
        lambda tar, idx: os.truncate(tar, tar.stat().st_size - 20 * 1024),
    ],
)
def test_indices_that_do_not_fit_are_errors(tmp_path, damage):
    dataset(tmp_path)
    tar = tmp_path / "shard-001.tar"
    damage(tar, tmp_path / "shard-001.tar.idx")
    source = open_source(tmp_path)
    for numbers in (np.array([25]), np.arange(60)):
        with pytest.raises(StructureError, match="prepare"):
            source.read(numbers)


def test_a_tar_that_was_written_anew_is_noticed(tmp_path):
    dataset(tmp_path)
    tar = tmp_path / "shard-001.tar"
    later = time.time_ns() + 10**9
    for files in (
        [part for n in range(60) for part in sample_files(n)],
        [part for n in range(20) for part in sample_files(n, 700)],
        [part for n in range(20) for part in sample_files(n)[:1]],
        [(f"{n // 2}.{n % 2}", b"x") for n in range(60)],
    ):
        write_tar(tar, files)
        os.utime(tar, ns=(later, later))
        with pytest.raises(StructureError, match="prepare"):
            open_source(tmp_path).read(np.array([25]))


def test_a_copied_dataset_is_not_taken_for_a_changed_one(tmp_path):
    dataset(tmp_path)
    for tar in tmp_path.glob("*.tar"):
        later = time.time_ns() + 10**9
        os.utime(tar, ns=(later, later))
    assert len(open_source(tmp_path).read(np.arange(60))) == 60


def test_many_datasets_open_in_seconds(tmp_path):
    dataset(tmp_path, shards=2)
    begin = time.process_time()
    for _ in range(300):
        open_source(tmp_path)
    assert (time.process_time() - begin) / 300 < 0.002


@pytest.mark.parametrize("size", SIZES)
def test_pax_records_that_say_nothing_of_names_and_sizes(tmp_path, size):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for n in range(50):
            for name, data in sample_files(n, size):
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(data), 1.5
                if n % 5 == 4:
                    member.pax_headers = {"path": name, "comment": "x" * 600}
                tar.addfile(member, io.BytesIO(data))
    prepare(tmp_path)
    samples = read_all(open_source(tmp_path))
    assert [bare(one) for one in samples] == [expected(n, size) for n in range(50)]
