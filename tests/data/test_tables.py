"""Parquet and Arrow files: rows as samples, read group by group."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections import deque
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energy_data import SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.files import recent
from energy_data.data.files.local import keep_open
from energy_data.data.files.recent import RECENT
from energy_data.data.registry import open_source
from energy_data.data.tables import groups
from energy_data.data.tables import source as table_source
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import DataError, MissingExtraError, SampleError, SpecError, StructureError


def parquet(path, table, size=10):
    pq.write_table(table, path.with_suffix(".parquet"), row_group_size=size)
    return path.with_suffix(".parquet")


def stream(path, table, size=10):
    with pa.ipc.new_stream(path.with_suffix(".arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)
    return path.with_suffix(".arrow")


def arrow(path, table, size=10):
    with pa.ipc.new_file(path.with_suffix(".arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)
    return path.with_suffix(".arrow")


WRITERS = [parquet, stream, arrow]
every_format = pytest.mark.parametrize("write", WRITERS)


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def rows(source, indices=None):
    """The columns of samples, with tensors as lists."""
    wanted = np.arange(len(source)) if indices is None else np.array(indices, np.int64)
    return [
        {name: plain(value) for name, value in sample.items() if not name.startswith("__")}
        for sample in source.read(wanted)
    ]


VALUES = {
    "n": list(range(25)),
    "text": [f"text {n}" for n in range(25)],
    "maybe": [None if n % 3 else n for n in range(25)],
    "ids": [list(range(n % 4)) for n in range(25)],
    "data": [bytes([n]) for n in range(25)],
}


@every_format
def test_samples_are_rows_and_their_keys_their_numbers(write, tmp_path):
    path = write(tmp_path / "x", pa.table(VALUES))
    source = open_source(path, subflavors={"a": 1})
    (sample,) = source.read(np.array([12]))
    assert sample.pop("ids").tolist() == VALUES["ids"][12]
    assert sample == {
        "__key__": "12",
        "__subflavors__": {"a": 1},
        "__sources__": ((str(path), path.name, 12),),
        **{name: VALUES[name][12] for name in ("n", "text", "maybe", "data")},
    }


TYPES = {
    "large text": (pa.large_string(), ["a", None, "c"]),
    "large binary": (pa.large_binary(), [b"a", b"", None]),
    "text in a dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
    "decimal": (pa.decimal128(5, 2), [Decimal("1.25"), None, Decimal("3.00")]),
    "flags": (pa.bool_(), [True, False, None]),
    "structs": (
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}),
        [{"a": 1, "b": ["x"]}] * 3,
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], [("b", 2)]]),
    "lists of texts": (pa.list_(pa.string()), [["a"], [], ["b", "c"]]),
    "lists of lists": (pa.list_(pa.list_(pa.int32())), [[[1], [2, 3]], [], [[]]]),
    "nothing": (pa.null(), [None, None, None]),
}


@every_format
@pytest.mark.parametrize("name", TYPES)
def test_values_are_those_of_python(write, name, tmp_path):
    kind, values = TYPES[name]
    source = open_source(write(tmp_path / "x", pa.table({"it": pa.array(values, kind)}), size=2))
    assert [row["it"] for row in rows(source)] == values


NUMBERS = {
    "int32": (pa.list_(pa.int32()), torch.int32),
    "uint16": (pa.list_(pa.uint16()), torch.int64),
    "uint8": (pa.large_list(pa.uint8()), torch.uint8),
    "float32": (pa.list_(pa.float32(), 2), torch.float32),
}


@every_format
@pytest.mark.parametrize("name", NUMBERS)
def test_lists_of_numbers_are_tensors(write, name, tmp_path):
    kind, dtype = NUMBERS[name]
    values = [[2 * n, 2 * n + 1] for n in range(5)]
    table = pa.table({"it": pa.array(values, kind)})
    source = open_source(write(tmp_path / "x", table, size=3))
    samples = source.read(np.array([4, 1, 0]))
    assert [sample["it"].dtype for sample in samples] == [dtype] * 3
    assert [sample["it"].tolist() for sample in samples] == [values[n] for n in (4, 1, 0)]
    samples[0]["it"] += 1  # it is the caller's own
    assert source.read(np.array([4]))[0]["it"].tolist() == values[4]


@every_format
def test_what_a_list_becomes_depends_on_itself_alone(write, tmp_path):
    values = [[1, 2], None, [3, None], [], [4]]
    table = pa.table({"it": pa.array(values, pa.list_(pa.int32()))})
    found = open_source(write(tmp_path / "x", table, size=5)).read(np.arange(5))
    tensor = torch.Tensor
    assert [type(sample["it"]) for sample in found] == [tensor, type(None), list, tensor, tensor]
    assert [plain(sample["it"]) for sample in found] == values


def test_columns_with_dots_are_not_taken_for_nested_ones(tmp_path):
    row = {"meta.url": "U", "text": {"url": 1}, "meta": {"url": 2, "n": 3}}
    path = parquet(tmp_path / "x", pa.table({name: [value] for name, value in row.items()}))
    assert rows(open_source(path)) == [row]
    for columns in (["meta.url"], ["meta", "meta.url"], ["text", "meta"]):
        wanted = {name: row[name] for name in columns}
        assert rows(open_source(path, columns=columns)) == [wanted]
    with pytest.raises(SpecError, match="`columns` names one twice, found text, text"):
        open_source(path, columns=["text", "text"])


def test_values_of_a_dictionary_are_kept_once(tmp_path):
    text = pa.array(["x" * 4096] * 20_000).dictionary_encode()
    source = open_source(stream(tmp_path / "x", pa.table({"text": text}), size=20_000))
    RECENT.clear()
    assert len(rows(source, [19_999])[0]["text"]) == 4096
    assert RECENT._bytes < 5_000_000
    (group,) = RECENT._kept.values()
    assert len({id(text) for text in group.result["text"](range(20_000))}) == 1


def test_a_group_too_large_for_one_chunk_is_read():
    take = groups._column(pa.chunked_array([["a"], ["b", None]]))
    assert take([2, 1, 1]) == [None, "b", "b"]


@every_format
@pytest.mark.parametrize("error", [OSError(5, "I/O"), pa.lib.ArrowMemoryError("too large")])
def test_an_error_of_the_system_is_no_bad_sample(write, error, tmp_path, monkeypatch):
    source = open_source(write(tmp_path / "x", pa.table(VALUES)))

    def fails(*_):
        raise error

    def read(file, group, names):
        failing = SimpleNamespace(**vars(file.groups), ranges=file.groups.ranges, read=fails)
        return evolve(file, groups=failing).read(group, list(names))

    monkeypatch.setattr(table_source, "read_group", read)
    with pytest.raises((StructureError, MemoryError), match=r"Check the disk|too large"):
        source.read(np.arange(3))


def test_any_number_of_files_is_read_with_few_descriptors(tmp_path):
    first = parquet(tmp_path / "0000", pa.table({"n": [1]}))
    for number in range(1, 400):
        (tmp_path / f"{number:04d}.parquet").write_bytes(first.read_bytes())
    source = open_source(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source.check_files()
    assert len(source.read(np.arange(400))) == 400
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 300


@every_format
def test_only_the_columns_that_are_asked_for_are_read(write, tmp_path):
    path = write(tmp_path / "x", pa.table(VALUES))
    assert rows(open_source(path, columns=["text", "n"]), [3]) == [{"text": "text 3", "n": 3}]
    with pytest.raises(SpecError, match="there is no column 'url', found n, text"):
        open_source(path, columns=["url"])


@every_format
def test_of_columns_of_one_name_none_is_read(write, tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "b"])
    path = write(tmp_path / "x", table)
    with pytest.raises(SpecError, match="there are several columns 'a', found a, a, b"):
        open_source(path)
    assert rows(open_source(path, columns=["b"])) == [{"b": 3}]


def test_a_column_of_keys_is_the_key_of_samples(tmp_path):
    path = parquet(tmp_path / "x", pa.table({"__key__": ["a", None], "n": [1, 2]}))
    assert [sample["__key__"] for sample in open_source(path).read(np.arange(2))] == ["a", "1"]
    path = parquet(tmp_path / "x", pa.table({"__sources__": ["a", "b"], "n": [1, 2]}))
    with pytest.raises(SpecError, match="have a field '__sources__' of their own"):
        open_source(path)


def image(colour):
    file = io.BytesIO()
    Image.new("RGB", (3, 2), colour).save(file, "PNG")
    return file.getvalue()


def test_images_as_datasets_stores_them_are_decoded(tmp_path):
    images = [{"bytes": image((9, 8, 7)), "path": "a.png"}, None, {"bytes": None, "path": "b.png"}]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    path = parquet(tmp_path / "x", pa.table({"image": pa.array(images, kind)}))
    first, second, third = open_source(path).read(np.arange(3))
    assert first["image"].shape == (3, 2, 3)
    assert first["image"][:, 0, 0].tolist() == [9, 8, 7]
    assert second["image"] is None
    assert "its bytes are not in the table, only its path 'b.png'" in str(third)
    (raw,) = open_source(path, decode="bytes").read(np.array([0]))
    assert raw["image"] == images[0]["bytes"]


@pytest.mark.parametrize("list_of", [pa.list_, pa.large_list])
def test_lists_of_images_are_lists_of_decoded_ones(tmp_path, list_of):
    images = [{"bytes": image((n, 8, 7)), "path": None} for n in range(3)]
    kind = list_of(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    rows = [images, None, [], [images[1], None], [{"bytes": images[0]["bytes"][:40], "path": ""}]]
    path = parquet(tmp_path / "x", pa.table({"images": pa.array(rows, kind)}))
    three, none, empty, two, bad = open_source(path).read(np.arange(5))
    assert [one[0, 0, 0].item() for one in three["images"]] == [0, 1, 2]
    assert (none["images"], empty["images"]) == (None, [])
    assert two["images"][0].shape == (3, 2, 3)
    assert two["images"][1] is None
    assert "'images'" in str(bad)


def test_images_are_decoded_as_the_task_encoder_says(tmp_path):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": image((255, 0, 0)), "path": None}], kind)
    path = parquet(tmp_path / "x", pa.table({"image": column}))
    (one,) = open_typed(path, decoder=SampleDecoder()).read(np.arange(1))
    assert one["image"][:, 0, 0].tolist() == [1.0, 0.0, 0.0]
    (one,) = open_typed(path, decoder=SampleDecoder(image_decode="pilrgb")).read(np.arange(1))
    assert one["image"].getpixel((0, 0)) == (255, 0, 0)


def test_images_of_no_known_format_stay_bytes(tmp_path):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    column = pa.array([{"bytes": b"what is this", "path": "a.png"}], kind)
    path = parquet(tmp_path / "x", pa.table({"image": column}))
    assert rows(open_source(path)) == [{"image": b"what is this"}]


def test_columns_in_the_names_of_folders_are_not_read(tmp_path):
    (tmp_path / "lang=en").mkdir()
    parquet(tmp_path / "lang=en/x", pa.table({"n": [1]}))
    assert rows(open_source(tmp_path)) == [{"n": 1}]


def test_decoders_are_named_by_their_column(tmp_path):
    path = parquet(tmp_path / "x", pa.table({"data": [b"12", b"x"], "text": ["a", "b"]}))
    good, bad = open_source(path, decoders={"data": int}).read(np.arange(2))
    assert good["data"] == 12
    assert isinstance(bad, SampleError)
    assert "sample 1: it cannot be decoded: 'data': invalid literal for int()" in str(bad)


@settings(max_examples=25, deadline=None)
@given(
    indices=st.lists(st.integers(0, 99), max_size=40),
    size=st.sampled_from([1, 7, 100]),
    write=st.sampled_from(WRITERS),
)
def test_any_order_and_repeats_give_the_rows(tmp_path_factory, indices, size, write):
    path = tmp_path_factory.mktemp("t") / "x"
    source = open_source(write(path, pa.table({"n": range(100)}), size))
    assert [row["n"] for row in rows(source, indices)] == indices


def test_folders_and_patterns_of_files_are_one_dataset(tmp_path):
    for shard in range(3):
        parquet(tmp_path / f"x-{shard}", pa.table({"n": range(shard * 20, shard * 20 + 20)}))
    for path in (tmp_path, f"{tmp_path}/x-*.parquet", f"{tmp_path}/x-{{0..2}}.parquet"):
        source = open_source(path)
        assert [row["n"] for row in rows(source)] == list(range(60))
    (sample,) = source.read(np.array([25]))
    assert (sample["__key__"], sample["__sources__"][0].shard) == ("5", "x-1.parquet")


def test_a_folder_is_prepared_with_splits_and_without_indices(tmp_path):
    for shard in range(4):
        parquet(tmp_path / f"x-{shard}", pa.table({"n": range(shard * 10, shard * 10 + 10)}))
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), "--split-ratio", "2,1,1"])
    assert "40 samples in 4 shards" in done.output
    assert "each sample has some of: n" in done.output
    assert not list(tmp_path.glob("*.idx"))
    parts = {part: open_source(tmp_path, split_part=part) for part in ("train", "val", "test")}
    assert [len(source) for source in parts.values()] == [20, 10, 10]
    assert [row["n"] for row in rows(parts["test"])] == list(range(30, 40))
    parquet(tmp_path / "x-3", pa.table({"n": range(9)}))
    with pytest.raises(StructureError, match=r"x-3.parquet: has 9 rows, not 10. .*-index-only"):
        open_source(tmp_path, split_part="test")


def test_a_prepared_folder_of_10_000_files_is_opened_without_reading_them(tmp_path):
    first = parquet(tmp_path / "x-00000", pa.table({"n": range(5)}))
    for number in range(1, 10_000):
        (tmp_path / f"x-{number:05d}.parquet").hardlink_to(first)
    counts = {f"x-{number:05d}.parquet": 5 for number in range(10_000)}
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta/.info.json").write_text(json.dumps({"shard_counts": counts}))
    split = {"split_parts": {"train": ["x-{00000..09999}.parquet"]}, "exclude": []}
    (tmp_path / ".nv-meta/split.yaml").write_text(json.dumps(split))
    keep_open.cache_clear()
    began = time.process_time()
    source = open_source(tmp_path)
    assert time.process_time() - began < 1
    assert len(source) == 50_000
    assert keep_open.cache_info().misses == 1
    assert rows(source, [49_999]) == [{"n": 4}]


def test_datasets_are_read_as_they_are_listed(tmp_path):
    table = pa.table({"n": range(10)})
    stream(tmp_path / "data-00000-of-00001", table)
    stream(tmp_path / "cache-0123", table)  # of a `map`
    listed = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(listed))
    assert len(open_source(tmp_path)) == 10
    (tmp_path / "state.json").write_text(json.dumps({**listed, "_indices_data_files": ["x.arrow"]}))
    with pytest.raises(SpecError, match=r"Save it again with one, after `flatten_indices\(\)`"):
        open_source(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(StructureError, match=r"state\.json: it does not list"):
        open_source(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(SpecError, match=r"is a DatasetDict of several splits. Name .*train"):
        open_source(tmp_path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = parquet(tmp_path / "x", pa.table({"n": [1]}))
    keep_open.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"energy_data\[parquet\]"):
        open_source(path)


def test_files_of_a_dataset_have_the_same_columns(tmp_path):
    parquet(tmp_path / "a", pa.table({"n": range(5)}))
    parquet(tmp_path / "b", pa.table({"m": range(5)}))
    with pytest.raises(StructureError, match=r"b\.parquet: has no column 'n'.*only m"):
        open_source(tmp_path).read(np.array([7]))


def test_a_file_that_was_replaced_before_it_was_first_read_is_an_error(tmp_path):
    for name in "ab":
        parquet(tmp_path / name, pa.table({"n": range(5)}))
    source = open_source(tmp_path)
    rows(source, [0])
    parquet(tmp_path / "new", pa.table({"n": range(1000, 1005)})).replace(tmp_path / "b.parquet")
    with pytest.raises(StructureError, match=r"b\.parquet: was changed while it was in use"):
        rows(source, [7])


def group_bytes(path):
    """The bytes of the first group in memory."""
    RECENT.clear()
    open_source(path).read(np.array([0]))
    size = RECENT._bytes
    RECENT.clear()
    return size


def bound_memory(monkeypatch, size):
    """Let all groups in memory have so many bytes."""
    monkeypatch.setattr(recent, "LARGEST", size)
    monkeypatch.setattr(recent, "MOST", size)


def loader_over(folder, lanes):
    """A loader whose order reads runs."""
    dataset = get_train_dataset(
        {"splits": {"train": {"path": str(folder), "id": "pages"}}},
        batch_size=8,
        shuffle_buffer_size=50,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(lanes=lanes),
    )
    return get_loader(dataset)


@pytest.mark.parametrize(("files", "rows_of_each"), [(1, 20_000), (10, 2050)])
def test_groups_are_read_once_where_the_order_reads_runs(
    files, rows_of_each, tmp_path, monkeypatch
):
    for number in range(files):
        first = number * rows_of_each
        table = pa.table({"n": range(first, first + rows_of_each)})
        path = parquet(tmp_path / f"{number}", table, size=100)
    loader = loader_over(tmp_path, lanes=16)
    bound_memory(monkeypatch, int(2.25 * 16 * group_bytes(path)))
    before = RECENT.num_made
    read = [n for batch in islice(loader, 2480) for n in batch["n"].tolist()]
    assert len(set(read)) == 19_840
    groups = files * -(-rows_of_each // 100)
    assert RECENT.num_made - before < 1.15 * groups


def test_runs_are_groups_of_the_largest_file(tmp_path):
    for name, count in {"a": 50, "b": 250, "c": 90}.items():
        parquet(tmp_path / name, pa.table({"n": range(count)}), size=100)
    assert open_source(tmp_path).run_length == 100


def test_groups_that_are_whole_files_of_some_sizes_are_read_less_than_twice(tmp_path, monkeypatch):
    paths = [
        parquet(tmp_path / f"{n:02}", pa.table({"n": range(200 + 3 * n % 8)}), size=1000)
        for n in range(50)
    ]
    loader = loader_over(tmp_path, lanes=4)
    bound_memory(monkeypatch, 6 * 4 * group_bytes(paths[0]))
    before = RECENT.num_made
    deque(islice(loader, 1250), maxlen=0)
    assert RECENT.num_made - before < 2 * 50


def test_groups_of_a_small_dataset_are_read_once_too(tmp_path, monkeypatch):
    path = parquet(tmp_path / "x", pa.table({"n": range(1000)}), size=100)
    dataset = get_train_dataset(
        {"splits": {"train": {"path": str(path), "id": "pages"}}},
        batch_size=8,
        worker_config=WorkerConfig(lanes=16),
    )
    bound_memory(monkeypatch, 3 * group_bytes(path))
    before = RECENT.num_made
    read = [n for batch in islice(get_loader(dataset), 125) for n in batch["n"].tolist()]
    assert len(set(read)) == 1000
    assert RECENT.num_made - before <= 20


def test_some_groups_are_kept_for_the_next_epoch_if_not_all_have_room(tmp_path, monkeypatch):
    path = parquet(tmp_path / "x", pa.table({"n": range(1000)}), size=100)
    bound_memory(monkeypatch, 6 * group_bytes(path))
    source = open_source(path)
    rows(source)
    before = RECENT.num_made
    assert rows(source) == [{"n": n} for n in range(1000)]
    assert RECENT.num_made - before == 4  # of 10: six stay


def test_groups_in_memory_are_bounded(tmp_path, monkeypatch):
    path = parquet(tmp_path / "x", pa.table({"n": range(1000)}), size=100)
    bound_memory(monkeypatch, most := 3 * group_bytes(path))
    source = open_source(path)
    for _ in range(2):
        rows(source)
        assert 0 < RECENT._bytes <= most


CUTS = {"half": 0.5, "most": 0.1, "a little": 0.98}


@every_format
@pytest.mark.parametrize("part", CUTS.values(), ids=CUTS)
def test_a_cut_file_is_an_error(write, part, tmp_path):
    path = write(tmp_path / "x", pa.table(VALUES))
    os.truncate(path, int(path.stat().st_size * part))
    try:
        found = rows(open_source(path))
    except DataError as error:
        found, problem = [], str(error)
        assert path.name in problem
    assert write is not parquet or not found
    assert all(row["n"] == n for n, row in enumerate(found))


@every_format
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_damaged_file_is_an_error_or_read_as_it_is(write, data, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("t") / "x", pa.table(VALUES))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(DataError, SpecError):
        open_source(path).read(np.arange(5))


def test_a_text_that_is_no_utf8_is_one_bad_sample(tmp_path):
    text = pa.array([b"good", b"\xff\xfe", b"fine"]).view(pa.string())
    good, bad, fine = open_source(parquet(tmp_path / "x", pa.table({"text": text}))).read(
        np.arange(3)
    )
    assert (good["text"], fine["text"]) == ("good", "fine")
    assert "it cannot be decoded: 'utf-8' codec" in str(bad)


def test_a_bad_group_is_a_bad_sample_for_each_of_its_rows(tmp_path):
    path = parquet(tmp_path / "x", pa.table({"text": [os.urandom(50).hex() for _ in range(30)]}))
    meta = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = meta.dictionary_page_offset or meta.data_page_offset
    data[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(data)
    samples = open_source(path).read(np.arange(30))
    assert [isinstance(sample, SampleError) for sample in samples] == [
        n // 10 == 1 for n in range(30)
    ]
    assert "group 1 cannot be read" in str(samples[10])


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_a_pointer_of_git_lfs_is_an_error_that_says_what_to_do(tmp_path, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / name).write_text(pointer)
    with pytest.raises(StructureError, match=r"is a pointer of Git LFS .*Run `git lfs pull`\.$"):
        open_source(tmp_path / name)


def test_a_file_that_is_no_table_is_an_error(tmp_path):
    (tmp_path / "x.parquet").write_bytes(json.dumps(list(range(99))).encode())
    with pytest.raises(StructureError, match="is no Parquet and no Arrow file: it begins"):
        open_source(tmp_path / "x.parquet")
