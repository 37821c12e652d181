"""Joins: what is matched, what is read, what is told of what does not match."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from tars import write_tar

from energy_data.data import join_table
from energy_data.data.join import open_join
from energy_data.data.join_table import JoinMember, JoinTable
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import ExcludedError, SampleError, SkipSample, SpecError, StructureError


def make(folder, keys, extension, *, shards=3, sqlite=True, prepared=True):
    """Write a dataset with one part per sample, its content the name of the folder and the key."""
    for shard in range(shards):
        files = [
            (f"{key}.{extension}", f"{folder.name} {key}".encode()) for key in keys[shard::shards]
        ]
        write_tar(folder / f"shard-{shard}.tar", files)
    if prepared:
        prepare(folder, sqlite=sqlite, workers=1)
    return folder


@pytest.fixture
def images(tmp_path):
    return make(tmp_path / "images", [f"k{n:02d}" for n in range(20)], "img")


@pytest.fixture
def texts(tmp_path):
    return make(tmp_path / "texts", [f"k{n:02d}" for n in range(25, 4, -1)], "cap", shards=4)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def whole(path, **options):
    return JoinMember(open_source(path, decode="bytes"), **options)


def join(*members, **options):
    return open_join(members, **options)


def rows(source):
    return source.read(np.arange(len(source)))


def test_rows_are_those_of_the_first_with_the_parts_of_all(images, texts):
    source = join(whole(images), whole(texts, nonmatch="skip"))
    samples = rows(source)
    in_order = [sample["__key__"] for sample in rows(open_source(images))]
    assert [sample["__key__"] for sample in samples] == [key for key in in_order if key >= "k05"]
    for sample in samples:
        key = sample["__key__"]
        assert sample["img"] == f"images {key}".encode()
        assert sample["cap"] == f"texts {key}".encode()
        assert [source.dataset for source in sample["__sources__"]] == [str(images), str(texts)]


def test_any_indices_in_any_order_give_the_same_samples(images, texts):
    source = join(whole(images), whole(texts, nonmatch="none"))
    samples = rows(source)
    indices = np.random.default_rng(0).integers(0, len(source), 100)
    assert source.read(indices) == [samples[index] for index in indices]
    with pytest.raises(IndexError):
        source.read(np.array([len(source)]))


def test_none_gives_what_there_is(images, texts):
    source = join(whole(images), whole(texts, nonmatch="none"))
    assert len(source) == 20
    assert {sample["__key__"] for sample in rows(source) if "cap" not in sample} == {
        f"k{n:02d}" for n in range(5)
    }


def test_error_names_the_samples_without_a_match(images, texts):
    with pytest.raises(
        SpecError, match=r"no match for 5 of 20 samples .*shard-0.tar/k00.*nonmatch"
    ):
        join(whole(images), whole(texts))


def test_three_members_each_with_its_own_rule(tmp_path, images, texts):
    few = make(tmp_path / "few", ["k07", "k01", "k19", "zz"], "few", shards=2)
    source = join(whole(images), whole(texts, nonmatch="none"), whole(few, nonmatch="skip"))
    assert sorted((sample["__key__"], "cap" in sample) for sample in rows(source)) == [
        ("k01", False),
        ("k07", True),
        ("k19", True),
    ]


def test_keys_that_are_there_twice_are_named(tmp_path, images):
    files = [("same.txt", b"1"), ("other.txt", b"2")]
    write_tar(tmp_path / "twice" / "a.tar", files)
    write_tar(tmp_path / "twice" / "b.tar", files[:1])
    prepare(tmp_path / "twice", workers=1)
    with pytest.raises(SpecError, match=r"found 1 more than once: a.tar/same and b.tar/same"):
        join(whole(images), whole(tmp_path / "twice", nonmatch="skip"))


def test_no_key_in_common_is_an_error(tmp_path, images):
    other = make(tmp_path / "other", ["a", "b", "c"], "txt")
    with pytest.raises(SpecError, match="no key in all of"):
        join(whole(images), whole(other, nonmatch="skip"))


@pytest.mark.parametrize("sqlite", [True, False])
@pytest.mark.parametrize("prepared", [True, False])
def test_keys_are_found_with_and_without_an_index_of_them(tmp_path, sqlite, prepared, images):
    other = make(
        tmp_path / "o", ["k03", "grüße", "k01"], "x", shards=1, sqlite=sqlite, prepared=prepared
    )
    source = join(whole(images), whole(other, nonmatch="skip"))
    assert sorted(sample["__key__"] for sample in rows(source)) == ["k01", "k03"]


def test_an_index_of_keys_that_fits_no_longer_is_not_trusted(tmp_path, images):
    other = make(tmp_path / "o", ["a", "b", "k03"], "x", shards=1)
    stale = (other / ".nv-meta" / "index.sqlite").read_bytes()
    make(tmp_path / "o", ["k01", "k02"], "x", shards=1, prepared=False)
    prepare(other, workers=1, force=True)
    (other / ".nv-meta" / "index.sqlite").write_bytes(stale)
    source = join(whole(images), whole(other, nonmatch="skip"))
    assert sorted(sample["__key__"] for sample in rows(source)) == ["k01", "k02"]


def test_excluded_samples_match_nothing(texts, images):
    split = texts / ".nv-meta" / "split.yaml"
    said = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump(said | {"exclude": ["shard-0.tar/k25", "shard-1.tar/k08"]}))
    source = join(whole(images), whole(texts, nonmatch="skip"))
    assert "k08" not in [sample["__key__"] for sample in rows(source)]
    assert len(source) == 14


def test_a_bad_sample_of_any_member_is_an_error_in_its_place(tmp_path, images):
    write_tar(tmp_path / "o" / "a.tar", [("k03.json", b"{}"), ("k04.json", b"{")])
    source = join(whole(images), JoinMember(open_source(tmp_path / "o"), nonmatch="skip"))
    found = {
        sample["__key__"] if isinstance(sample, dict) else sample.key for sample in rows(source)
    }
    (bad,) = [sample for sample in rows(source) if isinstance(sample, SampleError)]
    assert (found, bad.dataset, bad.key) == ({"k03", "k04"}, str(tmp_path / "o"), "k04")


# ------------------------------------------------------------------ joiners


@dataclass
class Pair:
    key: str
    left: bytes
    right: bytes | None

    @classmethod
    def from_joined(cls, left, right):
        return cls(left["__key__"], left["img"], right and right["cap"])


def by_name(picture, text):
    if text is None:
        raise SkipSample
    if picture["__key__"] == "k06":
        raise ValueError("no six")
    return {"key": picture["__key__"], "cap": text["cap"]}


def test_a_class_is_asked_for_from_joined(images, texts):
    samples = rows(join(whole(images), whole(texts, nonmatch="none"), joiner=Pair))
    assert Pair("k07", b"images k07", b"texts k07") in samples
    assert Pair("k01", b"images k01", None) in samples


def test_a_function_gets_the_samples_by_name_may_skip_and_may_fail(images, texts):
    members = {"picture": whole(images), "text": whole(texts, nonmatch="none")}
    samples = rows(open_join(members, joiner=by_name))
    assert {"key": "k07", "cap": b"texts k07"} in samples
    assert sum(isinstance(sample, ExcludedError) for sample in samples) == 5
    failed = [error for error in samples if type(error) is SampleError]
    assert ["key k06" in str(error) and "no six" in str(error) for error in failed] == [True]


def test_named_members_without_a_joiner_are_there_under_their_names(images, texts):
    members = {"picture": whole(images), "text": whole(texts, nonmatch="none")}
    by_key = {sample["__key__"]: sample for sample in rows(open_join(members))}
    assert by_key["k07"]["text"]["cap"] == b"texts k07"
    assert by_key["k07"]["picture"]["img"] == b"images k07"
    assert by_key["k01"]["text"] is None


# ------------------------------------------------------------------ the table


@pytest.fixture
def counted(monkeypatch):
    """The number of tables computed so far."""
    computed = []
    compute = join_table._compute
    monkeypatch.setattr(
        join_table, "_compute", lambda members: computed.append(1) or compute(members)
    )
    return computed


def test_a_table_is_computed_once_and_when_a_dataset_changes(tmp_path, images, texts, counted):
    def again(**options):
        return join(whole(images), whole(texts, nonmatch="skip", **options), folder=str(tmp_path))

    first = again()
    assert again().fingerprint == first.fingerprint
    assert len(counted) == 1
    shutil.move(images, tmp_path / "elsewhere")
    join(whole(tmp_path / "elsewhere"), whole(texts, nonmatch="skip"), folder=str(tmp_path))
    assert len(counted) == 1  # moved, not changed
    shutil.move(tmp_path / "elsewhere", images)
    prepare(texts, workers=1, force=True)
    assert again().fingerprint == first.fingerprint  # prepared again, not changed
    assert len(counted) == 2


def test_a_tar_that_was_never_prepared_is_looked_at_again_when_it_changes(
    tmp_path, images, counted
):
    make(tmp_path / "o", ["k03", "k01"], "x", shards=1, prepared=False)
    for _ in range(2):
        assert len(join(whole(images), whole(tmp_path / "o", nonmatch="skip"))) == 2
    make(tmp_path / "o", ["k05", "k06"], "x", shards=1, prepared=False)
    os.utime(tmp_path / "o" / "shard-0.tar", ns=(1, 1))
    source = join(whole(images), whole(tmp_path / "o", nonmatch="skip"))
    assert sorted(sample["__key__"] for sample in rows(source)) == ["k05", "k06"]
    assert len(counted) == 2


def test_where_nothing_can_be_written_it_is_kept_in_the_cache_folder(
    tmp_path, images, texts, counted
):
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        source = join(whole(images), whole(texts, nonmatch="skip"), folder=f"{tmp_path}/file/cache")
        assert source.table.path.startswith(f"{tmp_path}/cache/energy_data/join/")
    assert len(counted) == 1


@pytest.mark.parametrize("damage", [b"", b"junk" * 100])
def test_a_damaged_table_is_told_with_what_to_do(tmp_path, images, texts, damage):
    source = join(whole(images), whole(texts, nonmatch="skip"), folder=str(tmp_path))
    Path(source.table.path).write_bytes(damage)
    with pytest.raises(StructureError, match="Remove the file"):
        join(whole(images), whole(texts, nonmatch="skip"), folder=str(tmp_path))


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_table_that_was_cut_is_an_error_and_kills_no_process(
    tmp_path, images, texts, opened_before
):
    source = join(whole(images), whole(texts, nonmatch="skip"), folder=str(tmp_path))
    if opened_before:
        source.read(np.array([0]))
    with Path(source.table.path).open("rb+") as file:
        file.truncate(200)  # its header and some rows
    with pytest.raises(StructureError, match=r"join_.*: it .* Remove the file: it is recomputed"):
        source.read(np.arange(len(source)))


def test_rows_of_a_large_table_are_read_in_any_order(tmp_path):
    table = np.stack([np.arange(10_000), -np.arange(10_000)], axis=1).astype(np.int32)
    np.save(tmp_path / "table.npy", table)
    found = JoinTable(str(tmp_path / "table.npy"), 2)
    for numbers in ([9_999, 0, 5, 5, 700, 699], [3], [], range(10_000)):
        assert found[np.array(numbers, np.int64)].tolist() == table[list(numbers)].tolist()


def test_a_join_pickles_small_and_reads_the_same_elsewhere(tmp_path, images, texts):
    source = join(whole(images), whole(texts, nonmatch="skip"), subset=(3, 9))
    pickled = pickle.dumps(source)
    assert len(pickled) < 1500
    again = pickle.loads(pickled)
    assert rows(again) == rows(source)
    assert again.fingerprint == source.fingerprint
    assert len(source) == 6
    with pytest.raises(SpecError, match="out of range of its 15 samples"):
        join(whole(images), whole(texts, nonmatch="skip"), subset=(3, 16))


def test_what_cannot_be_joined_is_told(images, texts):
    with pytest.raises(SpecError, match=r"texts: only complete parts .* the subset \(0, 3\)"):
        join(whole(images), JoinMember(open_source(texts, subset=(0, 3))))
    with pytest.raises(SpecError, match="two datasets or more"):
        join(whole(images))
    with pytest.raises(SpecError, match="put another first"):
        join(whole(images, nonmatch="skip"), whole(texts))


def test_random_keys_are_matched_as_dicts_match_them(tmp_path):
    rng = np.random.default_rng(1)
    sides = [[f"x{n}" for n in rng.permutation(300)[:200]] for _ in range(2)]
    paths = [make(tmp_path / f"d{n}", keys, f"p{n}", shards=5) for n, keys in enumerate(sides)]
    samples = rows(join(whole(paths[0]), whole(paths[1], nonmatch="none")))
    assert {sample["__key__"]: sample.get("p1") for sample in samples} == {
        key: f"d1 {key}".encode() if key in sides[1] else None for key in sides[0]
    }
