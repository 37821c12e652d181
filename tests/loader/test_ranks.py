"""Saving and restoring over real ranks: processes with a gloo group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from trees import A, B, batches, samples

from energy_data.nodes.blend import BlendSpec, Part
from loader.runs import loader_of, run

SPEC = batches(samples(BlendSpec((Part(A, 5), Part(B, 2)))))

RANK = """
import json, sys
from pathlib import Path
from torch import distributed
from energy_data.context import default_worker_config
from energy_data.loader.dataset import Dataset
from energy_data.loader.loader import Loader
from attrs import evolve
from loader.test_ranks import SPEC
from itertools import islice

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
distributed.init_process_group("gloo")
config = evolve(default_worker_config(0), lanes=12)
loader = Loader(Dataset(spec=SPEC, worker_config=config))
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


def launch(folder: Path, ranks: int, rounds: int) -> dict:
    """Run the script on real ranks; the batches of all of them by number."""
    script = folder / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*command, str(ranks), str(script), str(folder), str(rounds)],
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    drawn = {}
    for rank in range(ranks):
        for g, batch in json.loads((folder / f"drawn-{rank}.json").read_text()):
            drawn[g] = tuple(batch)
    return dict(sorted(drawn.items()))


@pytest.mark.parametrize("ranks", [(4, 2), (2, 4), (1, 3)])
def test_saved_on_gloo_ranks_it_goes_on_on_another_number_of_them(tmp_path, ranks):
    expected = run([loader_of(SPEC, lanes=12)], rounds=24)
    first = launch(tmp_path, ranks[0], 12 // ranks[0])
    second = launch(tmp_path, ranks[1], 12 // ranks[1])
    assert {**first, **second} == expected
