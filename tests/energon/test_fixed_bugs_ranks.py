"""Bugs of states over real ranks that Energon had and mended; none of them is ours.

The table of all is in `test_fixed_bugs`.
"""

from __future__ import annotations

import json

from data import TEXTS, make_dataset

MODEL, DATA = 2, 2  # ranks that have the same data, and ranks that share it out

RANK = """
import json, sys
from itertools import islice
from pathlib import Path
from torch import distributed
from energy_data.energon import WorkerConfig, get_savable_loader, get_train_dataset

distributed.init_process_group("gloo")
rank, model = distributed.get_rank(), int(sys.argv[3])
groups = [
    distributed.new_group(list(range(first, distributed.get_world_size(), model)))
    for first in range(model)
]
group = groups[rank % model]
config = WorkerConfig.default_worker_config(0, group)
first = config.global_rank() - config.rank * model
assert (config.world_size, config.rank, first) == (2, rank // model, rank % model)

def new_loader():
    return get_savable_loader(get_train_dataset(
        sys.argv[1], batch_size=2, shuffle_buffer_size=8, max_samples_per_sequence=4,
        worker_config=config,
    ))

def drawn(loader, count):
    return [batch.text for batch in islice(loader, count)]

loader = new_loader()
drawn(loader, 3)
state = loader.save_state_global(first)
assert (state is None) == (rank != first)
expected = drawn(loader, 4)
loader = new_loader()
loader.restore_state_global(state, src_rank=0)  # of the group
assert drawn(loader, 4) == expected, rank
Path(sys.argv[2], str(rank)).write_text(json.dumps(expected))
distributed.barrier()
distributed.destroy_process_group()
"""


def test_pr71_of_two_groups_each_saves_and_restores_on_its_own_ranks(tmp_path, gloo_ranks):
    """PR #72, #71: ranks within the group and ranks of the job were taken for each other."""
    texts = make_dataset(tmp_path / "texts", TEXTS, images=False)
    gloo_ranks.run_well(RANK, tmp_path, MODEL * DATA, str(texts), str(tmp_path), str(MODEL))
    given = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(MODEL * DATA)]
    assert given[0] == given[1]
    assert given[2] == given[3]
    assert given[0] != given[2]
