"""Two datasets blended 3 : 1 by a metadataset, and validated on one of them."""

from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from webdataset import TarWriter

from energy_data import WorkerConfig, get_loader, get_train_dataset, get_val_dataset

METADATASET = """
splits:
  train:
    blend:
      - weight: 3
        path: ./books
        subflavors: {style: long}
      - weight: 1
        path: ./notes
        subflavors: {style: short}
  val:
    path: ./notes
    split_part: train             # a folder that was not prepared has this part only
"""


def make(folder: Path, count: int) -> None:
    """Write a dataset of short texts."""
    folder.mkdir()
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for number in range(count):
            tar.write({"__key__": f"{folder.name}-{number}", "txt": f"{folder.name} {number}"})


with TemporaryDirectory() as name:
    folder = Path(name)
    make(folder / "books", 100)
    make(folder / "notes", 10)
    meta = folder / "mixture.yaml"
    meta.write_text(METADATASET)

    run = WorkerConfig(lanes=2)
    loader = get_loader(get_train_dataset(meta, batch_size=8, worker_config=run))
    drawn: Counter[str] = Counter()
    for number, batch in enumerate(islice(loader, 10), 1):
        drawn.update(subflavors["style"] for subflavors in batch["__subflavors__"])
        print(f"after batch {number:2}: {dict(drawn)}")
    assert drawn == {"long": 60, "short": 20}  # not about 3 : 1, but 3 : 1

    # Validation: each sample once, in order, one short batch at the end, the same every time.
    validation = get_loader(get_val_dataset(meta, batch_size=4, worker_config=run))
    for _ in range(2):
        sizes = [len(batch["txt"]) for batch in validation]
        print("batches of validation:", sizes)
        assert sizes == [4, 4, 2]
