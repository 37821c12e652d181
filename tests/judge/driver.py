"""Runs in the environment of the real Energon: does what it is told, line by line, and answers."""

import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path

import mixtures
import torch
from click.testing import CliRunner
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from megatron.energon.cache.file_store import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from megatron.energon.epathlib import EPath
from megatron.energon.tools.prepare import command as prepare_command
from plain import digest, plain_sample


@stateless
def uncooked(sample):
    return sample


class AsTheyAre(DefaultTaskEncoder):
    cookers = (Cooker(uncooked),)

    def __init__(self, decoder):
        super().__init__()
        self.decoder = None if decoder is None else SampleDecoder(**decoder)

    def batch(self, samples):
        # Here, as torch's loader makes tensors of arrays on the way out.
        return json.dumps([plain_sample(sample) for sample in samples])


def read(path, *, split_part, config, decoder, training):
    where = {"path": str(path), "split_part": split_part, **config}
    text = {
        "__module__": "megatron.energon",
        "__class__": "MetadatasetV2",
        "splits": {"train" if training else "val": where},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        json.dump(text, file)
    options = {
        "batch_size": 1,
        "worker_config": WorkerConfig(rank=0, world_size=1, num_workers=0),
        "task_encoder": AsTheyAre(decoder),
    }
    if training:
        options |= {"shuffle_buffer_size": 10, "max_samples_per_sequence": 3, "repeat": False}
        dataset = get_train_dataset(file.name, **options)
    else:
        dataset = get_val_dataset(file.name, **options)
    return [sample for batch in get_loader(dataset) for sample in json.loads(batch)]


def prepare(path, *, options, answers):
    os.chdir("/tmp")
    said = None if answers is None else "".join(f"{answer}\n" for answer in answers)
    done = CliRunner().invoke(prepare_command, [str(path), *options], input=said)
    if done.exit_code:
        raise RuntimeError(done.output) from done.exception
    return done.output


def store(path):
    path = EPath(path)
    if str(path).endswith(".jsonl"):
        kept = JsonlFileStore(path)
        return [digest(kept[f"{number}.json"][0]) for number in range(len(kept))]
    kept = WebdatasetFileStore(path)
    parts = sorted(list(one) for one in kept.list_all_sample_parts())
    return [[*one, digest(kept[one[0]][0])] for one in parts if one[1]]


def media(path, *, keys):
    kept = SystemFileStore(EPath(path))
    return [asdict(kept.get_media_metadata(key)) for key in keys]


def state(path, *, file, ranks):
    """Save the states of some ranks, after some batches, as programs do."""
    saved = []
    for rank in range(ranks):
        config = WorkerConfig(rank=rank, world_size=ranks, num_workers=1)
        options = {"batch_size": 2, "shuffle_buffer_size": 5, "max_samples_per_sequence": 2}
        dataset = get_train_dataset(
            path, worker_config=config, task_encoder=AsTheyAre({}), **options
        )
        loader = get_savable_loader(dataset)
        for _, _batch in zip(range(3), loader):  # noqa: B905 - it is endless
            pass
        saved.append(loader.save_state_rank())
    torch.save(saved if ranks > 1 else saved[0], file)


JOBS = {
    "read": read,
    "state": state,
    "prepare": prepare,
    "store": store,
    "media": media,
    **mixtures.JOBS,
}


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"done": JOBS[job.pop("job")](Path(job.pop("path")), **job)}
        except BaseException:  # noqa: BLE001 - all is told
            answer = {"failed": traceback.format_exc()}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
