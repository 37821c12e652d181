import subprocess
import sys

from energy_data.cli.demo import stream

SMALL = ["--folder", "demo", "--samples", "30", "--batches", "12"]


def test_the_demo_ends_well_in_a_real_process(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "energy_data.cli.main", "demo", *SMALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 rank  all 6 micro-batches after the save are identical." in done.stdout
    assert "2 ranks all 6 micro-batches after the save are identical." in done.stdout


def test_the_demo_runs_again_and_tells_a_stream_that_differs(energy_data, monkeypatch, tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / ".energy-data-demo").touch()
    monkeypatch.setattr(stream, "digest", lambda batch: "0000000000000000")  # not in its children
    done = energy_data("demo", *SMALL)
    assert done.exit_code == 1
    assert done.stderr.startswith("resumed on 1 rank: the stream differs, first at micro-batch [6]")


def test_the_demo_leaves_folders_alone_that_are_not_its_own(energy_data, tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").touch()
    done = energy_data("demo", *SMALL)
    assert (done.exit_code, list((tmp_path / "demo").iterdir())) == (
        1,
        [tmp_path / "demo" / "thesis.tex"],
    )
    assert done.stderr.startswith("demo: it has files in it that are not the demo's.")
