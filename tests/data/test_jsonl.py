"""JSONL files: indexed as Energon does, read at random."""

from __future__ import annotations

import json
import os
import pickle
import time

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data import WorkerConfig, get_loader, get_val_dataset
from energy_data.cli.main import main
from energy_data.data import jsonl
from energy_data.data.files.local import open_file
from energy_data.data.join import open_join
from energy_data.data.join_table import JoinMember
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source, open_store
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import DataError, SampleError, SpecError, StructureError


def write(path, lines):
    path.write_bytes(b"".join(lines))
    return path


def numbers(path, count, **fields):
    return write(path, [json.dumps({"n": n, **fields}).encode() + b"\n" for n in range(count)])


def test_samples_are_lines_and_their_keys_their_numbers(tmp_path):
    path = numbers(tmp_path / "x.jsonl", 10)
    source = open_source(path, subflavors={"a": 1})
    sample = source.read(np.array([7]))[0]
    assert sample == {
        "__key__": "7",
        "__subflavors__": {"a": 1},
        "__sources__": ((str(path), "x.jsonl", 7),),
        "json": {"n": 7},
    }


@given(
    indices=st.lists(st.integers(0, 99), max_size=40),
    gap=st.sampled_from([0, 20, 5000]),
)
@settings(max_examples=30, deadline=None)
def test_any_order_and_repeats_give_what_the_lines_hold(tmp_path_factory, indices, gap):
    path = tmp_path_factory.mktemp("j") / "x.jsonl"
    source = open_source(numbers(path, 100, pad="x" * gap))
    found = source.read(np.array(indices, np.int64))
    assert [sample["json"]["n"] for sample in found] == indices


LINES = st.lists(
    st.one_of(
        st.integers(0, 9).map(lambda n: json.dumps({"n": "}\n{ü" * n}).encode()),
        st.sampled_from([b"", b"  ", b"\t\r", b' {"a": 1} ', b'{"a": 1}\r']),
    ),
    max_size=30,
)


@given(lines=LINES, ended=st.booleans(), chunk=st.sampled_from([1, 7, 64, 1 << 22]))
@settings(max_examples=200, deadline=None)
def test_the_index_holds_the_places_that_energon_gives(tmp_path_factory, lines, ended, chunk):
    path = tmp_path_factory.mktemp("j") / "x.jsonl"
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    path.write_bytes(text)
    offsets, last = [], 0
    with path.open("rb") as file:
        while line := file.readline():
            if line.strip():
                offsets.append(last)
                last = file.tell()
            elif last:
                last = file.tell()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_CHUNK", chunk)
        if not offsets:
            with pytest.raises(SpecError, match="no samples"):
                open_source(path)
        found = jsonl.scan_lines(open_file(str(path)))
    assert found.tolist() == [*offsets, len(text)]
    if not offsets:
        return
    samples = open_source(path).read(np.arange(len(offsets)))
    assert [one["json"] for one in samples] == [json.loads(line) for line in lines if line.strip()]


@pytest.mark.parametrize(
    "line", [b"3", b'["a"]', b'{"a": 1', b'x{"a": 1}', b'\xef\xbb\xbf{"a": 1}']
)
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    path = write(tmp_path / "x.jsonl", [b'{"a": 1}\n', b"\n", line, b"\n"])
    with pytest.raises(StructureError) as caught:
        open_source(path)
    assert "line 3 is no JSON object" in str(caught.value)
    assert caught.value.offset == 10
    assert not (tmp_path / "x.jsonl.idx").exists()


