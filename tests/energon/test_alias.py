"""Programs that import `megatron.energon`, unchanged."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest
from energon.data import CRUDE, make_dataset

import energy_data.energon as ours
from energy_data.energon.alias import AliasFinder, PackageFinder
from energy_data.errors import EnergyDataError

# What Megatron-LM, Megatron-Bridge and NeMo import, and a path that does not exist here.
PROGRAM = """
import sys
from itertools import islice
from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset
from megatron.energon.edataclass import edataclass
from megatron.energon.epathlib.epath import EPath
from megatron.energon.flavors.base_dataset import Sample
from megatron.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory
from megatron.energon.task_encoder.base import DefaultTaskEncoder, stateless
from megatron.energon.task_encoder.cooking import Cooker, basic_sample_keys
import megatron.energon.task_encoder.loader as loader_module
import megatron.energon

assert megatron.energon.edataclass is edataclass  # the function, not the module

@edataclass
class Text(Sample):
    text: str

@stateless
def cook(sample):
    return Text(**basic_sample_keys(sample), text=sample["txt"])

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(cook)]

config = WorkerConfig(rank=0, world_size=1, num_workers=int(sys.argv[2]))
dataset = get_train_dataset(
    EPath(sys.argv[1]), batch_size=2, shuffle_buffer_size=8, max_samples_per_sequence=8,
    worker_config=config, task_encoder=Encoder(),
)
with get_savable_loader(dataset) as loader:
    print([batch.text for batch in islice(loader, 3)])
"""


@pytest.fixture
def texts(tmp_path):
    return str(make_dataset(tmp_path / "texts", CRUDE, images=False))


def imported():
    return [name for name in sys.modules if name.partition(".")[0] == "megatron"]


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    """A program, in a process that has imported nothing of `megatron` before it."""
    (tmp_path / "train.py").write_text(PROGRAM)
    others = [one for one in sys.meta_path if not isinstance(one, (AliasFinder, PackageFinder))]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in imported():
        monkeypatch.delitem(sys.modules, name)
    yield str(tmp_path / "train.py")
    for name in imported():
        del sys.modules[name]


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `python -m energy_data.energon ARGUMENTS` in this process; return what it prints."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["energon", *arguments])
        runpy.run_module("energy_data.energon", run_name="__main__", alter_sys=True)
        return capsys.readouterr().out

    return run


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Another `megatron.core` and `megatron.energon`, as if they were installed."""
    for name in ("core", "energon"):
        (tmp_path / "megatron" / name).mkdir(parents=True)
        (tmp_path / "megatron" / name / "__init__.py").write_text(f"name = 'real {name}'")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_program_runs_unchanged_with_and_without_workers(program, texts, run):
    first = run(program, texts, "0")
    assert first.count("text") == 6
    done = subprocess.run(
        [sys.executable, "-m", "energy_data.energon", program, texts, "2"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (first, "")


def test_a_program_that_calls_install_runs_too(program, texts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program, texts, "0"])
    with pytest.raises(ImportError):
        runpy.run_path(program)
    ours.install()
    runpy.run_path(program)
    assert capsys.readouterr().out.count("text") == 6


def test_a_module_runs_as_a_program(tmp_path, texts, run, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert run("-m", "train", texts, "0").count("text") == 6


def test_without_a_program_the_usage_is_shown(run):
    with pytest.raises(SystemExit, match=r"python -m energy_data\.energon program\.py ARGUMENTS"):
        run()


def test_names_that_energon_does_not_have_are_import_errors():
    ours.install()
    ours.install()
    import megatron.energon as alias  # noqa: PLC0415 - found after `install` only

    assert all(getattr(alias, name) is getattr(ours, name) for name in ours.__all__)
    with pytest.raises(ImportError, match=r"cannot import name 'no_such_name' from 'megatron\.ene"):
        exec("from megatron.energon.task_encoder.base import no_such_name")
    with pytest.raises(ImportError, match=r"No module named 'megatron\.core'"):
        exec("import megatron.core")


def test_other_modules_of_megatron_stay_what_they_are(real):
    ours.install()
    import megatron.core  # noqa: PLC0415 - there in this test only
    import megatron.energon  # noqa: PLC0415 - found after `install` only

    assert megatron.core.name == "real core"
    assert megatron.energon.Cooker is ours.Cooker


def test_energon_must_not_be_imported_before(real, tmp_path):
    import megatron.energon  # noqa: PLC0415 - there in this test only

    assert megatron.energon.name == "real energon"
    with pytest.raises(
        EnergyDataError, match=r"megatron\.energon is imported already, from .*energon"
    ):
        ours.install()
