"""The files of a dataset by key, whatever kind of dataset it is."""

from __future__ import annotations

from pathlib import Path

from energy_data.sources.jsonl import is_jsonl
from energy_data.sources.jsonl_store import JsonlFileStore
from energy_data.sources.tar_store import WebdatasetFileStore
from energy_data.storage.file_store import FileStore


def open_store(path: str | Path) -> FileStore[bytes]:
    """Return the parts of all samples of a dataset, by key. SpecError if it cannot be.

    path: a prepared folder of tars, or a JSONL file.
    """
    return JsonlFileStore(path) if is_jsonl(path) else WebdatasetFileStore(path)
