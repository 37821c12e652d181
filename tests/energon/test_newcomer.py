"""A program written for Energon runs here with its import changed, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from data import make_dataset, png, use_train_everywhere
from test_names import PYTHON

from energy_data.cli.main import main

PROGRAM = Path(__file__).with_name("newcomer.py").read_text()
MEDIA_PROGRAM = Path(__file__).with_name("newcomer_media.py").read_text()
BLEND = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 3, path: ./ones, subflavors: {weight: 1.0}}
      - {weight: 1, path: ./twos, subflavors: {weight: 0.5}}
  val:
    path: ./ones
    subflavors: {weight: 1.0}
"""


PICTURES = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: ./texts
    split_part: train
    aux: {media: "filesystem://./media"}
    subflavors: {kind: picture}
  val:
    path: ./texts
    split_part: train
    aux: {media: "filesystem://./media"}
    subflavors: {kind: picture}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tars as a newcomer has them, prepared from the command line."""
    made = tmp_path_factory.mktemp("newcomer")
    for name in ("ones", "twos"):
        make_dataset(made / name, None, count=40, images=False)
        options = [
            "--non-interactive", "--split-parts", "train:shard-.*",
            "--sample-type", "CrudeWebdataset",
        ]  # fmt: skip
        done = CliRunner().invoke(main, ["prepare", *options, str(made / name)])
        assert done.exit_code == 0, done.output
        assert "CrudeWebdataset" in (made / name / ".nv-meta" / "dataset.yaml").read_text()
        use_train_everywhere(made / name)
    (made / "blend.yaml").write_text(BLEND)
    return made


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Texts in tars, and beside them a folder with the picture of each, of 1 to 9 pixels a side."""
    made = tmp_path_factory.mktemp("pictures")
    make_dataset(made / "texts", None, count=40, images=False)
    (made / "media" / "pictures").mkdir(parents=True)
    for number in range(40):
        picture = made / "media" / "pictures" / f"{number}.png"
        picture.write_bytes(png(number, size=1 + number % 9))
    typed = ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset", str(made / "texts")]
    for command in (
        ["prepare", "--non-interactive", *typed],
        ["prepare-media", "--media-metadata-by-extension", str(made / "media")],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    (made / "pictures.yaml").write_text(PICTURES)
    return made


def run(program, folder, *arguments):
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [PYTHON, "program.py", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def test_it_prepares_blends_trains_saves_and_goes_on(folder, gloo_ranks):
    program = PROGRAM.replace("from megatron.energon import", "from energy_data.energon import")
    printed = gloo_ranks.run_alone(program, folder, "2", "safely")
    assert printed.splitlines()[-1] == "36 36"


PIXELS = sum(number * 3 * (1 + number % 9) ** 2 for number in range(40))


@pytest.mark.parametrize("workers", ["0", "2"])
def test_texts_with_media_are_cooked_cached_packed_grouped_and_go_on(pictures, gloo_ranks, workers):
    program = MEDIA_PROGRAM.replace("from megatron.energon", "from energy_data.energon")
    printed = gloo_ranks.run_alone(program, pictures, workers, "safely")
    assert printed.splitlines()[-1] == f"40 40 40 {PIXELS}"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="Energon is not installed")
def test_the_real_energon_runs_the_same_program(folder):
    assert run(PROGRAM, folder, "2") == "36 36"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="Energon is not installed")
def test_the_real_energon_runs_the_program_with_media(pictures):
    assert run(MEDIA_PROGRAM, pictures, "2") == f"40 40 40 {PIXELS}"