@pytest.mark.parametrize(
    "line", [b'{"a" 1}\n', pytest.param(b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n", id="deep")]
)
def test_a_line_that_is_no_json_is_a_bad_sample(tmp_path, line):
    path = write(tmp_path / "x.jsonl", [b'{"a": 1}\n', line, b'{"a": 2}\n'])
    one, bad, other = open_source(path).read(np.arange(3))
    assert (one["json"], other["json"]) == ({"a": 1}, {"a": 2})
    assert isinstance(bad, SampleError)
    assert (bad.key, bad.offset, bad.dataset) == ("1", 9, str(path))


def test_a_file_that_grew_is_indexed_anew(tmp_path):
    path = numbers(tmp_path / "x.jsonl", 3)
    assert len(open_source(path)) == 3
    numbers(path, 5)
    assert len(open_source(path)) == 5


def test_an_index_of_the_same_size_but_an_older_file_is_made_anew(tmp_path):
    path = write(tmp_path / "x.jsonl", [b'{"a": 1}\n', b'{"a": 11}\n'])
    open_source(path)
    write(path, [b'{"a": 11}\n', b'{"a": 1}\n'])
    later = time.time() + 10
    os.utime(path, (later, later))
    assert [one["json"]["a"] for one in open_source(path).read(np.arange(2))] == [11, 1]


def test_in_a_read_only_folder_the_index_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = numbers(tmp_path / "x.jsonl", 3)
    (tmp_path / "x.jsonl.idx").mkdir()  # nothing can be written there, by root either
    assert len(open_source(path)) == 3
    assert len(list((tmp_path / "cache").rglob("*.idx"))) == 1


def test_the_fingerprint_notices_other_samples_in_lines_of_equal_lengths(tmp_path):
    path = numbers(tmp_path / "x.jsonl", 1000, text="a" * 1000)
    before = open_source(path).fingerprint
    numbers(path, 1000, text="b" * 1000)
    assert open_source(path).fingerprint != before


@pytest.mark.parametrize("line", [0, 7, 99])
def test_the_fingerprint_notices_a_change_of_one_byte_of_a_small_file(tmp_path, line):
    path = numbers(tmp_path / "x.jsonl", 100, text="a" * 1000)
    before = open_source(path).fingerprint
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"a", b"b", 1)
    assert open_source(write(path, lines)).fingerprint != before


def test_a_file_has_no_other_file_of_split_parts(tmp_path):
    path = numbers(tmp_path / "x.jsonl", 4)
    with pytest.raises(SpecError, match=r"split_config 'other\.yaml' names a file"):
        open_source(path, split_config="other.yaml")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_index_is_an_error_and_never_a_crash(tmp_path_factory, data):
    path = numbers(tmp_path_factory.mktemp("j") / "x.jsonl", 20)
    source = open_source(path)
    index = path.with_suffix(".jsonl.idx")
    good = index.read_bytes()
    rows = np.frombuffer(good, "<u8").copy()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(rows) - 1))
        rows[place] = data.draw(st.integers(0, 2**64 - 1) | st.integers(0, 300))
    index.write_bytes(rows.tobytes()[: data.draw(st.sampled_from([len(good), 161, 80, 8, 0]))])
    try:
        source.read(np.arange(20))
        found = open_source(path).read(np.arange(20))
    except (DataError, IndexError, SpecError):
        return
    assert len(found) == 20


def test_lines_are_had_by_key(tmp_path):
    path = write(tmp_path / "x.jsonl", [b'{"a": 1}\n', b'{"b": 2}\n'])
    store = pickle.loads(pickle.dumps(open_store(path)))
    assert store["1.json"] == (b'{"b": 2}\n', (str(path), "x.jsonl", "1.json"))
    assert (len(store), store.get_path()) == (2, str(path))


@pytest.mark.parametrize("key", ["2.json", "-1.json", "1", "1.txt", "x.json", "../0.json"])
def test_keys_that_are_no_lines_are_refused(tmp_path, key):
    path = write(tmp_path / "x.jsonl", [b'{"a": 1}\n', b'{"b": 2}\n'])
    with pytest.raises(KeyError, match=r"only 0\.json to 1\.json"):
        open_store(path)[key]


def test_a_file_that_was_replaced_is_read_from_its_new_inode(tmp_path):
    path = numbers(tmp_path / "x.jsonl", 3)
    before = open_source(path)
    assert before.read(np.arange(3))[2]["json"] == {"n": 2}
    os.replace(numbers(tmp_path / "new.jsonl", 3, a=1), path)  # noqa: PTH105 - as users do
    assert open_source(path).read(np.arange(3))[2]["json"] == {"n": 2, "a": 1}
    assert before.read(np.arange(3))[2]["json"] == {"n": 2}  # what its index is of


