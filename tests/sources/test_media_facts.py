"""Facts about media are noted when a dataset is prepared, and found by key."""

import io

import pytest
from click.testing import CliRunner
from media import SOUND_RATE, video, wav
from tars import write_tar

from energy_data.cli.main import main
from energy_data.errors import SpecError
from energy_data.sources.tar_store import WebdatasetFileStore

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
