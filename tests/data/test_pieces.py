"""Large row groups and compressed chunks are decoded in pieces, forwards."""

from __future__ import annotations

import logging
from collections import deque
from itertools import groupby, islice
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from chunk_files import PACK, large_arrow, large_mds, large_parquet, large_rows

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.data import runs
from energy_data.data.files import packed, recent
from energy_data.data.files.recent import RECENT
from energy_data.data.registry import open_source
from energy_data.data.runs import piece_length
from energy_data.data.tables.files import TableFile
from energy_data.errors import SampleError, StructureError

MANY = 640


@pytest.fixture(params=["parquet", "arrow", "mds"])
def large(request, tmp_path):
    """640 samples in runs of 320 samples and 20 MiB."""
    size = 1 << 16
    if request.param == "parquet":
        return large_parquet(tmp_path / "x.parquet", MANY, per_group=MANY // 2, size=size)
    if request.param == "arrow":
        return large_arrow(tmp_path / "x.arrow", MANY, per_batch=MANY // 2, size=size)
    return large_mds(tmp_path / "x", [MANY // 2] * 2, size=size)


def loader_over(path, lanes, **options):
    meta = {"splits": {"train": {"path": str(path), "id": "pages"}}}
    config = WorkerConfig(lanes=lanes)
    options = {"batch_size": 4, "shuffle_buffer_size": 20, **options}
    return get_loader(get_train_dataset(meta, worker_config=config, **options))


def decoded(loader, batches):
    """Take batches; return their numbers, and the pieces that were decoded for them."""
    before = RECENT.num_made
    numbers = [n for batch in islice(loader, batches) for n in batch["n"].tolist()]
    return numbers, RECENT.num_made - before


def test_a_run_has_pieces_of_four_mebibytes_unless_two_hold_it_all():
    mib = 1 << 20
    assert piece_length(100, 8 * mib) is None
    assert piece_length(100, 8 * mib + 1) == 34
    assert piece_length(1000, 40 * mib) == 100
    assert piece_length(2, 40 * mib) == 1


@pytest.mark.parametrize("lanes", [1, 4])
def test_each_piece_is_decoded_once_in_an_epoch(large, lanes):
    source = open_source(large)
    pieces = 2 * -(-320 // source.piece_length) if large.suffix else 2 * 21
    numbers, made = decoded(loader_over(large, lanes), MANY // 4)
    assert sorted(numbers) == [*range(MANY)]
    # A lane that begins in the middle of a run decodes a few pieces before it.
    assert made <= 1.1 * pieces + 8 * lanes


@pytest.mark.parametrize("buffer", [20, 200])
def test_samples_are_mixed_in_windows_of_two_pieces_or_a_buffer(large, buffer):
    window = max(2 * open_source(large).piece_length, buffer)
    numbers, _ = decoded(loader_over(large, 1, shuffle_buffer_size=buffer), MANY // 4)
    moved = []
    for _, drawn in groupby(numbers, key=lambda n: n // 320):
        drawn = list(drawn)
        moved += [n - min(drawn) - place for place, n in enumerate(drawn)]
    assert window / 3 < max(map(abs, moved)) < window


@pytest.mark.parametrize("kind", ["parquet", "mds"])
def test_memory_is_that_of_the_pieces_in_use(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(recent, "LARGEST", 1 << 16)
    monkeypatch.setattr(runs, "_PIECE", 1 << 16)
    monkeypatch.setattr(packed, "_PIECE", 1 << 14)
    monkeypatch.setattr(packed, "_HELD", 1 << 21)
    if kind == "parquet":
        path = large_parquet(tmp_path / "x.parquet", 10_000, per_group=10_000, size=1 << 10)
    else:
        path = large_mds(tmp_path / "x", [10_000], size=1 << 10)
    sizes = [RECENT._bytes for _ in islice(loader_over(path, 2), 10_000 // 4)]
    assert max(sizes) < 1.5 * 2 * (2_400_000 + 12 * 80_000)  # by which it grows


def test_samples_are_read_in_any_order(large):
    source = open_source(large)
    _, texts = large_rows(MANY, 1 << 16)
    for n in [639, 320, 319, 0, 638, 1, 450, 449, 448]:
        (sample,) = source.read(np.array([n]))
        assert (sample["n"], sample["data"]) == (n, texts[n])


def test_a_reader_goes_on_where_it_was_and_not_from_the_start(large, monkeypatch):
    source, begun = open_source(large), []
    for kind, name in ((TableFile, "pieces"), (packed.PackedFile, "_pieces")):
        original = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda *args, read=original: begun.append(args) or read(*args)
        )
    for n in range(0, 320, 7):
        source.read(np.array([n]))
    assert len(begun) == 1


def test_pieces_that_do_not_fit_are_decoded_again_with_a_warning(large, monkeypatch, caplog):
    monkeypatch.setattr(recent, "LARGEST", 1 << 21)
    monkeypatch.setattr(recent, "MOST", 1 << 21)
    monkeypatch.setattr(RECENT, "_has_warned", False)
    with caplog.at_level(logging.WARNING):
        numbers, _ = decoded(loader_over(large, 4), 40)
    assert len(set(numbers)) == 160
    (record,) = caplog.records
    assert "decoded again and again" in record.message


def use_in_turn(keys, rounds):
    """Use a part of each result in turn, and return how many had to be made."""
    before = RECENT.num_made
    for key in [*keys] * rounds:
        RECENT.get(key, lambda: ("x", 1))
        RECENT.use(key, 1, 1000)
    return RECENT.num_made - before


def test_more_is_kept_once_less_was_too_little(monkeypatch):
    monkeypatch.setattr(recent, "LARGEST", 8)
    monkeypatch.setattr(recent, "MOST", 16)
    use_in_turn(range(12), 20)
    assert use_in_turn(range(12), 5) == 0
    use_in_turn(range(24), 20)
    assert RECENT._bytes == 16


def test_what_is_used_in_part_and_never_again_is_forgotten(monkeypatch):
    monkeypatch.setattr(recent, "LARGEST", 8)
    for key in range(2000):
        use_in_turn([key], 3)
    assert RECENT._bytes == 8


def test_a_folder_and_a_file_of_it_may_have_pieces_of_two_lengths(tmp_path):
    large_parquet(tmp_path / "a.parquet", 4000, per_group=4000, size=1 << 12)
    large_parquet(tmp_path / "b.parquet", 3000, per_group=3000, size=1 << 13)
    both, one = open_source(tmp_path), open_source(tmp_path / "b.parquet")
    assert one.piece_length < both.piece_length
    wanted = np.arange(0, 3000, 70)
    for _ in range(2):
        assert [sample["n"] for sample in one.read(wanted)] == wanted.tolist()
        assert [sample["n"] for sample in both.read(4000 + wanted)] == wanted.tolist()


VALUES = {
    "text": pa.array([None, *map(str, range(1, MANY))]),
    "large": pa.array([*map(str, range(MANY))], pa.large_string()),
    "kind": pa.array(["a", "b", None, "a"] * (MANY // 4)).dictionary_encode(),
    "ids": pa.array([[n] * (n % 5) for n in range(MANY)], pa.list_(pa.uint16())),
    "pair": pa.array([[n, n + 1] for n in range(MANY)], pa.list_(pa.float32(), 2)),
    "some": pa.array([[n, None] if n % 2 else None for n in range(MANY)], pa.list_(pa.int64())),
    "nested": pa.array([{"n": n, "tags": ["x"] * (n % 3)} for n in range(MANY)]),
    "data": pa.array(large_rows(MANY, 1 << 15)[1]),
}


def plain(value):
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value


def test_values_of_pieces_are_those_of_whole_groups(tmp_path):
    for name, per_group in {"whole": 100, "pieces": MANY}.items():
        pq.write_table(pa.table(VALUES), tmp_path / f"{name}.parquet", row_group_size=per_group)
    whole, pieces = (open_source(tmp_path / f"{name}.parquet") for name in ("whole", "pieces"))
    assert (whole.piece_length, pieces.piece_length) == (None, 107)
    every = np.random.default_rng(0).permutation(MANY)
    for one, other in zip(whole.read(every), pieces.read(every), strict=True):
        for name in VALUES:
            assert plain(one[name]) == plain(other[name])


def test_columns_that_are_left_out_do_not_count(tmp_path):
    path = large_parquet(tmp_path / "x.parquet", MANY, per_group=MANY, size=1 << 16)
    assert open_source(path, columns=["n"]).piece_length is None


def test_damage_within_a_group_leaves_the_pieces_before_it(tmp_path):
    numbers, texts = large_rows(MANY, 1 << 16)
    table, path = pa.table({"n": numbers, "data": texts}), tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=320, use_dictionary=False, write_batch_size=10)
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    middle = column.data_page_offset + column.total_compressed_size // 2
    data = bytearray(path.read_bytes())
    data[middle - (1 << 20) : middle + (1 << 20)] = bytes(1 << 21)
    path.write_bytes(data)
    found = open_source(path).read(np.arange(MANY))
    bad = [n for n, sample in enumerate(found) if isinstance(sample, SampleError)]
    assert bad == [*range(bad[0], 320)]
    assert 60 < bad[0] < 160
    assert "group 0 cannot be read" in str(found[bad[0]])


@pytest.mark.parametrize("per_group", [MANY, 40])
def test_checksums_of_pages_are_verified(per_group, tmp_path):
    numbers, texts = large_rows(MANY, 1 << 14)
    table, path = pa.table({"n": numbers, "data": texts}), tmp_path / "x.parquet"
    options = {"use_dictionary": False, "compression": "NONE", "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=per_group, write_batch_size=10, **options)
    data = path.read_bytes()
    path.write_bytes(data.replace(texts[25], bytes(len(texts[25]))))
    found = open_source(path).read(np.arange(MANY))
    assert isinstance(found[25], SampleError)
    assert "CRC checksum" in str(found[25])


def test_pieces_of_a_record_batch_have_memory_of_their_own(tmp_path):
    path = large_arrow(tmp_path / "x.arrow", MANY, per_batch=MANY, size=1 << 16)
    pieces = open_source(path)._table(0).pieces(0, ["n", "data"], 10)
    assert all(piece.get_total_buffer_size() < 11 << 16 for piece in pieces)


@pytest.mark.parametrize("algorithm", PACK)
def test_damage_within_a_compressed_shard_is_an_error_at_its_samples(algorithm, tmp_path):
    path = large_mds(tmp_path / "x", [200], algorithm, size=1 << 14)
    (shard,) = path.glob("*.mds.*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    shard.write_bytes(data)
    source = open_source(path)
    for _ in range(2):
        with pytest.raises(StructureError, match=r"shard\.00000.*(unpacks to|decompressed)"):
            source.read(np.array([199]))


def test_a_file_that_is_written_to_while_a_group_is_read_is_an_error(tmp_path):
    path = large_parquet(tmp_path / "x.parquet", MANY, per_group=MANY, size=1 << 16)
    source = open_source(path)
    source.read(np.array([0]))
    large_parquet(path, MANY, per_group=MANY, size=1 << 15)
    with pytest.raises(StructureError, match="was changed while it was in use"):
        source.read(np.array([300]))


def test_a_group_of_fewer_rows_than_its_footer_says_is_damaged(tmp_path):
    path = large_parquet(tmp_path / "x.parquet", MANY, per_group=MANY, size=1 << 16)
    source = open_source(path)
    file = source._table(0)
    groups = SimpleNamespace(
        schema=file.groups.schema,
        counts=[MANY + 5],
        pieces=file.groups.pieces,
        ranges=file.groups.ranges,
    )
    claims = TableFile(path=str(path), version=None, groups=groups)
    pieces = claims.pieces(0, ["n"], 100)
    with pytest.raises(StructureError, match="640 rows, not 645, and rows of it that were read"):
        deque(pieces, maxlen=0)