@pytest.mark.parametrize("size", [0, 8, 4096])
def test_an_index_that_is_cut_during_a_run_is_an_error(tmp_path, size):
    path = numbers(tmp_path / "x.jsonl", 40_000)
    source = open_source(path)
    source.read(np.array([0]))
    os.truncate(f"{path}.idx", size)
    with pytest.raises(StructureError, match=r"its index .* samples need"):
        source.read(np.array([39_999]))


def test_files_of_a_folder_may_be_empty_or_end_without_a_newline(tmp_path):
    numbers(tmp_path / "a.jsonl", 2)
    (tmp_path / "b.jsonl").write_bytes(b"\n\n")
    write(tmp_path / "c.jsonl", [b'{"n": 7}\n', b'{"n": 8}'])
    found = open_source(tmp_path).read(np.arange(4))
    assert [(one["__sources__"][0][1:], one["json"]["n"]) for one in found] == [
        (("a.jsonl", 0), 0),
        (("a.jsonl", 1), 1),
        (("c.jsonl", 0), 7),
        (("c.jsonl", 1), 8),
    ]
    assert prepare(tmp_path, kind=jsonl.JSONL).empty_shards == ["b.jsonl"]
    assert open_source(tmp_path).read(np.array([3]))[0] == found[3]


def test_a_bad_line_names_its_file_and_moves_no_other_sample(tmp_path):
    numbers(tmp_path / "a.jsonl", 2)
    write(tmp_path / "b.jsonl", [b'{"n": 2}\n', b'{"n" 3}\n', b'{"n": 4}\n'])
    _, _, _, bad, last = open_source(tmp_path).read(np.arange(5))
    assert (bad.dataset, bad.shard, bad.key, bad.offset) == (str(tmp_path), "b.jsonl", "1", 9)
    assert last["json"] == {"n": 4}


def test_lines_of_several_files_have_no_keys_for_stores_and_joins(tmp_path):
    for name in "ab":
        numbers(tmp_path / f"{name}.jsonl", 2)
    with pytest.raises(SpecError, match=r"its 2 files are numbered from 0\. Name one \.jsonl file"):
        open_store(tmp_path)
    for path in (tmp_path, tmp_path / "a.jsonl"):
        with pytest.raises(SpecError, match=r"only datasets of tars .* found \.jsonl files\."):
            open_join([JoinMember(open_source(path))] * 2)


def test_a_prepared_folder_may_declare_a_type(tmp_path):
    numbers(tmp_path / "a.jsonl", 2, text="hello")
    options = ["--sample-type", "TextSample", "--field-map", '{"text": "json[text]"}']
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    assert [one.text for one in open_typed(tmp_path).read(np.arange(2))] == ["hello"] * 2


@pytest.mark.parametrize(
    "option", ["--sqlite", "--fix-duplicates", "--media-metadata-by-extension"]
)
def test_options_for_tars_are_refused_for_folders_of_lines(tmp_path, option):
    numbers(tmp_path / "a.jsonl", 2)
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), option])
    assert done.exit_code
    assert f"{option[:16]}" in done.output
    assert "for tars" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_folder_of_lines_is_split_by_patterns_and_trains(tmp_path):
    for shard in range(4):
        numbers(tmp_path / f"{shard}.jsonl", 3, shard=shard)
    parts = ["--split-parts=train:[01]", "--split-parts=val:{2..3}.jsonl", "--non-interactive"]
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), *parts])
    assert "val             6 samples in 2 shards" in done.output
    config = WorkerConfig(lanes=2)
    dataset = get_val_dataset(tmp_path, batch_size=4, worker_config=config)
    found = [one for batch in get_loader(dataset) for one in batch["json"]]
    assert sorted((one["shard"], one["n"]) for one in found) == [
        (shard, n) for shard in (2, 3) for n in range(3)
    ]
