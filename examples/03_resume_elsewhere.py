"""Save on one rank, go on on two: micro-batch by micro-batch the same stream."""

import json
from itertools import islice
from tempfile import TemporaryDirectory

from webdataset import TarWriter

from energy_data import Loader, WorkerConfig, get_loader, get_train_dataset


def rank(number: int, of: int, lanes: int | None = None) -> Loader:
    """The loader as rank `number` of a run has it; each would be a process of its own."""
    config = WorkerConfig(number, of, lanes=lanes)
    return get_loader(get_train_dataset(folder, batch_size=4, worker_config=config))


with TemporaryDirectory() as folder:
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for number in range(1000):
            tar.write({"__key__": f"{number}", "txt": f"text {number}"})

    # What would come without a stop.
    never_stopped = rank(0, of=1, lanes=8)
    expected = [batch["__key__"] for batch in islice(never_stopped, 100)]

    # One rank, 37 micro-batches, then the machine is needed elsewhere.
    first = rank(0, of=1, lanes=8)
    begun = [batch["__key__"] for batch in islice(first, 37)]
    saved = json.dumps(first.state_dict())
    print(f"saved after micro-batch {len(begun) - 1}: {len(saved)} bytes of JSON")

    # Two ranks from there on; lanes come with the state. Rank r has the micro-batches
    # g = r (mod 2), so 37 is rank 1's first.
    ranks = [rank(r, of=2) for r in range(2)]
    for loader in ranks:
        loader.load_state_dict(json.loads(saved))
    streams = [iter(loader) for loader in ranks]
    gone_on = [next(streams[g % 2])["__key__"] for g in range(37, 80)]
    assert begun + gone_on == expected[:80]

    # And back on one: any rank's states, all together, are the state of the run.
    states = [loader.state_dict() for loader in ranks]
    last = rank(0, of=1)
    last.restore_state_global(states)
    assert [batch["__key__"] for batch in islice(last, 20)] == expected[80:]
    print("1 rank -> 2 ranks -> 1 rank: all 100 micro-batches are as without a stop")
