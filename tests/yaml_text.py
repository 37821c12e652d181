"""Metadatasets from YAML text."""

from __future__ import annotations

from pathlib import Path

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.files import File
from energy_data.config.load import LoadedMetadataset, _folder, _loaded
from energy_data.config.yaml_nodes import read_text


def parse_metadataset(
    text: str | bytes, *, base_dir: str | Path | None = None, name: str = "<text>"
) -> LoadedMetadataset:
    """Return the metadataset in YAML text; otherwise as `load_metadataset`."""
    diagnostics = Diagnostics()
    value = read_text(text, name, diagnostics)
    return _loaded(value, File(name, "", _folder(base_dir), {}), diagnostics)
