"""A folder of tars, and a shuffled training stream over it: no preparation, no YAML."""

from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from webdataset import TarWriter

from energy_data import WorkerConfig, get_loader, get_train_dataset

with TemporaryDirectory() as temporary:
    folder = Path(temporary) / "volumes"
    folder.mkdir()
    for shard in range(2):
        with TarWriter(f"{folder}/shard-{shard}.tar") as tar:
            for number in range(10):
                text = f"page {number} of volume {shard}"
                tar.write({"__key__": f"v{shard}-p{number}", "txt": text, "cls": shard})

    dataset = get_train_dataset(folder, batch_size=4, worker_config=WorkerConfig(lanes=1))
    epoch = list(islice(get_loader(dataset), 5))  # 5 batches of 4: every sample once

    print("parts of a batch:", sorted(epoch[0]))
    for batch in epoch:
        print(batch["__key__"], batch["cls"].tolist())

    keys = [key for batch in epoch for key in batch["__key__"]]
    assert len(set(keys)) == 20
    assert keys != sorted(keys)

    # Every sample says where it is from.
    [source] = epoch[0]["__sources__"][0]
    print("the first sample is number", source.index, "in", source.shard)

    # The order is arithmetic: the same name and seed give the same stream, on every machine.
    again = islice(get_loader(dataset), 5)
    assert [batch["__key__"] for batch in again] == [batch["__key__"] for batch in epoch]
