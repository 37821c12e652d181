"""Programs written as those of Megatron-LM, Megatron-Bridge and NeMo, and nothing but `install`."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile

import pytest
from energon.data import CAPTIONS, CRUDE, make_dataset, png
from energon.programs.train import PROGRAMS, SAVED

from energy_data.energon import BaseWebdatasetFactory

LAST = 6
BLEND = """
__module__: megatron.energon
__class__: Metadataset
splits:
  train: {datasets: [{weight: 1.0, path: captions, subflavors: {augmentation: false}}]}
  val: {datasets: [{weight: 1.0, path: captions, subflavors: {augmentation: false}}]}
"""
CHATS = """
__module__: energon.programs.bridge
__class__: ChatWebdataset
field_map: {imgs: jpgs, conversation: conversation.json}
subflavors: {}
"""


def write_chats(folder):
    folder.mkdir()
    for part, numbers in {"train": range(60), "val": range(60, 70)}.items():
        with tarfile.open(folder / f"{part}-shard-0.tar", "w") as tar:
            for number in numbers:
                said = json.dumps([{"role": "user", "x": number / 60}]).encode()
                for name, data in ("conversation.json", said), ("jpgs", pickle.dumps([png(0)] * 2)):
                    member = tarfile.TarInfo(f"{number:04d}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    BaseWebdatasetFactory.prepare_dataset(
        folder,
        sorted(tar.name for tar in folder.rglob("*.tar")),
        split_parts_patterns=[("train", "train-shard-.*"), ("val", "val-shard-.*")],
        shuffle_seed=None,
        workers=2,
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(CHATS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, gloo_ranks):
    """Runs on two data-parallel ranks, each of two tensor-parallel ones, and on 1 and 4 from it."""
    folder = tmp_path_factory.mktemp("megatron")
    make_dataset(folder / "captions", CAPTIONS, count=60)
    make_dataset(folder / "texts", CRUDE, count=60, images=False)
    (folder / "captions.yaml").write_text(BLEND)
    write_chats(folder / "chats")
    for ranks, first, tensor in [(4, 0, 2), (1, SAVED, 1), (4, SAVED, 1)]:
        call = f"main({str(folder)!r}, {first}, {LAST}, {tensor})"
        gloo_ranks.run_well(f"from energon.programs.train import main\n{call}", folder, ranks)
        if tensor == 2:
            give_new_ranks_a_file(folder)
    return folder


def give_new_ranks_a_file(folder):
    """All files of ranks are of the run, so a copy of any serves a rank that is new."""
    for first in folder.rglob("train_dataloader_dprank000.pt"):
        for rank in (2, 3):
            shutil.copy(first, first.with_name(f"train_dataloader_dprank{rank:03d}.pt"))


def microbatches(folder, name, first, ranks):
    """The micro-batches of a run after the saved step, in their order, and their losses."""
    files = [folder / f"{name}-{first}-{ranks}-{rank}.json" for rank in range(ranks)]
    rounds = zip(*(json.loads(file.read_text()) for file in files), strict=True)
    return [(x, loss) for lines in rounds for step, x, loss in lines if step >= SAVED]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_of_two_ranks_continues_on_others_with_equal_losses(folder, name, ranks):
    unbroken, resumed = microbatches(folder, name, 0, 2), microbatches(folder, name, SAVED, ranks)
    assert [x for x, _ in resumed] == [x for x, _ in unbroken]
    assert [loss for _, loss in resumed] == pytest.approx([loss for _, loss in unbroken], rel=1e-5)
    assert len(unbroken) == 4 * (LAST - SAVED)
