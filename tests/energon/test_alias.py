"""Programs that import `megatron.energon`, unchanged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from energon.data import CRUDE, make_dataset

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
    return make_dataset(tmp_path / "texts", CRUDE, images=False)


@pytest.fixture
def program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path / "train.py"


def output(*command):
    """Return what a program prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_runs_unchanged_with_and_without_workers(program, texts):
    first = output("-m", "energy_data.energon", program, texts, 0)
    assert first.count("text") == 6
    assert output("-m", "energy_data.energon", program, texts, 2) == first


def test_a_program_that_calls_install_runs_too(program, texts):
    program.write_text("import energy_data.energon\nenergy_data.energon.install()\n" + PROGRAM)
    assert output(program, texts, 0).count("text") == 6


def test_a_module_runs_as_a_program(program, texts, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(program.parent), prepend=":")
    assert output("-m", "energy_data.energon", "-m", "train", texts, 0).count("text") == 6


def test_without_a_program_the_usage_is_shown():
    done = subprocess.run(
        [sys.executable, "-m", "energy_data.energon"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "python -m energy_data.energon program.py ARGUMENTS" in done.stderr


def test_names_that_energon_does_not_have_are_import_errors():
    code = (
        "import energy_data.energon as ours; ours.install(); ours.install()\n"
        "import megatron.energon as alias\n"
        "assert all(getattr(alias, name) is getattr(ours, name) for name in ours.__all__)\n"
        "try:\n"
        "    from megatron.energon.task_encoder.base import no_such_name\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    import megatron.core\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    first, second = output("-c", code).splitlines()
    assert first.startswith("cannot import name 'no_such_name' from 'megatron.energon")
    assert second == "No module named 'megatron.core'"


def test_other_modules_of_megatron_stay_what_they_are(tmp_path, monkeypatch):
    for name in ("core", "energon"):
        (tmp_path / "megatron" / name).mkdir(parents=True)
        (tmp_path / "megatron" / name / "__init__.py").write_text(f"name = 'real {name}'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    code = (
        "import energy_data.energon as ours; ours.install()\n"
        "import megatron.core, megatron.energon\n"
        "print(megatron.core.name, megatron.energon.Cooker is ours.Cooker)"
    )
    assert output("-c", code) == "real core True\n"


def test_energon_must_not_be_imported_before(tmp_path, monkeypatch):
    (tmp_path / "megatron" / "energon").mkdir(parents=True)
    (tmp_path / "megatron" / "energon" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    code = "import megatron.energon, energy_data.energon; energy_data.energon.install()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert "megatron.energon is imported already, from" in done.stderr
    assert str(Path("megatron", "energon")) in done.stderr
