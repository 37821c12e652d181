"""Edit the mixture in the middle of a run: what stayed goes on, what is new begins."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from webdataset import TarWriter

from energy_data import Loader, StateMismatchError, WorkerConfig, get_loader, get_train_dataset


def start(parts: list[dict[str, Any]]) -> Loader:
    """A run over some datasets; a metadataset may be a dict as well as a file."""
    meta = {"splits": {"train": {"blend": parts}}}
    return get_loader(get_train_dataset(meta, batch_size=10, worker_config=WorkerConfig(lanes=2)))


def keys(loader: Loader, batches: int) -> list[str]:
    """The keys of the next batches."""
    return [key for batch in islice(loader, batches) for key in batch["__key__"]]


with TemporaryDirectory() as name:
    for dataset in ("web", "books", "code"):
        (Path(name) / dataset).mkdir()
        with TarWriter(f"{name}/{dataset}/shard-0.tar") as tar:
            for number in range(300):
                tar.write({"__key__": f"{dataset}-{number}", "txt": "..."})
    web, books, code = ({"id": one, "path": f"{name}/{one}"} for one in ("web", "books", "code"))

    before = start([{**web, "weight": 1}, {**books, "weight": 1}])
    seen = keys(before, 20)
    state = json.loads(json.dumps(before.state_dict()))

    # Less web, more books, and code from now on. By default that is an error with the differences.
    after = start([{**web, "weight": 1}, {**books, "weight": 3}, {**code, "weight": 1}])
    try:
        after.load_state_dict(state)
    except StateMismatchError as error:
        print(error)
    else:
        raise AssertionError("an edited mixture must not go unnoticed")

    after.load_state_dict(state, on_mismatch="keep_matching")
    seen += keys(after, 30)
    print(dict(Counter(key.partition("-")[0] for key in seen)))

    # 100 of 300 books before, 180 after: none of them twice.
    of_books = [key for key in seen if key.startswith("books")]
    assert len(of_books) == len(set(of_books)) == 280
