"""Facts about media are noted when a dataset is prepared, and found by key."""

import io
import sqlite3
from contextlib import closing

import pytest
from click.testing import CliRunner
from media import SOUND_RATE, video, wav
from tars import write_tar

from energy_data.cli.main import main
from energy_data.data.decode.media import MediaFilter, collect_files
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.files.stores import DecodeFileStore, PrimaryFileStore, SystemFileStore
from energy_data.data.registry import open_store
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.errors import SpecError

image = pytest.importorskip("PIL.Image")
pytest.importorskip("av")


def folder_of(tmp_path, *options):
    file = io.BytesIO()
    image.new("L", (7, 5)).save(file, "PNG")
    parts = [("a.png", file.getvalue()), ("a.dat", wav()), ("a.mp4", video(with_sound=False))]
    write_tar(tmp_path / "0.tar", [*parts, ("a.txt", b"text"), ("b.jpg", b"damaged")])
    done = CliRunner().invoke(main, ["prepare", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    return WebdatasetFileStore(tmp_path)


@pytest.mark.parametrize(
    ("options", "known"),
    [
        (["--media-metadata-by-extension"], {"a.png", "a.mp4"}),
        (["--media-metadata-by-header"], {"a.png", "a.mp4", "a.dat"}),
        (["--media-metadata-by-glob", "*.dat,a.p*"], {"a.png", "a.dat"}),
    ],
)
def test_media_are_told_in_three_ways(tmp_path, options, known):
    store = folder_of(tmp_path, *options)
    for key in ("a.png", "a.mp4", "a.dat", "a.txt", "b.jpg", "c.png"):
        if key not in known:
            with pytest.raises(KeyError, match="nothing is known about"):
                store.get_media_metadata(key)
    said = {key: store.get_media_metadata(key) for key in known}
    assert (said["a.png"].width, said["a.png"].height, said["a.png"].mode) == (7, 5, "L")
    if "a.mp4" in known:
        assert said["a.mp4"].video_num_frames == 20
    if "a.dat" in known:
        assert said["a.dat"].audio_num_samples == 2 * SOUND_RATE


def test_a_dataset_without_facts_says_how_to_get_them(tmp_path):
    with pytest.raises(SpecError, match="--media-metadata-by-extension"):
        folder_of(tmp_path).get_media_metadata("a.png")


@pytest.fixture
def folder(tmp_path):
    """A folder with media in it and below it."""
    (tmp_path / "sub").mkdir()
    image.new("L", (7, 5)).save(tmp_path / "a.png")
    image.new("RGB", (3, 4)).save(tmp_path / "sub" / "b.jpg")
    (tmp_path / "sub" / "c.wav").write_bytes(wav())
    (tmp_path / "note.txt").write_text("text")
    return tmp_path


def prepared(folder, *options):
    done = CliRunner().invoke(main, ["prepare-media", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output


def facts(folder):
    with closing(sqlite3.connect(folder / ".nv-meta" / "index.sqlite")) as database:
        return list(database.execute("SELECT * FROM media_metadata"))


def test_two_processes_find_the_same_in_the_same_order(folder):
    """Also if there are more files than a process reads at once, and a damaged one."""
    (folder / "sub" / "damaged.png").write_bytes(b"no image")
    for number in range(20):
        image.new("L", (number + 1, 1)).save(folder / f"{number}.png")
    prepared(folder, "--media-metadata-by-extension", "--num-workers", "1")
    alone = facts(folder)
    said = prepared(folder, "--media-metadata-by-extension", "--num-workers", "2")
    assert "recorded size and length of 23 files" in said
    assert facts(folder) == alone


def test_the_index_is_built_in_a_folder_of_choice(folder, tmp_path_factory):
    tmp, steps = tmp_path_factory.mktemp("local") / "new", []

    def progress(*at):
        steps.append((*at, len(list(tmp.rglob("*.part"))), (folder / ".nv-meta").exists()))

    assert collect_files(folder, MediaFilter("EXTENSION"), tmp=tmp, progress=progress) == 3
    assert steps == [(4, 4, 1, True)]
    assert not list(tmp.iterdir())
    assert [file.name for file in (folder / ".nv-meta").iterdir()] == ["index.sqlite"]
    prepared(folder, "--media-metadata-by-extension", "--tmp-path", str(tmp))
    assert len(facts(folder)) == 3


def test_what_is_interrupted_leaves_nothing(folder):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_files(folder, MediaFilter("EXTENSION"), progress=interrupt)
    assert not (folder / ".nv-meta").exists()


def test_a_folder_tells_about_its_media_by_path(folder):
    for _ in range(2):  # again, it begins anew
        said = prepared(folder, "--media-metadata-by-extension")
        assert "recorded size and length of 3 files" in said
    store = SystemFileStore(folder)
    assert (store.get_media_metadata("a.png").width, store["a.png"][0][:4]) == (7, b"\x89PNG")
    assert store.get_media_metadata("sub/b.jpg").format == "JPEG"
    assert store.get_media_metadata("sub/c.wav").audio_num_samples == 2 * SOUND_RATE
    with pytest.raises(KeyError, match=r"nothing is known about 'note\.txt'"):
        store.get_media_metadata("note.txt")
    prepared(folder, "--media-metadata-by-glob", "*.png")
    with pytest.raises(KeyError, match=r"nothing is known about 'sub/b\.jpg'"):
        SystemFileStore(folder).get_media_metadata("sub/b.jpg")


def test_stores_over_stores_pass_the_question_on(folder):
    prepared(folder, "--media-metadata-by-extension")
    store = DecodeFileStore(SystemFileStore(folder), decoder=SampleDecoder())
    assert store.get_media_metadata("a.png").mode == "L"
    assert PrimaryFileStore(store, current_key="sub/b").get_media_metadata(".jpg").height == 4


def test_what_knows_nothing_about_media_says_what_to_do(folder, tmp_path):
    with pytest.raises(SpecError, match="energy-data prepare-media --media-metadata-by"):
        SystemFileStore(folder).get_media_metadata("a.png")
    with pytest.raises(SpecError, match="Give `base_dir`"):
        SystemFileStore().get_media_metadata(str(folder / "a.png"))
    (tmp_path / "x.jsonl").write_text("{}\n")
    with pytest.raises(SpecError, match="a JsonlFileStore has no facts about media"):
        open_store(tmp_path / "x.jsonl").get_media_metadata("0.json")
    assert CliRunner().invoke(main, ["prepare-media", str(folder)]).exit_code == 2
