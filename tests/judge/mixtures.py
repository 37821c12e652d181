"""Jobs of the driver about metadatasets. Runs in the environment of the real Energon."""

from itertools import islice

from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    prepare_metadataset,
    stateless,
)
from megatron.energon.epathlib import EPath
from plain import plain_sample

ONE = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=2)


@stateless
def cook(sample, **aux):
    if aux:
        key = sample["__key__"]
        sample["aux"] = {name: store.get(f"{key}.txt", sample).hex() for name, store in aux.items()}
    return sample


class AsTheyAre(DefaultTaskEncoder):
    cookers = (Cooker(cook),)
    decoder = None

    def batch(self, samples):
        return samples


def loaded(path, *, split_part="train", training=True):
    """Return the datasets of a split with their weights and repetitions; fails if it is refused."""
    found = load_dataset(EPath(path)).get_datasets(
        training=training, split_part=split_part, worker_config=ONE
    )
    return [
        [str(getattr(one.dataset, "path", "join")), one.weight, one.repetitions]
        for one in found.datasets
    ]


def samples(path, *, split_part="train", training=True, count=None, repeat=True):
    """Return the samples of a split, in the order in which they come."""
    options = {
        "split_part": split_part,
        "batch_size": 1,
        "worker_config": ONE,
        "task_encoder": AsTheyAre(),
    }
    if training:
        options |= {"shuffle_buffer_size": 4, "max_samples_per_sequence": 3, "repeat": repeat}
        dataset = get_train_dataset(EPath(path), **options)
    else:
        dataset = get_val_dataset(EPath(path), **options)
    ONE.worker_activate(sample_index=0)
    try:
        return [plain_sample(sample) for [sample] in islice(dataset, count)]
    finally:
        ONE.worker_deactivate()


def joins(path):
    """Compute the joins of a metadataset, as `energon prepare` does; return the files."""
    prepare_metadataset(EPath(path))
    return sorted(str(file) for file in path.parent.glob(f"{path.name}.cache/*"))


JOBS = {"loaded": loaded, "samples": samples, "joins": joins}
