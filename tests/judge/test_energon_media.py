"""What is known about the media of a folder is the same, whoever looked and whoever asks."""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from media import video, wav
from place import PYTHON

from energy_data.cli.main import main
from energy_data.data.files.stores import SystemFileStore

pytestmark = pytest.mark.slow

KEYS = ["a.png", "sub/b.jpg", "sub/c.mp4", "sub/d.wav"]


@pytest.mark.parametrize(
    ("who", "how"),
    [  # that of Energon 7.4.1 never ends when it looks at headers
        ("ours", "--media-metadata-by-header"),
        ("ours", "--media-metadata-by-extension"),
        ("theirs", "--media-metadata-by-extension"),
    ],
)
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
        command = [Path(PYTHON).with_name("energon"), "prepare-media", how, tmp_path]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    store = SystemFileStore(tmp_path)
    said = [asdict(store.get_media_metadata(key)) for key in KEYS]
    assert said == energon.do("media", tmp_path, keys=KEYS)
