"""Every block of the two texts that this package began with runs, after the import is changed."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from data import CAPTIONS, IMAGES, make_dataset
from seeds import BLENDING, blocks_of_metadataset, our_import, python_of_blending

pytestmark = pytest.mark.skipif(not BLENDING.exists(), reason="the texts are not here")

# What the texts refer to and do not show; `batch_data` and `batch` are both in use there.
PRELUDE = """
from dataclasses import dataclass
from itertools import islice
from typing import List, Optional, Tuple, Union
import torch
from energy_data.energon import *

@dataclass
class ImageBatch:
    __key__: List[str]
    image: torch.Tensor

@dataclass
class CaptioningBatch(ImageBatch):
    caption: List[str]

@dataclass
class ImageWithOptionalCaptionBatch:
    images: torch.Tensor
    captions: List[Optional[str]]

class ImageTask(DefaultTaskEncoder):
    def encode_batch(self, batch):
        return ImageBatch(__key__=batch.__key__, image=batch.image)

class CaptioningTask(DefaultTaskEncoder):
    def encode_batch(self, batch):
        return CaptioningBatch(__key__=batch.__key__, image=batch.image, caption=batch.caption)

def lengths(captions):
    return torch.tensor([len(caption) for caption in captions])

class Optimizer:
    steps = 0
    def step(self):
        self.steps += 1

optimizer = Optimizer()

def forward_and_compute_loss(images, text):
    return (images.sum() + text.sum()).requires_grad_()
"""

# Errors of the text itself: an argument without default that is not given, a misspelt field.
MENDED = {
    "tokenizer: Callable[[List[str]], torch.Tensor],": "tokenizer=lengths,",
    "forward_and_compute_loss(sample.image,": "forward_and_compute_loss(sample.images.float(),",
    "for sample in train_loader:": "for sample in islice(train_loader, 10):",
}

AFTER = [
    """
    kinds = [type(batch).__name__ for batch in islice(train_loader, 160)]
    assert abs(kinds.count("ImageBatch") - 96) <= 16, kinds.count("ImageBatch")
    seen = [key for batch in val_loader for key in batch.__key__]
    assert len(seen) == len(set(seen)) == 90
    """,
    """
    for batch in islice(train_loader, 8):
        assert type(batch) is CaptioningBatch and batch.image.shape == (32, 3, 8, 8)
        from_first = sum("captioning_dataset_1" in key[0] for key in batch.__key__)
        assert abs(from_first - 19.2) < 2, from_first
    """,
    """
    for batch in islice(train_loader, 8):
        assert batch.images.shape == (32, 3, 8, 8)
        assert abs(sum(caption is None for caption in batch.captions) - 19.2) < 2
    """,
    """
    weights = [batch.weight for batch in islice(train_loader, 40)]
    assert set(weights) == {0.2, 0.8} and abs(weights.count(0.2) - 20) <= 16
    assert optimizer.steps == 10
    """,
]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my")
    for name in ("captioning_dataset", "captioning_dataset_1", "captioning_dataset_2"):
        make_dataset(folder / "dataset" / name, CAPTIONS, count=40)
    for name in ("captioning_dataset1", "captioning_dataset2"):
        make_dataset(folder / "dataset" / name, CAPTIONS, count=40)
    make_dataset(folder / "dataset" / "image_dataset", IMAGES, count=50)
    return folder / "dataset"


ALL = """
for program in sorted(Path().glob("part-*.py")):
    exec(compile(program.read_text(), program, "exec"), globals())
    print(program, "ran")
"""


def test_the_programs_about_blending_and_mixing_run(datasets, gloo_ranks):
    programs = [our_import(program) for program in python_of_blending()]
    # The lines that are commented out, too. 80 samples make 3 batches of 32; ten times as many in
    # an epoch; ten of them have been taken.
    programs.append(programs[1].replace("#mix_dataset =", "mix_dataset ="))
    after = [*AFTER, "assert sum(1 for _ in train_loader) == 20"]
    for number, program in enumerate(programs):
        for said, mended in MENDED.items():
            program = program.replace(said, mended)
        program = program.replace("/my/dataset", str(datasets)) + textwrap.dedent(after[number])
        (datasets / f"part-{number}.py").write_text(program)
    printed = gloo_ranks.run_alone(PRELUDE + "from pathlib import Path\n" + ALL, datasets)
    assert printed.count("ran") == 5


OVERRIDDEN = """
from collections import Counter
ImageTaskBatch = CaptioningRawBatch = object
{method}
def batches(encoder):
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset("advanced.yaml", batch_size=4, shuffle_buffer_size=100,
        max_samples_per_sequence=100, worker_config=config, task_encoder=encoder)
    return [(batch.__key__, batch.__subflavors__) for batch in islice(get_loader(dataset), 200)]

own = batches(CaptioningTaskEncoder())
assert own == batches(DefaultTaskEncoder())
drawn = Counter(key.split("-")[0] for keys, _ in own for key in keys)
assert abs(drawn["coco"] - 500) <= 16, drawn
sizes = Counter(flavors["augmentation_type"] for _, all_ in own for flavors in all_)
assert abs(sizes["small_images"] - 500) <= 16, sizes
"""


def test_the_metadatasets_run_and_an_overridden_blend_is_that_of_the_default(tmp_path, gloo_ranks):
    for name in ("coco", "coyo"):
        make_dataset(tmp_path / name, CAPTIONS, count=30)
    simple, program, advanced, method = blocks_of_metadataset()
    assert list(yaml.safe_load(simple)["splits"]) == ["train", "val", "test"]
    (tmp_path / "demo-metadataset.yaml").write_text(simple)
    (tmp_path / "advanced.yaml").write_text(advanced)
    both = our_import(program) + PRELUDE + OVERRIDDEN.format(method=our_import(method))
    printed = gloo_ranks.run_alone(both, tmp_path)
    assert printed.startswith("CaptioningSample(__key__=['co")
