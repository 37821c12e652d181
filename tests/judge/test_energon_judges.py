"""The real Energon prepares what we read, and reads what we prepare."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from place import PYTHON
from tars import sample_files, write_tar

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.splits import parse_patterns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="Energon is not installed"),
]

READ = """
import json, sys
from megatron.energon import WorkerConfig, get_val_dataset, get_loader, DefaultTaskEncoder, Cooker
from megatron.energon import stateless
class Encoder(DefaultTaskEncoder):
    decoder = None
    cookers = [Cooker(stateless(lambda sample: sample))]
    def batch(self, samples): return samples
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
dataset = get_val_dataset(
    sys.argv[1], split_part=sys.argv[2], batch_size=1, worker_config=config, task_encoder=Encoder()
)
for [sample] in get_loader(dataset):
    parts = {k: v.hex() for k, v in sample.items() if isinstance(v, bytes)}
    print(json.dumps([sample["__key__"], sample["__sources__"][0].shard_name, parts]))
"""


def energon_reads(folder, split_part):
    command = [PYTHON, "-c", READ, str(folder), split_part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def we_read(folder, split_part):
    source = open_source(folder, split_part=split_part, decode="bytes")
    for sample in source.read(np.arange(len(source))):
        parts = {k: v.hex() for k, v in sample.items() if isinstance(v, bytes)}
        yield sample["__key__"], sample["__sources__"][0].shard, parts


def energon_prepares(folder, *options):
    command = [PYTHON, "-m", "megatron.energon.cli.main", "prepare", str(folder)]
    command += ["--non-interactive", "--num-workers", "2", "--sample-type", "CrudeWebdataset"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def write(folder):
    kinds = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
    for shard in range(12):
        files = [part for n in range(shard * 7, shard * 7 + 7) for part in sample_files(n, 5000)]
        files += [("d/", b""), (f"__m__/{shard}.txt", b""), (f"d/noextension{shard}", b"")]
        files += [(f"{shard}.x/{name}", b"x") for name in (".h", "a", "b.c", "__d__.e")]
        if shard % 3:
            files += [(f"{'long' * 50}{shard}.txt", b"x"), (f"grüße{shard}.txt", b"x")]
        write_tar(folder / f"s{shard % 2}" / f"shard-{shard:02d}.tar", files, kinds[shard % 3])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        # Energon loses the last shard where the sum of its fractions is below 1, as with 8,2,2.
        ("6,3,3", ["--split-ratio", "6,3,3"]),
        (
            ["train:s0/.*", "val:s1/.*"],
            ["--split-parts", "train:s0/.*", "--split-parts", "val:s1/.*"],
        ),
    ],
)
def test_both_prepare_and_read_the_same(tmp_path, ours, theirs):
    write(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    prepare(
        tmp_path / "a", split=ours if isinstance(ours, str) else parse_patterns(ours), sqlite=True
    )
    energon_prepares(tmp_path / "b", *theirs)
    for index in (tmp_path / "b").rglob("*.idx"):
        other = tmp_path / "a" / index.relative_to(tmp_path / "b")
        assert other.read_bytes() == index.read_bytes(), index
    for part in ("train", "val"):
        said = list(we_read(tmp_path / "a", part))
        assert said == list(we_read(tmp_path / "b", part))
        assert said == energon_reads(tmp_path / "a", part)
        assert said == energon_reads(tmp_path / "b", part)
    same = {
        name: [
            json.loads((tmp_path / ab / ".nv-meta" / ".info.json").read_text())[name] for ab in "ab"
        ]
        for name in ("shard_counts",)
    }
    assert list(same["shard_counts"][0].items()) == list(same["shard_counts"][1].items())
    for name in ("split.yaml", "dataset.yaml"):
        ours_said, theirs_said = ((tmp_path / ab / ".nv-meta" / name).read_text() for ab in "ab")
        assert ours_said == theirs_said
    assert rows(tmp_path / "a") == rows(tmp_path / "b")


def rows(folder):
    script = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1])\n"
        "for table in ('samples', 'sample_parts'):\n"
        "    print(sorted(database.execute(f'SELECT * FROM {table}').fetchall()))\n"
        "said = database.execute('SELECT type, name, tbl_name FROM sqlite_master').fetchall()\n"
        "print(sorted(said))"
    )
    command = [PYTHON, "-c", script, str(folder / ".nv-meta" / "index.sqlite")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
