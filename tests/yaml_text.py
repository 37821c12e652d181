"""Metadatasets from YAML text."""

from __future__ import annotations

import os
from pathlib import Path

from energy_data.config.leaves import File
from energy_data.config.load import LoadedMetadataset, checked
from energy_data.config.yaml_nodes import Diagnostics, read_text


def parse_metadataset(
    text: str | bytes, *, base_dir: str | Path | None = None, name: str = "<text>"
) -> LoadedMetadataset:
    """Return the metadataset in YAML text; otherwise as `load`."""
    diagnostics = Diagnostics()
    file = File(name, "", os.path.realpath(base_dir or "."))
    return checked(file, read_text(text, name, diagnostics), diagnostics)
