"""`energy-data prepare-media`: sizes and lengths of media files; and the options for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from energy_data.cli.options import counting, progress_option, tmp_option, workers_option
from energy_data.data.decode.media import MediaFilter, collect_files
from energy_data.remote.mirror_paths import is_url


def media_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select media files to a command."""
    flag = partial(click.option, is_flag=True)
    about = "Record size and length of images, audio and video, recognised by their"
    by_glob = "Record size and length of the files whose names match, such as '*.jpg,*.mp4'."
    command = flag("--media-metadata-by-extension", help=f"{about} extensions.")(command)
    command = flag("--media-metadata-by-header", help=f"{about} first bytes.")(command)
    return click.option("--media-metadata-by-glob", metavar="PATTERNS", help=by_glob)(command)


class _DiskFolder(click.Path):
    """A folder on a disk: its files are read by their paths."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if is_url(value):
            self.fail(f"{value}: files in a store are not read. Name a folder on a disk.")
        return super().convert(value, param, ctx)


@click.command("prepare-media")
@click.argument("path", type=_DiskFolder(exists=True, file_okay=False, path_type=Path))
@media_options
@progress_option
@workers_option("one per GiB or 1,024 files, at most 16")
@tmp_option
def command(path: Path, **given: Any) -> None:
    """Record sizes and lengths of media files below a folder.

    PATH is a folder of images, audio and video. Choose the files with one of the options
    --media-metadata-by-...

    Writes what Energon's `prepare-media` writes, `.nv-meta/index.sqlite`, for the
    `get_media_metadata` of `filesystem://` stores.
    """
    wanted = media_filter(given)
    if wanted is None:
        raise click.UsageError("choose the files: pass one of --media-metadata-by-...")
    with counting(given["progress"], "Reading media") as progress:
        count = collect_files(
            path,
            wanted,
            workers=given["num_workers"],
            tmp=given["tmp_path"],
            progress=progress,
        )
    click.echo(f"{path}: recorded size and length of {count:,} files")


def media_filter(given: dict[str, Any]) -> MediaFilter | None:
    """Remove the options of `media_options` from `given`, and return what they select.

    Raises UsageError if more than one is given.
    """
    glob, header, extension = (
        given.pop(f"media_metadata_by_{how}") for how in ("glob", "header", "extension")
    )
    if sum(map(bool, (glob, header, extension))) > 1:
        raise click.UsageError("--media-metadata-by-...: they exclude each other: give one.")
    if glob:
        return MediaFilter("GLOB", tuple(glob.split(",")))
    return MediaFilter("HEADER") if header else MediaFilter("EXTENSION") if extension else None
