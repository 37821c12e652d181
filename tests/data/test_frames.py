"""Compressed JSONL: read in place frame by frame, and written again where that cannot be."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import struct
import sys
from itertools import islice

import numpy as np
import pytest
import zstandard
from click.testing import CliRunner
from frame_files import SUFFIXES, block_of_bgzip, frame, lines_of, write_frames, write_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.files import recent
from energy_data.data.files.local import version_of
from energy_data.data.files.recent import RECENT
from energy_data.data.frames import compression, rewrite
from energy_data.data.registry import open_source, open_store
from energy_data.errors import MissingExtraError, SampleError, StructureError

SKIPPED = struct.pack("<II", 0x184D2A55, 3) + b"abc"


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    return request.param


def numbers(source):
    return [sample["json"]["n"] for sample in source.read(np.arange(len(source)))]


def prepare(*arguments):
    return CliRunner().invoke(main, ["prepare", *map(str, arguments), "--non-interactive"])


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_frames_hold_the_lines_of_their_text(tmp_path_factory, suffix, data):
    lines = data.draw(st.lists(st.sampled_from(["", " ", '{"n": 1}', '{"n": "' + "ü" * 50 + '"}'])))
    text = "\n".join([*lines, '{"n": 7}']).encode()
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    folder = tmp_path_factory.mktemp("f")
    (folder / "x.jsonl").write_bytes(text)
    bounds = zip([0, *cuts], [*cuts, len(text)], strict=True)
    path = write_frames(folder / f"x.jsonl{suffix}", [text[first:end] for first, end in bounds])
    plain, source = open_source(folder / "x.jsonl"), open_source(path)
    order = data.draw(st.lists(st.integers(0, len(plain) - 1), max_size=20))
    expected = [sample["json"] for sample in plain.read(np.array(order, np.int64))]
    assert len(source) == len(plain)
    assert [sample["json"] for sample in source.read(np.array(order, np.int64))] == expected


def test_blocks_of_bgzip_are_frames(tmp_path):
    text = b"".join(lines_of(range(1000)))
    blocks = [block_of_bgzip(text[at : at + 500]) for at in range(0, len(text), 500)]
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(b"".join([*blocks, block_of_bgzip(b"")]))
    assert gzip.decompress(path.read_bytes()) == text
    assert numbers(open_source(path)) == [*range(1000)]


def test_frames_of_zstd_may_have_tables_and_no_sizes(tmp_path):
    path = tmp_path / "x.jsonl.zst"
    streamed = zstandard.ZstdCompressor().compressobj()
    first = streamed.compress(b"".join(lines_of(range(5)))) + streamed.flush()
    second = frame(".zst", b"".join(lines_of(range(5, 9))))
    path.write_bytes(SKIPPED + first + SKIPPED + second + SKIPPED)
    assert numbers(open_source(path)) == [*range(9)]


def test_the_key_of_a_sample_is_its_number_and_finds_it(tmp_path, suffix):
    path = write_numbers(tmp_path / f"x.jsonl{suffix}", range(40))
    assert open_source(path).read(np.array([17]))[0]["__key__"] == "17"
    store = pickle.loads(pickle.dumps(open_store(path)))
    assert [json.loads(store[f"{n}.json"][0])["n"] for n in (17, 39, 0)] == [17, 39, 0]
    with pytest.raises(KeyError, match=r"only 0\.json to 39\.json"):
        store["40.json"]


def test_a_run_decompresses_each_frame_about_once(tmp_path, suffix):
    texts = [b"".join(lines_of(range(n, n + 100))) for n in range(0, 20_000, 100)]
    path = write_frames(tmp_path / f"x.jsonl{suffix}", texts)
    assert open_source(path).run_length == 100
    dataset = get_train_dataset(
        str(path),
        batch_size=8,
        shuffle_buffer_size=50,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(lanes=8),
    )
    before = RECENT.num_made
    stream = islice(get_loader(dataset), 500)
    read = [sample["n"] for batch in stream for sample in batch["json"]]
    assert len(set(read)) == 4000
    assert RECENT.num_made - before < 1.5 * 4000 / 100


def test_frames_that_are_read_in_turns_stay_in_memory(tmp_path, suffix, monkeypatch):
    for n in range(6):
        write_frames(tmp_path / f"{n}.jsonl{suffix}", [b"".join(lines_of(range(n, n + 600)))])
    source = open_source(tmp_path)
    monkeypatch.setattr(recent, "LARGEST", 30_000)  # of two frames
    before = RECENT.num_made
    for at in range(0, 600, 4):
        source.read(np.concatenate([np.arange(4) + at + 600 * n for n in range(6)]))
    assert RECENT.num_made - before < 6 * 10


def cut(data):
    return data[:-3]


def flip(data):
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]


def garbage(data):
    return data + b"garbage after the last frame"


@pytest.mark.parametrize("damage", [cut, flip, garbage])
def test_a_damaged_file_is_an_error_with_the_frame_when_it_is_indexed(tmp_path, suffix, damage):
    frames = [frame(suffix, b"".join(lines_of(range(n, n + 5)))) for n in (0, 5, 10)]
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(damage(b"".join(frames)))
    with pytest.raises(StructureError, match="the frame that begins there cannot") as caught:
        open_source(path)
    assert caught.value.shard == str(path)
    assert caught.value.offset == sum(map(len, frames[: 3 if damage is garbage else 2]))
    assert not (tmp_path / f"{path.name}.idx").exists()


def test_a_frame_that_is_damaged_later_makes_its_lines_bad_samples(tmp_path, suffix):
    texts = [b"".join(lines_of(range(n, n + 5))) for n in (0, 5, 10)]
    path = write_frames(tmp_path / f"x.jsonl{suffix}", texts)
    assert len(open_source(path)) == 15
    facts, begin = path.stat(), len(frame(suffix, texts[0]))
    data = bytearray(path.read_bytes())
    data[begin + len(frame(suffix, texts[1])) - 2] ^= 1  # of its checksum, or its size
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    RECENT.clear()
    found = open_source(path).read(np.arange(15))
    bad = [one for one in found if isinstance(one, SampleError)]
    assert [one.key for one in bad] == ["5", "6", "7", "8", "9"]
    assert (bad[0].offset, bad[0].shard, bad[0].dataset) == (begin, path.name, str(path))
    assert [one["json"]["n"] for one in found[:5] + found[10:]] == [*range(5), *range(10, 15)]


def test_a_line_that_is_no_object_is_named_with_its_frame(tmp_path, suffix):
    path = write_frames(tmp_path / f"x.jsonl{suffix}", [b'{"n": 1}\n', b'{"n": 2}\n[3]\n'])
    with pytest.raises(StructureError, match=r"line 3 is no JSON object: it begins '\[3\]'") as no:
        open_source(path)
    assert no.value.offset == len(frame(suffix, b'{"n": 1}\n'))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("of_index", [True, False])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_ends_in_an_error_or_leaves_samples_as_they_are(
    tmp_path_factory, suffix, of_index, data
):
    path = write_numbers(tmp_path_factory.mktemp("f") / f"x.jsonl{suffix}", range(40))
    open_source(path)
    wrong = path.with_name(f"{path.name}.idx") if of_index else path
    content, facts = bytearray(wrong.read_bytes()), wrong.stat()
    at = data.draw(st.integers(0, len(content) - 1 - 8 * of_index))
    content[at] = data.draw(st.integers(0, 255))
    wrong.write_bytes(content)
    os.utime(wrong, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    RECENT.clear()
    try:
        found = open_source(path).read(np.arange(40))
    except StructureError:
        return
    good = [one for one in found if not isinstance(one, SampleError)]
    if not of_index:  # a wrong index may put another line in place of one
        assert all(one["json"]["n"] == int(one["__key__"]) for one in good)


def test_without_the_extra_it_is_named(tmp_path, monkeypatch):
    path = write_numbers(tmp_path / "x.jsonl.zst", range(9))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'energy_data\[zstd\]'"):
        open_source(path)


@pytest.fixture
def small(monkeypatch):
    """Frames may have 4096 bytes, and are written with 1024."""
    monkeypatch.setattr(compression, "LARGEST_FRAME", 4096)
    monkeypatch.setattr(rewrite, "LARGEST_FRAME", 4096)
    monkeypatch.setattr(rewrite, "FRAME", 1024)


def test_a_file_of_one_large_frame_is_an_error_that_says_what_to_do(tmp_path, suffix):
    line = b'{"n": "' + b"x" * 1000 + b'"}\n'
    text = line * (compression.LARGEST_FRAME // len(line) + 1)
    path = write_frames(tmp_path / f"x.jsonl{suffix}", [text])
    with pytest.raises(StructureError, match=r"more than 64 MiB.*prepare --reframe`") as caught:
        open_source(path)
    assert caught.value.offset == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("streamed", [True, False])
def test_reframing_keeps_the_lines_and_writes_small_frames(tmp_path, suffix, streamed):
    lines = [json.dumps({"n": n, "text": "x" * (n % 50)}).encode() + b"\n" for n in range(400)]
    lines[100] = json.dumps({"n": 100, "text": "y" * 3000}).encode() + b"\n"
    path = write_frames(tmp_path / f"x.jsonl{suffix}", [b"".join(lines)])
    if streamed and suffix == ".zst":
        with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
            stream.write(b"".join(lines))
    path.chmod(0o640)
    assert "Run `energy-data prepare --reframe`" in prepare(path).stderr
    done = prepare(path, "--reframe")
    assert (done.stdout, done.exit_code) == (f"{path}: 400 samples\n", 0)
    assert numbers(open_source(path)) == [*range(400)]
    assert path.stat().st_mode & 0o777 == 0o640
    file = compression.LocalFile(str(path))
    kind, at, texts = compression.ZSTD if suffix == ".zst" else compression.GZIP, 0, []
    while at < file.size:
        text, at = compression.read_frame(kind, file, at)
        texts.append(text)
    assert b"".join(texts) == b"".join(lines)
    assert all(text.endswith(b"\n") for text in texts if text)
    assert [len(text) <= 1024 for text in texts].count(False) == 1  # the long line
    before = version_of(str(path))
    assert prepare(path, "--reframe").exit_code == 0
    assert version_of(str(path)) == before


@pytest.mark.usefixtures("small")
def test_what_is_written_ends_with_the_table_of_the_seekable_format(tmp_path):
    path = write_frames(tmp_path / "x.jsonl.zst", [b"".join(lines_of(range(1000)))])
    assert prepare(path, "--reframe").exit_code == 0
    data = path.read_bytes()
    count, descriptor, magic = struct.unpack("<IBI", data[-9:])
    assert (descriptor, magic) == (0, 0x8F92EAB1)
    table = data[-9 - 8 * count : -9]
    assert struct.unpack("<II", data[-17 - 8 * count : -9 - 8 * count]) == (
        0x184D2A5E,
        8 * count + 9,
    )
    at, texts = 0, []
    for packed, size in struct.iter_unpack("<II", table):
        texts.append(zstandard.ZstdDecompressor().decompress(data[at : at + packed]))
        assert len(texts[-1]) == size
        at += packed
    assert b"".join(texts) == b"".join(lines_of(range(1000)))


@pytest.mark.usefixtures("small")
def test_a_folder_is_reframed_file_by_file_also_in_parts(tmp_path, suffix):
    for number in range(4):
        lines = lines_of(range(600 * number, 600 * number + 600))
        texts = [b"".join(lines)] if number % 2 else lines
        write_frames(tmp_path / "x" / f"{number}.jsonl{suffix}", texts)
    done = prepare(tmp_path / "x", "--part", 1, "--of", 2)
    assert "1.jsonl" in done.stderr
    assert "--reframe" in done.stderr
    small = version_of(str(tmp_path / "x" / f"0.jsonl{suffix}"))
    for part in range(2):
        assert prepare(tmp_path / "x", "--part", part, "--of", 2, "--reframe").exit_code == 0
    assert prepare(tmp_path / "x", "--finish").exit_code == 0
    assert numbers(open_source(tmp_path / "x")) == [*range(2400)]
    assert version_of(str(tmp_path / "x" / f"0.jsonl{suffix}")) == small


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("text", "damage", "problem"),
    [
        (b"".join(lines_of(range(1000))), cut, "cannot be decompressed"),
        (b"".join(lines_of(range(1000))), flip, "cannot be decompressed"),
        (b'{"n": "' + b"x" * 9000 + b'"}\n', bytes, "line 1 has more than"),
    ],
)
def test_a_file_that_cannot_be_reframed_stays_as_it_is(tmp_path, suffix, text, damage, problem):
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(damage(frame(suffix, text)))
    before = path.read_bytes()
    assert problem in prepare(path, "--reframe").stderr
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]  # noqa: PTH208


def test_a_process_that_is_killed_while_it_reframes_leaves_the_old_file(tmp_path):
    path = write_frames(tmp_path / "x.jsonl.gz", [b"".join(lines_of(range(60_000)))])
    before = path.read_bytes()
    if (child := os.fork()) == 0:
        rewrite.reframe(
            compression.GZIP,
            str(path),
            lambda done, total: done == total and os.kill(os.getpid(), 9),
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # what it has written so far is left
    assert path.read_bytes() == before
    assert len(open_source(tmp_path)) == 60_000


def test_reframing_is_for_compressed_lines_only(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"n": 1}\n')
    for path in (tmp_path, tmp_path / "x.jsonl"):
        assert "--reframe) is for compressed JSONL files" in prepare(path, "--reframe").stderr
