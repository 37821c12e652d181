"""Files of tokens: documents and windows of Megatron's, datatrove's, numpy's and raw files."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from token_files import flat, some_documents, write_datatrove, write_megatron

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.files.local import keep_open
from energy_data.data.registry import open_source
from energy_data.data.tokens.layouts import open_tokens
from energy_data.errors import SpecError, StructureError

WRITERS = {"megatron": write_megatron, "datatrove": write_datatrove}
DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14]]

both = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def tokens(samples):
    return [sample["tokens"].tolist() for sample in samples]


def read(path, **keys):
    source = open_source(path, **keys)
    return source.read(np.arange(len(source)))


@both
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_samples_are_documents(write, dtype, tmp_path):
    path = write(tmp_path / "c", DOCUMENTS, dtype)
    source = open_source(path, subflavors={"a": 1})
    (sample,) = source.read(np.array([2]))
    assert sample["tokens"].tolist() == [9, 10, 11, 12]
    assert sample["tokens"].dtype == torch.int64
    assert sample["__key__"] == "2"
    assert sample["__subflavors__"] == {"a": 1}
    assert sample["__sources__"] == ((str(path), path.name, 2),)
    assert tokens(read(path)) == DOCUMENTS
    assert source.total_cost("tokens") == 10


@both
def test_windows_cross_documents_and_leave_out_the_rest(write, tmp_path):
    path = write(tmp_path / "c", DOCUMENTS)
    assert tokens(read(path, seq_len=4)) == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert tokens(read(path, seq_len=3, stride=2))[:3] == [[5, 6, 7], [7, 8, 9], [9, 10, 11]]


@both
def test_windows_have_the_bounds_of_their_documents(write, tmp_path):
    first, second = read(write(tmp_path / "c", DOCUMENTS), seq_len=5, cu_seqlens=True)
    assert first["cu_seqlens"].tolist() == [0, 3, 4, 5]
    assert first["cu_seqlens"].dtype == torch.int32
    assert first["position_ids"].tolist() == [0, 1, 2, 0, 0]
    assert second["cu_seqlens"].tolist() == [0, 3, 5]
    assert second["position_ids"].tolist() == [0, 1, 2, 0, 1]


@both
def test_tokens_are_put_before_and_after_documents(write, tmp_path):
    path = write(tmp_path / "c", DOCUMENTS)
    framed = [[1, *one, 2] for one in DOCUMENTS]
    assert tokens(read(path, add_bos=1, add_eos=2)) == framed
    stream = flat(framed).tolist()
    assert tokens(read(path, add_bos=1, add_eos=2, seq_len=7)) == [stream[:7], stream[7:14]]
    ends = flat([[*one, 2] for one in DOCUMENTS]).tolist()
    assert tokens(read(path, add_eos=2, seq_len=7)) == [ends[:7], ends[7:14]]


def test_a_metadataset_may_put_token_0_around_documents(tmp_path):
    path = write_megatron(tmp_path / "c", DOCUMENTS)
    keys = {"path": str(path), "add_bos": 0, "add_eos": 0}
    config = WorkerConfig(num_workers=0, lanes=1)
    meta = {"splits": {"train": keys}}
    (batch,) = get_train_dataset(meta, batch_size=4, repeat=False, worker_config=config)
    for key, row in zip(batch["__key__"], batch["tokens"].tolist(), strict=True):
        framed = [0, *DOCUMENTS[int(key)], 0]
        assert row[: len(framed)] == framed


def test_an_index_of_megatron_without_sequences_says_so(tmp_path):
    path = write_megatron(tmp_path / "c", [[1]])
    path.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QBQQq", 1, 4, 0, 1, 0))
    with pytest.raises(StructureError, match="has no sequences"):
        open_source(path)


@both
def test_windows_of_framed_documents_have_their_bounds(write, tmp_path):
    # 1 5 6 7 2 1 8 | 2 1 9 10 11 12 2 | 1 13 14 2, cut every 6 tokens
    path = write(tmp_path / "c", DOCUMENTS)
    found = read(path, add_bos=1, add_eos=2, seq_len=7, stride=6, cu_seqlens=True)
    assert tokens(found) == [[1, 5, 6, 7, 2, 1, 8], [8, 2, 1, 9, 10, 11, 12]]
    assert [one["cu_seqlens"].tolist() for one in found] == [[0, 5, 7], [0, 2, 7]]
    assert found[0]["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    # The first document began two tokens before.
    assert found[1]["position_ids"].tolist() == [0, 1, 0, 1, 2, 3, 4]


@both
def test_empty_documents_have_no_positions_of_their_own(write, tmp_path):
    path = write(tmp_path / "c", [[], [5, 6], [], [], [7, 8, 9], []])
    (sample,) = read(path, seq_len=5, cu_seqlens=True)
    assert sample["cu_seqlens"].tolist() == [0, 2, 5]
    assert sample["position_ids"].tolist() == [0, 1, 0, 1, 2]


def part(source, begin, end):
    (sample,) = source.read(np.array([source.cut.index(begin, end)]))
    return sample


@both
def test_a_part_of_a_window_is_filled_with_a_document_that_the_loss_leaves_out(write, tmp_path):
    # 5 6 7 | 8 | 9 10 11 12 | 13 14
    source = open_source(
        write(tmp_path / "c", DOCUMENTS), seq_len=8, max_seq_len=8, cu_seqlens=True
    )
    sample = part(source, 2, 8)
    assert sample["tokens"].tolist() == [7, 8, 9, 10, 11, 12, 0, 0]
    assert sample["loss_mask"].tolist() == [True] * 6 + [False] * 2
    assert sample["cu_seqlens"].tolist() == [0, 1, 2, 6, 8]
    assert sample["position_ids"].tolist() == [0, 0, 0, 1, 2, 3, 0, 1]
    assert sample["__key__"] == "0[2:8]"
    (whole,) = source.read(np.array([0]))
    assert whole["loss_mask"].all()
    for index in (source.cut.index(6, 8) + 8 * 8, source.cut.index(7, 9)):
        with pytest.raises(IndexError):
            source.read(np.array([index]))


@both
def test_a_part_of_a_window_has_the_labels_of_its_tokens(write, tmp_path):
    path = write(tmp_path / "c", DOCUMENTS)
    sample = part(open_source(path, seq_len=5, stride=4, max_seq_len=9), 6, 8)
    assert sample["tokens"].tolist() == [11, 12, 13, 0, 0]
    assert sample["loss_mask"].tolist() == [True, True, True, False, False]
    framed = open_source(path, seq_len=4, max_seq_len=8, add_eos=2)
    assert part(framed, 1, 4)["tokens"].tolist() == [6, 7, 2, 0]


def test_parts_of_windows_keep_the_loss_mask_of_the_file(tmp_path):
    path = write_datatrove(tmp_path / "c", DOCUMENTS)
    Path(f"{path}.loss").write_bytes(bytes([1, 0] * 5))
    sample = part(open_source(path, seq_len=5, max_seq_len=5), 5, 8)
    assert sample["tokens"].tolist() == [10, 11, 12, 0, 0]
    assert sample["loss_mask"].tolist() == [False, True, False, False, False]


def test_windows_of_any_length_are_of_the_same_tokens_and_have_one_fingerprint(tmp_path):
    for name, count in (("a", 50), ("b", 29)):
        np.arange(count, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    facts = {"max_seq_len": 12, "dtype": "uint16"}
    sources = [open_source(tmp_path, seq_len=size, **facts) for size in (2, 3, 12)]
    assert len({source.fingerprint for source in sources}) == 1
    for source in sources:
        found = tokens(source.read(np.arange(len(source))))
        # What fills no longest window is left out.
        assert [*chain(*found)] == [*range(48), *range(24)]
    others = [{"seq_len": 12, "stride": 11}, {"seq_len": 6, "max_seq_len": 6}]
    for keys in others:
        assert open_source(tmp_path, **{**facts, **keys}).fingerprint != sources[0].fingerprint


def test_parts_and_windows_of_a_batch_are_rows_of_one_tensor(tmp_path):
    np.arange(4096, dtype=np.uint16).tofile(tmp_path / "c.bin")
    source = open_source(tmp_path / "c.bin", seq_len=1024, max_seq_len=1024, dtype="uint16")
    indices = np.array([3, source.cut.index(1000, 1024), 1])
    found = type(source).read_together([source], np.zeros(3, int), indices, rows=True)
    block = found[0]["tokens"].block
    assert all(sample["tokens"].block is block for sample in found)
    assert block[:, 0].tolist() == [3072, 1000, 1024]
    assert block[1].tolist() == [*range(1000, 1024)] + [0] * 1000


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=60).filter(sum),
    many=st.booleans(),
    bos=st.sampled_from([None, 1]),
    eos=st.sampled_from([None, 2]),
    window=st.integers(1, 12),
    stride=st.integers(1, 12),
    write=st.sampled_from([write_megatron, write_datatrove]),
)
def test_windows_are_those_of_the_stream_of_all_documents(
    tmp_path_factory, lengths, many, bos, eos, window, stride, write
):
    documents = [list(range(3, 3 + n)) for n in lengths * (40 if many else 1)]
    front, back = [[one] if one else [] for one in (bos, eos)]
    framed = [front + one + back for one in documents]
    stream = [token for one in framed for token in one]
    window, stride = min(window, len(stream)), min(stride, window, len(stream))
    path = write(tmp_path_factory.mktemp("t") / "c", documents)
    keys = {"add_bos": bos, "add_eos": eos, "seq_len": window, "stride": stride}
    found = read(path, cu_seqlens=True, **keys)
    begins = range(0, len(stream) - window + 1, stride)
    assert tokens(found) == [stream[at : at + window] for at in begins]
    starts = [0, *accumulate(map(len, framed))]
    for begin, sample in zip(begins, found, strict=True):
        own = sorted({min(max(at - begin, 0), window) for at in starts})
        assert sample["cu_seqlens"].tolist() == own
        assert sample["position_ids"].tolist() == [
            n for a, b in pairwise(own) for n in range(b - a)
        ]


def test_a_loss_mask_of_datatrove_comes_with_its_tokens(tmp_path):
    path = write_datatrove(tmp_path / "c", DOCUMENTS)
    mask = [n % 3 != 0 for n in range(10)]
    Path(f"{path}.loss").write_bytes(bytes(mask))
    assert [sample["loss_mask"].tolist() for sample in read(path, seq_len=5)] == [
        mask[:5],
        mask[5:],
    ]
    (first, *_) = read(path, add_eos=2)
    assert first["loss_mask"].tolist() == [*mask[:3], True]


def test_arrays_and_raw_integers_have_windows(tmp_path):
    np.save(tmp_path / "c.npy", np.arange(10, dtype=np.uint32))
    assert tokens(read(tmp_path / "c.npy", seq_len=5)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "raw.bin")
    found = read(tmp_path / "raw.bin", seq_len=5, dtype="uint16")
    assert tokens(found) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_rows_of_a_packed_memmap_are_windows(tmp_path):
    rows = np.arange(27, dtype=np.uint32).reshape(3, 9)
    rows.tofile(tmp_path / "rows.bin")
    facts = {"status": "complete", "num_samples": 3, "seq_length": 8}
    (tmp_path / "rows.bin.json").write_text(json.dumps(facts))
    assert tokens(read(tmp_path / "rows.bin", seq_len=9, dtype="uint32")) == rows.tolist()


def test_rows_of_an_array_are_samples(tmp_path):
    np.save(tmp_path / "c.npy", np.arange(12, dtype=np.int32).reshape(3, 4))
    assert tokens(read(tmp_path / "c.npy")) == np.arange(12).reshape(3, 4).tolist()
    with pytest.raises(SpecError, match=r"it has rows of 4 tokens\. Remove the keys of windows"):
        open_source(tmp_path / "c.npy", seq_len=3)


def test_windows_of_a_batch_are_read_into_its_tensor(tmp_path, stacked):
    streams = {"a": some_documents(2000), "b": some_documents(1999)}
    paths = [write_megatron(tmp_path / name, stream) for name, stream in streams.items()]
    blend = [{"weight": 1, "path": str(path), "seq_len": 600} for path in paths]
    dataset = get_train_dataset(
        {"splits": {"train": {"blend": blend}}},
        batch_size=5,
        worker_config=WorkerConfig(lanes=2),
    )
    batch = next(iter(get_loader(dataset)))
    assert batch["tokens"].shape == (5, 600)
    sources = [sources[0] for sources in batch["__sources__"]]
    assert {source.shard for source in sources} == {"a.bin", "b.bin"}
    for row, source in zip(batch["tokens"].tolist(), sources, strict=True):
        begin = source.index * 600
        assert row == flat(streams[source.shard[0]])[begin : begin + 600].tolist()
    assert not stacked


WRONG_KEYS = [
    ({"stride": 3}, "stride, max_seq_len and cu_seqlens are for windows. Give their `seq_len`"),
    ({"cu_seqlens": True}, "stride, max_seq_len and cu_seqlens are for windows"),
    ({"seq_len": 3, "stride": 4}, "stride must be at most `seq_len`, which is 3, found 4"),
    (
        {"seq_len": 11},
        r"its largest file has 10 tokens, less than a window of 11\. Lower `seq_len`",
    ),
    ({"dtype": "int32"}, "its tokens are uint16, not int32. Remove `dtype`"),
]


@both
@pytest.mark.parametrize(("keys", "problem"), WRONG_KEYS)
def test_keys_that_do_not_fit_are_errors(write, keys, problem, tmp_path):
    with pytest.raises(SpecError, match=problem):
        open_source(write(tmp_path / "c", DOCUMENTS), **keys)


def test_files_without_documents_have_only_windows(tmp_path):
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "c.bin")
    with pytest.raises(SpecError, match=r"there is no .*c.idx.* give their `dtype`"):
        open_source(tmp_path / "c.bin", seq_len=2)
    with pytest.raises(SpecError, match=r"has only windows\. Give `seq_len`"):
        open_source(tmp_path / "c.bin", dtype="uint16")
    with pytest.raises(SpecError, match="add_bos, add_eos and cu_seqlens need that"):
        open_source(tmp_path / "c.bin", dtype="uint16", seq_len=2, add_eos=0)


def test_keys_of_tokens_are_errors_for_other_datasets(tmp_path):
    (tmp_path / "c.jsonl").write_text("{}\n")
    with pytest.raises(SpecError, match=r"c.jsonl: seq_len is not for datasets of its format"):
        open_source(tmp_path / "c.jsonl", seq_len=3)


def damage(index, at, layout, *values):
    data = bytearray(index.read_bytes())
    struct.pack_into(layout, data, at, *values)
    index.write_bytes(data)


POINTERS = 34 + 4 * len(DOCUMENTS)
DAMAGE = {
    "magic": lambda index, path: damage(index, 0, "<9s", b"MMIDIDY"),
    "version": lambda index, path: damage(index, 9, "<Q", 2),
    "dtype": lambda index, path: damage(index, 17, "<B", 77),
    "floats": lambda index, path: damage(index, 17, "<B", 6),
    "sequences": lambda index, path: damage(index, 18, "<Q", 2**61),
    "no sequences": lambda index, path: damage(index, 18, "<Q", 0),
    "cut index": lambda index, path: os.truncate(index, 40),
    "empty index": lambda index, path: os.truncate(index, 0),
    "cut tokens": lambda index, path: os.truncate(path, 10),
    "half a token": lambda index, path: os.truncate(path, 19),
    "no tokens": lambda index, path: os.truncate(path, 0),
    "first pointer": lambda index, path: damage(index, POINTERS, "<q", 2),
    "last pointer": lambda index, path: damage(index, POINTERS + 24, "<q", 2**40),
    "out of order": lambda index, path: damage(index, POINTERS + 8, "<q", 14),
    "beyond": lambda index, path: damage(index, POINTERS + 8, "<q", 2**62),
    "inside a token": lambda index, path: damage(index, POINTERS + 8, "<q", 7),
    "negative": lambda index, path: damage(index, POINTERS + 8, "<q", -2),
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize(
    "keys", [{}, {"seq_len": 5, "cu_seqlens": True}], ids=["documents", "windows"]
)
def test_a_damaged_file_of_megatron_is_an_error(what, keys, tmp_path):
    path = write_megatron(tmp_path / "c", DOCUMENTS)
    DAMAGE[what](path.with_suffix(".idx"), path)
    with pytest.raises(StructureError, match=r"c\.(idx|bin)"):
        read(path, **keys)


@pytest.mark.parametrize("what", ["index", "tokens", "order"])
def test_a_damaged_file_of_datatrove_is_an_error(what, tmp_path):
    path = write_datatrove(tmp_path / "c", DOCUMENTS)
    index = Path(f"{path}.index")
    if what == "order":
        damage(index, 8, "<Q", 2**63)
    else:
        os.truncate(index if what == "index" else path, 8)
    with pytest.raises(StructureError, match=r"c\.ds"):
        read(path)


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros((2, 2, 2), int), np.zeros((2, 2), int).T.copy("F"), np.array(["a"])],
    ids=["floats", "axes", "columns", "texts"],
)
def test_an_array_of_no_tokens_is_an_error(array, tmp_path):
    np.save(tmp_path / "c.npy", array)
    with pytest.raises(StructureError, match="Tokens are integers of shape"):
        open_source(tmp_path / "c.npy", seq_len=1)


@pytest.mark.parametrize("cut", [5, 20, 130, 131])
def test_a_cut_array_is_an_error(cut, tmp_path):
    np.save(tmp_path / "c.npy", np.arange(10))
    os.truncate(tmp_path / "c.npy", cut)
    with pytest.raises(StructureError, match=r"c\.npy"):
        open_source(tmp_path / "c.npy", seq_len=1)


@pytest.mark.parametrize("text", ["{'descr': (20", "(" * 5000, "-" * 5000 + "1", "  x\n y"])
def test_a_hostile_header_is_an_error_of_the_file(text, tmp_path):
    header = text.encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    (tmp_path / "c.npy").write_bytes(data)
    with pytest.raises(StructureError, match=r"c\.npy: is no \.npy file"):
        open_source(tmp_path / "c.npy", seq_len=1)


def test_tokens_that_int64_cannot_hold_are_an_error(tmp_path):
    np.save(tmp_path / "c.npy", np.zeros(3, np.uint64))
    with pytest.raises(StructureError, match="has values of uint64"):
        open_source(tmp_path / "c.npy", seq_len=1)


def test_pickled_objects_are_never_loaded(tmp_path):
    np.save(tmp_path / "c.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(StructureError, match="Tokens are integers"):
        open_source(tmp_path / "c.npy", seq_len=1)


@both
def test_the_fingerprint_is_of_the_tokens_and_the_keys(write, tmp_path):
    documents = some_documents(50)
    found = {
        open_source(write(tmp_path / "c", documents), **keys).fingerprint
        for keys in ({}, {"seq_len": 8}, {"seq_len": 8, "add_eos": 1}, {"subset": (0, 40)})
    }
    assert len(found) == 4
    keep_open.cache_clear()
    (tmp_path / "other").mkdir()
    assert open_source(write(tmp_path / "other" / "d", documents)).fingerprint in found
    documents[20][0] ^= 1
    assert open_source(write(tmp_path / "c", documents)).fingerprint not in found


@both
def test_a_source_pickles_small_and_notices_that_its_file_changed(write, tmp_path):
    path = write(tmp_path / "c", some_documents(5000))
    data = pickle.dumps(open_source(path, seq_len=8))
    assert len(data) < 1000
    assert len(pickle.loads(data)) == len(open_source(path, seq_len=8))
    write(tmp_path / "c", some_documents(5001))
    with pytest.raises(StructureError, match="was changed while it was in use"):
        pickle.loads(data)


@both
def test_folders_and_patterns_of_files_are_one_dataset(write, tmp_path):
    shards = [some_documents(count) for count in (20, 1, 30)]
    for number, documents in enumerate(shards):
        path = write(tmp_path / f"x-{number}", documents)
    for place in (tmp_path, f"{tmp_path}/x-*{path.suffix}", f"{tmp_path}/x-{{0..2}}{path.suffix}"):
        assert tokens(read(place)) == [*chain(*shards)]
    windows = [flat(one)[: len(flat(one)) // 40 * 40].reshape(-1, 40) for one in shards]
    found = read(tmp_path, seq_len=40)  # the second file is shorter
    assert tokens(found) == np.concatenate(windows).tolist()
    assert found[-1]["__sources__"][0].shard == path.name
    assert found[-1]["__key__"] == str(len(windows[2]) - 1)


@both
def test_a_prepared_folder_has_parts(write, tmp_path):
    shards = [some_documents(count) for count in (20, 10, 30)]
    for number, documents in enumerate(shards):
        write(tmp_path / f"x-{number}", documents)
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), "--split-ratio", "2,1,0"])
    assert "60 samples in 3 shards" in done.output
    assert tokens(read(tmp_path)) == shards[0] + shards[1]
    assert tokens(read(tmp_path, split_part="val")) == shards[2]
    before = open_source(tmp_path, split_part="val", seq_len=10).fingerprint
    CliRunner().invoke(main, ["prepare", str(tmp_path), "--force"])
    assert open_source(tmp_path, split_part="val", seq_len=10).fingerprint == before


def test_rows_of_several_files_have_one_length(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3), int))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), int))
    with pytest.raises(SpecError, match=r"its files have rows of \d and of \d tokens"):
        open_source(tmp_path)


def test_a_sparse_file_of_100_gb_opens_at_once(tmp_path):
    count, size = 10**9, 50 * 10**9  # documents, tokens
    index, path = tmp_path / "c.idx", tmp_path / "c.bin"
    with index.open("wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, count, count + 1))
        file.truncate(34 + 12 * count + 8 * (count + 1))
        file.seek(34 + 4 * count - 4)
        file.write(struct.pack("<i", 50))
        file.seek(34 + 12 * count - 8)
        file.write(struct.pack("<q", 2 * (size - 50)))
    with path.open("wb") as file:
        file.truncate(2 * size)
    began, read_before = time.process_time(), _bytes_read()
    source = open_source(path, seq_len=4096)
    assert len(source) == size // 4096
    assert time.process_time() - began < 0.2
    assert _bytes_read() - read_before < 1 << 20
    assert source.read(np.array([len(source) - 1]))[0]["tokens"].shape == (4096,)


def _bytes_read() -> int:
    """Return the bytes that this process has read so far."""
    facts = Path("/proc/self/io").read_text().split()
    return int(facts[facts.index("rchar:") + 1])


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(0, 3000), min_size=600, max_size=2000), data=st.data())
def test_documents_of_a_place_are_found_in_large_indices(tmp_path_factory, lengths, data):
    lengths[-1] += 1
    folder = tmp_path_factory.mktemp("t")
    np.zeros(sum(lengths), np.uint16).tofile(folder / "c.ds")
    np.cumsum(lengths, dtype="<u8").tofile(folder / "c.ds.index")
    documents = open_tokens(str(folder / "c.ds")).documents
    bounds = [0, *accumulate(lengths)]
    begin = data.draw(st.integers(0, bounds[-1] - 1))
    end = data.draw(st.integers(begin + 1, bounds[-1]))
    document, found = documents.between(begin, end)
    assert bounds[document] <= begin < bounds[document + 1]
    assert found.tolist() == bounds[document : document + len(found)]
    assert found[-2] < end <= found[-1]
