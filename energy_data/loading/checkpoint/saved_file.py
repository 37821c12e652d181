"""Saved states in files: JSON, `torch.save`, and folders of `torch.distributed.checkpoint`."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from energy_data.errors import SpecError, StateError, StateMismatchError, StructureError
from energy_data.loading.checkpoint.run_state import RunState, of_energon
from energy_data.loading.checkpoint.whole_run import merge
from energy_data.remote.client import apart, held
from energy_data.remote.mirror_paths import is_url
from energy_data.remote.mirrors import mirror

_DAMAGED = (EOFError, OSError, RuntimeError, ValueError, pickle.UnpicklingError)


def read_state(path: str | os.PathLike[str], *, key: str | None = None) -> dict[str, Any]:
    """Return the state in a file or in a folder of `torch.distributed.checkpoint`.

    The state of a folder is that of the whole run, whatever `lanes` a loader has, so
    `loader.load_state_dict(read_state(folder))` restores on any number of ranks that divides the
    lanes of the run. Every rank may call it: it reads the state only, and communicates nothing.
    torch stores the index of a folder as a pickle, and reads it as such: read only folders that you
    trust. Nothing else is unpickled. A file with the states of several ranks, in a list, gives the
    state of the whole run.

    path: also a URL in an object store, which is reached as the environment says. Of a folder
    there, only the parts of the loader are fetched.
    key: what the loader is called in the folder, such as "loader"; None: the only one there is.
    Raises StateError if there is no such state, or if it cannot be read.
    """
    if not is_url(os.fspath(path)):
        return _state_at(Path(path), key)
    try:
        with apart():  # the object may have changed when it is read again
            found = Path(mirror(os.fspath(path)))
            size = 0 if found.is_dir() else found.stat().st_size
            with held([(str(found), 0, size)] * bool(size), always=True):
                return _state_at(found, key)
    except (SpecError, StructureError) as error:  # of the store
        raise StateError(str(error)) from error


def _state_at(path: Path, key: str | None) -> dict[str, Any]:
    if path.is_dir():
        # It imports torch.distributed.checkpoint, which takes half a second.
        from energy_data.loading.checkpoint.distributed_folder import (  # noqa: PLC0415
            state_in_folder,
        )

        return state_in_folder(path, key)
    states = _in_file(path)
    if len(states) == 1:
        state: dict[str, Any] = states[0]
        return state
    if not states:
        raise StateError(f"{path}: there is none in it. Look at what was saved.")
    return merge([RunState.from_dict(state) for state in states]).to_dict()


def _in_file(path: Path) -> list[Any]:
    """Return the states in a file: one, or a list of those of several ranks."""
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise StateError(f"{path}: it cannot be read ({error}). Pass what was saved.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        try:
            found = torch.load(path, weights_only=True)
        except _DAMAGED as error:
            if named := re.search(r"megatron\.energon[a-z_.]*\.(\w+)", str(error)):
                raise StateMismatchError(f"{path}: {of_energon(named[1])}") from error
            raise StateError(
                f"{path}: it is neither JSON nor of torch.save. Pass what was saved of "
                f"`state_dict()` or `save_state_rank()`, by itself."
            ) from error
    return found if isinstance(found, list) else [found]
