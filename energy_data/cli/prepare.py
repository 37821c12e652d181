"""`energy-data prepare`: indices next to the files, and `.nv-meta` with splits and sample type."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from energy_data.cli.options import (
    DatasetPath,
    counting,
    part_options,
    progress_bar,
    progress_option,
    tmp_option,
    workers_option,
)
from energy_data.cli.prepare_media import media_filter, media_options
from energy_data.cli.prepare_prompts import (
    TYPES,
    ask_definition,
    ask_ratio,
    show_samples,
)
from energy_data.cli.read_only import keep_in_cache
from energy_data.config.load import load
from energy_data.config.opening import prepare_joins
from energy_data.data.decode.media import collect_media
from energy_data.data.nv_meta import DATASET, FOLDER, NvMeta, has_split
from energy_data.data.part import index_files
from energy_data.data.prepare import ALL_TRAIN, Summary, prepare, prepare_part, reframer
from energy_data.data.registry import format_of, open_source
from energy_data.data.shards import ShardKind, find_shards
from energy_data.data.splits import parse_patterns
from energy_data.data.tar.source import TARS
from energy_data.data.typed.dataset_yaml import (
    CRUDE,
    LOADER,
    definition_of,
    loader_of,
)
from energy_data.errors import ReadOnlyError, shown
from energy_data.remote.mirror_paths import cache_folder, is_mirrored

_OF_FINISH = {
    "split_ratio": "--split-ratio",
    "split_parts": "--split-parts",
    "shuffle_tars": "--shuffle-tars",
    "sample_type": "--sample-type",
    "field_map": "--field-map",
    "skip_dataset_yaml": "--skip-dataset-yaml",
    "fix_duplicates": "--fix-duplicates",
    "media": "--media-metadata-by-...",
    "tmp_path": "--tmp-path",
}
"""The options that are not for a part, but for the command that finishes all."""


def _field_map(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, str] | None:
    """Return the value of `--field-map`."""
    try:
        field_map = None if text is None else dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise click.BadParameter(f"must be a JSON object, {error}.") from error
    if field_map and not all(isinstance(one, str) for one in field_map.values()):
        raise click.BadParameter("must be a JSON object that maps fields to parts.")
    return field_map


@click.command("prepare")
@click.argument("path", type=DatasetPath())
@click.option(
    "--split-ratio",
    metavar="TRAIN,VAL,TEST",
    help=f"Shares of the shards, in order of their names.  [default: as before, or {ALL_TRAIN}]",
)
@click.option(
    "--split-parts",
    multiple=True,
    metavar="PART:PATTERN",
    help="Names of the shards of a part, as a pattern: 'train:shard_0.*', 'val:*_val.tar'; may be "
    "repeated.",
)
@click.option(
    "--exclude", metavar="REGEX", help="Leave out shards whose names match, in any place."
)
@click.option(
    "--shuffle-tars", is_flag=True, help="Assign shards to the parts of a ratio in random order."
)
@click.option(
    "--sample-type",
    type=click.Choice(list(TYPES)),
    metavar="NAME",
    help="Type of the samples, such as CaptioningSample or CrudeWebdataset.",
)
@click.option(
    "--field-map",
    callback=_field_map,
    metavar="JSON",
    help='Which part is which field of the type, such as \'{"image": "jpg,png"}\'. Without it, a '
    "Python file with a function to fill in is written.",
)
@click.option("--skip-dataset-yaml", is_flag=True, help="Write no dataset.yaml.")
@click.option(
    "--dataset-yaml-name",
    default=DATASET,
    show_default=True,
    metavar="NAME",
    help="Name of the dataset.yaml that is written.",
)
@workers_option("one per GiB, at most one per CPU")
@click.option(
    "--force-overwrite",
    "--force",
    "force",
    is_flag=True,
    help="Prepare a prepared dataset again. Its split is kept unless another one is given.",
)
@click.option(
    "--tar-index-only", is_flag=True, help="Index the shards again; keep splits and types."
)
@click.option(
    "--fix-duplicates",
    is_flag=True,
    help="If several shards have the same key, rewrite the tars with a folder in front of all "
    "names.",
)
@click.option(
    "--reframe",
    is_flag=True,
    help="If samples of a .jsonl.zst or .jsonl.gz file cannot be read at random, write the file "
    "again in small frames.",
)
@click.option(
    "--sqlite/--no-sqlite",
    default=None,
    help="Write index.sqlite, which finds each part of tars by its key.  [default: on for tars]",
)
@part_options(
    "Index shards N, N + M, N + 2 M, ... only, with --of M; any part anywhere, at any time."
)
@click.option(
    "--finish", is_flag=True, help="Write `.nv-meta` of all parts, as one `prepare` would."
)
@progress_option
@click.option(
    "--interactive/--non-interactive",
    default=None,
    help="Ask for options that are not given.  [default: on a terminal]",
)
@media_options
@tmp_option
def command(path: Path, **given: Any) -> None:
    """Prepare a dataset, or the joins in a metadataset.

    For a folder of shards (tars, or files of one other format), writes `.nv-meta` with the splits,
    and next to each tar or JSONL file its index. For tars that is what Energon's `prepare` writes.

    For a single file, writes its index, if it needs one. For a metadataset (.yaml), writes which
    samples its joins put together.

    PATH may be a URL such as s3://bucket/coco: what is written is written there. What was stopped
    continues where it was.
    """
    given["media"] = media_filter(given)
    interactive = given.pop("interactive")
    asking = sys.stdin.isatty() if interactive is None else interactive
    if given["media"] and (is_mirrored(str(path)) or not path.is_dir()):
        raise click.UsageError("--media-metadata-by-...: it is for folders of tars on a disk.")
    _check_parts(path, given)
    try:
        if given["part"] is not None:
            _prepare_part(path, given)
        elif path.is_dir():
            _prepare_folder(path, given, asking=asking and not given["tar_index_only"])
        elif path.suffix in (".yaml", ".yml"):
            _prepare_metadataset(path)
        else:
            _prepare_file(path, given)
    except ReadOnlyError as error:
        written = {"exclude": "--exclude", "finish": "--finish", "of": "--part", **_OF_FINISH}
        asked = [option for name, option in written.items() if given[name]]
        count = keep_in_cache(path, error, asked, given["num_workers"], shown=given["progress"])
        _say(f"{error}\n{path}: {count:,} samples, which stay one part: their store is read-only.")
        _say(f"Their indices are in the cache {cache_folder()}, for runs on this machine.")


def _say(text: str) -> None:
    """Print a text, with URLs in place of paths in a cache."""
    click.echo(shown(text))


def _check_parts(path: Path, given: Mapping[str, Any]) -> None:
    """Raise UsageError if --part, --of and --finish do not go together."""
    is_part = given["part"] is not None
    if is_part != (given["of"] is not None):
        raise click.UsageError("--part and --of go together: give both, or neither.")
    if is_part and given["finish"]:
        raise click.UsageError("--part and --finish exclude each other: finish after all parts.")
    if (is_part or given["finish"]) and not path.is_dir():
        raise click.UsageError(f"--part, --finish: they are for folders, found {path}.")


def _prepare_metadataset(path: Path) -> None:
    """Compute the joins of all splits. Runs no code that the metadataset names."""
    prepared = prepare_joins(load(shown(str(path))), open_source=open_source)
    if not prepared:
        _say(f"{path}: it has no joins, so there is nothing to prepare")
    for one in prepared:
        _say(f"{path}: {one.split}: {one.id}: {one.table.rows:,} samples, {one.table.path}")


def _prepare_file(path: Path, given: Mapping[str, Any]) -> None:
    """Index a file, or the files that it lists."""
    kind = format_of(path).shards
    if kind is None:
        raise click.UsageError(f"{path}: files of its format need no index.")
    for name in ("split_ratio", "split_parts", "exclude", "sample_type"):
        if given[name]:
            raise click.UsageError(
                f"--{name.replace('_', '-')}: it is for folders, found the file {path}. For a part "
                "of a file, write `subset` in the metadataset."
            )
    rewrite = reframer(path, kind) if given["reframe"] else None
    with counting(given["progress"], "Writing frames") as progress:
        count = index_files(str(path), kind, rewrite, progress)
    _say(f"{path}: {count:,} samples")


def _prepare_part(path: Path, given: Mapping[str, Any]) -> None:
    """Index one part of the shards of a folder."""
    for name, option in _OF_FINISH.items():
        if given[name]:
            raise click.UsageError(f"{option}: a part is only indexed. Give it with --finish.")
    kind, began = _kind_of(path, given), perf_counter()
    with counting(given["progress"], "Indexing shards") as progress:
        done = prepare_part(
            path,
            given["part"],
            given["of"],
            **_indexing(given, kind),
            force=given["force"],
            progress=progress,
        )
    state = "was indexed before" if done.was_indexed else f"{perf_counter() - began:.1f} s"
    _say(
        f"{path}, part {given['part']} of {given['of']}: {done.num_samples:,} samples in "
        f"{_shards(done.num_shards)}, {state}"
    )


def _kind_of(path: Path, given: Mapping[str, Any]) -> ShardKind:
    """Return what the shards of a folder are."""
    kind = format_of(path, exclude=given["exclude"], prepared=given["tar_index_only"]).shards
    if kind is None:
        raise click.UsageError(f"{path}: datasets of its format are not prepared.")
    return kind


def _indexing(given: Mapping[str, Any], kind: ShardKind) -> dict[str, Any]:
    """Return the options that say what is indexed, and how."""
    return {
        "kind": kind,
        "exclude": given["exclude"],
        "index_only": given["tar_index_only"],
        "sqlite": kind is TARS if given["sqlite"] is None else given["sqlite"],
        "reframe": given["reframe"],
        "workers": given["num_workers"],
    }


def _prepare_folder(path: Path, given: Mapping[str, Any], *, asking: bool) -> None:
    kind = _kind_of(path, given)
    _check(path, given, kind)
    force = given["force"]
    if asking and not force and NvMeta.of(path) is not None:
        click.confirm("The dataset is prepared already. Prepare it again?", abort=True)
        force = True
    split = parse_patterns(given["split_parts"]) or given["split_ratio"]
    if asking and not split:
        split = ask_ratio(
            path, list(find_shards(path, kind, given["exclude"])), has_split=has_split(path)
        )
    typed = not given["skip_dataset_yaml"] and (asking or given["sample_type"] is not None)
    began = perf_counter()
    with progress_bar(shown=given["progress"]) as bar:
        task = bar.add_task("Indexing shards", total=None)

        def declare(summary: Summary) -> dict[str, str]:
            bar.stop()  # before questions
            if asking and typed and kind is TARS:
                show_samples(path, next(iter(summary.shard_counts)))
            return _declaration(path, summary, given, asking=asking) if typed else {}

        summary = prepare(
            path,
            **_indexing(given, kind),
            split=split,
            force=force,
            shuffle=given["shuffle_tars"],
            fix_duplicates=given["fix_duplicates"],
            declare=declare if typed or given["skip_dataset_yaml"] else None,
            tmp=given["tmp_path"],
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            finish=given["finish"],
        )
    for line in _report(summary, perf_counter() - began):
        _say(line)
    if given["media"]:
        with counting(given["progress"], "Reading media") as progress:
            count = collect_media(
                path,
                given["media"],
                workers=given["num_workers"],
                tmp=given["tmp_path"],
                progress=progress,
            )
        _say(f"  recorded size and length of {count:,} files")


def _check(path: Path, given: Mapping[str, Any], kind: ShardKind) -> None:
    """Raise UsageError for invalid options before anything is written."""
    if given["split_ratio"] is not None and given["split_parts"]:
        raise click.UsageError("--split-ratio and --split-parts exclude each other: give one.")
    if given["media"] and kind is not TARS:
        problem = f"they are for tars, and {path} has {kind.suffix} files"
        raise click.UsageError(f"--media-metadata-by-...: {problem}.")
    if given["media"] and (given["tar_index_only"] or given["sqlite"] is False):
        raise click.UsageError("--media-metadata-by-...: they need a new index.sqlite.")
    if given["field_map"] is not None and given["sample_type"] is None:
        raise click.UsageError("--field-map: it needs a --sample-type.")


def _declaration(
    path: Path, summary: Summary, given: Mapping[str, Any], *, asking: bool
) -> dict[str, str]:
    """Return dataset.yaml, and a file with functions, from the options and the answers."""
    kind, field_map, overwrite = given["sample_type"], given["field_map"], False
    has_loader = (path / FOLDER / LOADER).exists()
    if asking:
        answers = ask_definition(kind, field_map, summary.extensions, loader_exists=has_loader)
        if answers is None:
            click.echo("No dataset.yaml was written: samples are crude until there is one.")
            return {}
        kind, field_map, overwrite = answers
    found = None if kind == CRUDE else TYPES[kind]
    texts = {given["dataset_yaml_name"]: definition_of(found, field_map)}
    if found is not None and field_map is None and (overwrite or not has_loader):
        texts[LOADER] = loader_of(found, summary.extensions)
        _say(f"Fill in {path}/{FOLDER}/{LOADER}, and allow it where the dataset is used.")
    return texts


def _report(summary: Summary, seconds: float) -> list[str]:
    counts = summary.shard_counts
    lines = [
        f"{summary.path}: {summary.num_samples:,} samples in {_shards(len(counts))}, "
        f"{seconds:.1f} s"
    ]
    for part, shards in summary.split_parts.items():
        samples = sum(counts[shard] for shard in shards)
        lines.append(f"  {part:<6} {samples:>10,} samples in {_shards(len(shards))}")
    lines.append(f"  each sample has some of: {', '.join(summary.extensions)}")
    if empty := summary.empty_shards:
        lines.append(f"  left out {_shards(len(empty))} without samples, {empty[0]} first")
    if unused := summary.unused_shards:
        lines.append(
            f"  in no part: {_shards(len(unused))}, {unused[0]} first; to use all shards, pass "
            "--force and --split-ratio or --split-parts"
        )
    return lines


def _shards(count: int) -> str:
    return f"{count:,} shard{'' if count == 1 else 's'}"
