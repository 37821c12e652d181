"""`energy-data prepare-media`: what is known about the media of a folder, for file stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from energy_data.cli.prepare import media_filter, media_options
from energy_data.data.decode.media import collect_files


@click.command("prepare-media")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@media_options
@click.option("--progress/--no-progress", hidden=True, expose_value=False)
@click.option("--num-workers", hidden=True, expose_value=False, type=int)
@click.option("--tmp-path", hidden=True, expose_value=False)  # for stores that are no file systems
def command(path: Path, **given: Any) -> None:
    """Note size and length of the images, audio and video files below a folder.

    Writes what Energon's `prepare-media` writes, `.nv-meta/index.sqlite`, for the
    `get_media_metadata` of `filesystem://` stores.
    """
    wanted = media_filter(given)
    if wanted is None:
        raise click.UsageError("say which files: give one of --media-metadata-by-...")
    click.echo(f"{path}: noted size and length of {collect_files(path, wanted):,} files")
