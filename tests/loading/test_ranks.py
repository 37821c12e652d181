"""Saving and restoring over real ranks: processes with a gloo group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from trees import A, B, batches, samples

from energy_data.nodes.blend import BlendSpec, Part
from loading.runs import loader_of, run

SPEC = batches(samples(BlendSpec((Part(A, 5), Part(B, 2)))))

RANK = """
import json, sys
from pathlib import Path
from torch import distributed
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from attrs import evolve
from loading.test_ranks import SPEC
from itertools import islice

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
distributed.init_process_group("gloo")
config = evolve(WorkerConfig.default_worker_config(0), lanes=12)
loader = Loader(SavableDataset(spec=SPEC, worker_config=config))
saved = folder / "state.json"
state = json.loads(saved.read_text()) if saved.exists() and config.rank == 0 else None
if saved.exists():
    loader.restore_state_global(state, src_rank=0)
drawn = [(loader.last_batch, batch) for batch in islice(loader, rounds)]
state = loader.save_state_global(global_dst_rank=0)
assert (state is None) == (config.rank != 0)
distributed.barrier()
if config.rank == 0:
    saved.write_text(json.dumps(state))
(folder / f"drawn-{config.rank}.json").write_text(json.dumps(drawn))
distributed.destroy_process_group()
"""


def by_torchrun(folder: Path, ranks: int, rounds: int) -> None:
    script = folder / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*command, str(ranks), str(script), str(folder), str(rounds)],
        env={
            "PYTHONPATH": ":".join(map(str, Path(__file__).parents[1:3])),
            "PATH": "",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def drawn(folder: Path, ranks: int) -> dict:
    """The batches of all ranks of the last run by number."""
    drawn = {}
    for rank in range(ranks):
        for g, batch in json.loads((folder / f"drawn-{rank}.json").read_text()):
            drawn[g] = tuple(batch)
    return dict(sorted(drawn.items()))


@pytest.mark.parametrize("ranks", [(4, 2), (2, 4), (1, 3)])
def test_saved_on_gloo_ranks_it_goes_on_on_another_number_of_them(tmp_path, gloo_ranks, ranks):
    given = {}
    for number in ranks:
        gloo_ranks.run_well(RANK, tmp_path, number, str(tmp_path), str(12 // number))
        given |= drawn(tmp_path, number)
    assert given == run([loader_of(SPEC, lanes=12)], rounds=24)


def test_ranks_of_torchrun_go_on_with_what_others_saved_and_save_for_others(tmp_path, gloo_ranks):
    given = {}
    for number in (3, 2, 1):
        if number == 2:
            by_torchrun(tmp_path, 2, 6)
        else:
            gloo_ranks.run_well(RANK, tmp_path, number, str(tmp_path), str(12 // number))
        given |= drawn(tmp_path, number)
    assert given == run([loader_of(SPEC, lanes=12)], rounds=36)
