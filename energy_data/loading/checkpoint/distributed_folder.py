"""The state of a loader in a folder of `torch.distributed.checkpoint`."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from energy_data.errors import StateError
from energy_data.loading.checkpoint.run_state import listed
from energy_data.remote.cache_space import Range
from energy_data.remote.client import fetch_whole, held

# What torch raises for damaged files.
_DAMAGED = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
)


class _PlainValues(DefaultLoadPlanner):
    """Reads values that are no tensors, without unpickling objects."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Keep a value that was read."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def state_in_folder(folder: Path, key: str | None) -> dict[str, Any]:
    """Return the state of the whole run in a folder; see `read_state`."""
    if not (folder / ".metadata").is_file():
        raise StateError(
            f"{folder}: it is no folder of torch.distributed.checkpoint: it has no file "
            f"`.metadata`. Pass the `checkpoint_id` of `dcp.save`, or a file."
        )
    reader, planner = FileSystemReader(folder), _PlainValues(flatten_state_dict=False)
    fetch_whole(str(folder / ".metadata"))
    try:
        metadata = reader.read_metadata()
        names = set(metadata.state_dict_metadata)
        prefix = _prefix(names, folder, key)
        values: dict[str, Any] = dict.fromkeys(name for name in names if name.startswith(prefix))
        # As `dcp.load`, without its exchange between ranks.
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        planner.set_up_planner(values, metadata, is_coordinator=True)
        plan = planner.create_local_plan()
        with held([_range_of(item, metadata, folder) for item in plan.items], always=True):
            reader.read_data(plan, planner).wait()
    except _DAMAGED as error:
        raise StateError(
            f"{folder}: torch.distributed.checkpoint cannot read it ({type(error).__name__}: "
            f"{error}). Use another checkpoint."
        ) from error
    return _nested(prefix, planner.state_dict)


def _range_of(item: ReadItem, metadata: Metadata, folder: Path) -> Range:
    """Return where a value is in the files of a folder."""
    at = metadata.storage_data[item.storage_index]
    return str(folder / at.relative_path), at.offset, at.offset + at.length


def _prefix(names: set[str], folder: Path, key: str | None) -> str:
    """Return how the names of the values of the loader begin, such as `loader.`."""
    trees = [name for name in names if name == "tree" or name.endswith(".tree")]
    ends = [name.removesuffix("tree") for name in trees]
    found = sorted(end for end in ends if any(name.startswith(f"{end}places.") for name in names))
    if key is not None and f"{key}." in found:
        return f"{key}."
    if key is None and len(found) == 1:
        return found[0]
    called = listed([repr(prefix.removesuffix(".")) for prefix in found]) or "none"
    raise StateError(
        f"{folder}: it must have {'one loader' if key is None else f'a loader {key!r}'}, found "
        f"{called}. Pass the `key` of the loader, or look at what was saved."
    )


def _nested(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the state from its values by their full names."""
    state: dict[str, Any] = {}
    for name, value in values.items():
        *above, last = name.removeprefix(prefix).split(".")
        at = state
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return state
