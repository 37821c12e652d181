"""Datasets of the Hugging Face Hub by name, read from the Arrow files that `datasets` writes.

source = open_source("hf://datasets/HuggingFaceFW/fineweb@v1.4.0", config_name="sample-10BT")

`datasets` downloads the files of a configuration once per machine, under a lock, and writes them
into its cache as Arrow files. Later, and where the Hub cannot be reached, the cache is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from energy_data.core import recipe
from energy_data.core.recipe import TEXT, listed
from energy_data.data.source import OpenOptions
from energy_data.data.tables.source import ArrowSource, TableKeys
from energy_data.errors import MissingExtraError, SpecError

SCHEME = "hf://"

_PATH = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:convert|pr)/[\w.-]+|[^/@]+))?/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"-\d{5}-of-(\d{5}\.arrow)$")


@frozen(kw_only=True, slots=False)  # a base next to others
class HubKeys(TableKeys):
    """The keys of a dataset of the Hub."""

    config_name: str | None = recipe.key(
        TEXT,
        "Of a dataset of the Hub: its configuration. Default: the one that it declares as default.",
        "config_name: sample-10BT",
        default=None,
    )


def open_hub(path: str, options: OpenOptions) -> ArrowSource:
    """Return the samples of a split of a dataset of the Hub, downloaded if they are not cached.

    path: `hf://datasets/OWNER/NAME`, with `@REVISION` for a branch, a tag or a commit. The split
    part is the name of a split; `val` also stands for `validation`.

    Raises SpecError if there is no such dataset, revision, configuration or split, if it has a
    loading script, and if the Hub cannot be reached and it is not cached; MissingExtraError without
    `datasets`.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        raise SpecError(
            f"{path}: it names no dataset of the Hub. Write hf://datasets/OWNER/NAME, or "
            "hf://datasets/OWNER/NAME@REVISION. For some of its files, download them with "
            "`hf download OWNER/NAME --repo-type dataset --local-dir FOLDER`, and name the folder."
        )
    (name, revision), keys = found.groups(), {**options.keys}
    files = _files(path, name, revision, keys.pop("config_name", None), options.split_part)
    # What is in the cache is not prepared: it has one part.
    return ArrowSource(files, evolve(options, split_part="train", keys=keys))


def _files(
    path: str, name: str, revision: str | None, config_name: str | None, split_part: str
) -> str:
    """Return the Arrow files of a split in the cache, as a file or a pattern."""
    try:
        import datasets  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no types; an extra
    except ImportError as error:
        raise MissingExtraError("reading datasets of the Hugging Face Hub", "hub") from error
    try:
        builder = datasets.load_dataset_builder(name, config_name, revision=revision)
        if builder.name == "cache":  # the Hub was of no help
            builder = _cached(builder, name, revision)
        split = _split_of(path, split_part, builder.info.splits or builder.config.data_files)
        builder.download_and_prepare()
        files = [one["filename"] for one in builder.as_dataset(split).cache_files]
    except (MemoryError, SpecError):
        raise
    except Exception as error:  # whatever `datasets` and what it calls raise
        raise SpecError(f"{path}: {_problem(error)}") from error
    return files[0] if len(files) == 1 else _SHARD.sub(r"-*-of-\1", files[0])


def _cached(builder: Any, name: str, revision: str | None) -> Any:
    """Return the builder of a revision in the cache; `datasets` takes the latest one there."""
    import huggingface_hub  # noqa: PLC0415 - optional

    commit = revision or "main"
    if not _COMMIT.fullmatch(commit):
        try:
            readme = huggingface_hub.hf_hub_download(
                name, "README.md", repo_type="dataset", revision=commit, local_files_only=True
            )
            commit = Path(readme).parent.name
        except huggingface_hub.errors.LocalEntryNotFoundError:
            commit = builder.hash if revision is None else ""
    if commit == builder.hash:
        return builder
    chosen = type(builder)(
        repo_id=name,
        dataset_name=builder.dataset_name,
        config_name=builder.config.name,
        version=str(builder.config.version),
        hash=commit,
    )
    if not commit or not Path(chosen.cache_dir).is_dir():
        raise ConnectionError(f"of {name}, only commit {builder.hash} is cached")
    return chosen


def _split_of(path: str, split_part: str, splits: Iterable[str]) -> str:
    """Return the split that is meant by a split part."""
    known = [str(split) for split in splits]
    for split in (split_part, "validation" if split_part == "val" else split_part):
        if split in known:
            return split
    raise SpecError(
        f"{path}: it has no split {split_part!r}, found {listed(known)}. Name one by `split_part`, "
        "with `subset` for a range of it."
    )


def _problem(error: Exception) -> str:
    found = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, ConnectionError):
        return (
            f"the Hub cannot be reached, and the dataset is not in the cache: {found}. Load it "
            "once where the Hub can be reached, with the same HF_HOME."
        )
    if "script" in found and isinstance(error, RuntimeError):
        return (
            "it has a loading script, which is code, and is never run. Look for a copy of it in "
            "Parquet files, such as its revision refs/convert/parquet."
        )
    return f"it cannot be loaded: {found}."
