"""What is known about the media of a folder is the same, whoever looked and whoever asks."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from click.testing import CliRunner
from media import video, wav

from energy_data.cli.main import main
from energy_data.sources.system_store import SystemFileStore

pytestmark = pytest.mark.slow

KEYS = ["a.png", "sub/b.jpg", "sub/c.mp4", "sub/d.wav"]


@pytest.mark.parametrize("who", ["ours", "theirs"])
@pytest.mark.parametrize("how", ["--media-metadata-by-extension", "--media-metadata-by-header"])
def test_a_folder_that_one_prepared_tells_both_the_same(energon, tmp_path, who, how):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "sub").mkdir()
    image.new("L", (7, 5)).save(tmp_path / "a.png")
    image.new("RGB", (3, 4)).save(tmp_path / "sub" / "b.jpg")
    (tmp_path / "sub" / "c.mp4").write_bytes(video(with_sound=False))
    (tmp_path / "sub" / "d.wav").write_bytes(wav())
    if who == "ours":
        done = CliRunner().invoke(main, ["prepare-media", how, str(tmp_path)])
        assert done.exit_code == 0, done.output
    else:
        energon.do("prepare_media", tmp_path, options=[how, "--num-workers", "1"])
    store = SystemFileStore(tmp_path)
    said = [asdict(store.get_media_metadata(key)) for key in KEYS]
    assert said == energon.do("media", tmp_path, keys=KEYS)
