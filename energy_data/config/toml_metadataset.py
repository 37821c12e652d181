"""The metadataset of a trainer's TOML, as YAML with comments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml
from attrs import frozen

from energy_data.config.leaves import is_remote
from energy_data.config.toml_stages import DataFields, StageFields, TomlRun
from energy_data.config.yaml_nodes import scalar_of, shown
from energy_data.data.tables.hub import SCHEME

_USED = {
    "huggingface": ("dataset", "dataset_path"),
    "nanoset": ("dataset_folders", "dataset_weights"),
    "preprocessed": ("dataset", "dataset_path"),
    "packed_memmap": ("dataset_path",),
}
_WINDOWS = ("nanoset", "packed_memmap")  # whose samples are windows of tokens


def metadataset_text(run: TomlRun, name: str, folder: str | os.PathLike[str] = ".") -> str:
    """Return a metadataset that draws what a TOML describes.

    name: of the TOML. folder: where the metadataset will be. Relative paths of a TOML start at the
    working folder, those of a metadataset at its folder.
    """
    return "\n".join([*_header(run, name), *_Writer(run, os.fspath(folder)).lines()]) + "\n"


def _header(toml: TomlRun, name: str) -> Iterator[str]:
    """Yield the comments at the top: how to make the run."""
    run, data = toml.run, (*((toml.default,) if toml.default else ()), *toml.stages)
    windows = any(one.dataset_type in _WINDOWS for one in data)
    batch_size = run.local_batch_size or "LOCAL_BATCH_SIZE"
    per_step = run.microbatches_per_step or "NUMBER_OF_RANKS"
    yield f"# {shown(name)}, imported by `energy-data import-stages`. The run:"
    yield "#   get_train_dataset("
    yield f"#       META, batch_size={batch_size}, microbatches_per_step={per_step},"
    yield f"#       seed={run.dataset_random_seed}{', max_samples_per_sequence=1' * windows})"
    if windows:
        yield "# All tokens of a window but the last are inputs; all but the first are labels."
    if run.epochs is not None:
        yield f"# The trainer ends after training.epochs, {run.epochs}. This run does not."
    if toml.unused:
        yield f"# The stages replace these of [training]: {_names(toml.unused)}."


@frozen(eq=False)
class _Writer:
    """Writes the lines of a metadataset."""

    toml: TomlRun
    folder: str

    def lines(self) -> Iterator[str]:
        """Yield all lines below the header."""
        yield from ("splits:", "  train:")
        if not self.toml.stages:
            yield from self.default(" " * 4)
            return
        yield from ("    staged:", "      unit: steps")
        if self.toml.run.steps is not None and self.toml.run.epochs is None:
            yield f"      total: {self.toml.run.steps}"
        if self.toml.default is not None:
            yield "      resume: ablation # from a state saved where the first stage begins"
            yield "      default:"
            yield from self.default(" " * 8)
        yield "      stages:"
        first, *others = self.toml.stages
        following = [one.start_step for one in others]
        for stage, end in zip((first, *others), [*following, None], strict=True):
            start = {"start": stage.start_step} if stage is first and stage.start_step else {}
            yield from self.stage(stage, start, stage.end_step or end)

    def default(self, indent: str) -> Iterator[str]:
        """Yield the lines of what `[training]` describes."""
        data = self.toml.default
        assert data is not None
        notes = list(_notes(data))
        if data.dataset_type == "huggingface":
            notes.append(f"Give the task encoder seq_len={data.seq_len}.")
        yield from _written(notes, self.node(data), indent)

    def stage(self, stage: StageFields, start: Mapping[str, int], end: int | None) -> Iterator[str]:
        """Yield the lines of a stage."""
        run, notes = self.toml.run, list(_notes(stage))
        keys: dict[str, Any] = {"name": stage.name, **start}
        if end is not None:
            keys["end"] = end
        if end is not None and run.steps is not None and run.steps < end:
            notes.append(f"The trainer ends earlier, after training.steps, {run.steps}.")
        if stage.dataset_random_seed not in (None, run.dataset_random_seed):
            keys |= {"on_enter": "restart", "seed": stage.dataset_random_seed}
        if stage.dataset_type == "huggingface":
            keys["params"] = {"seq_len": stage.seq_len}
        yield from _written(notes, keys | self.node(stage), " " * 8, "- ")

    def node(self, data: DataFields) -> dict[str, Any]:
        """Return the node of the data of a stage."""
        path, length = data.dataset_path, data.seq_len
        if data.dataset_type == "nanoset":
            window = {"seq_len": length + 1, "stride": length}
            leaves = [{"path": self.path(one), **window} for one in data.dataset_folders]
            if len(leaves) == 1:
                return leaves[0]
            if data.dataset_weights is None:
                return {"blend_epochized": leaves}
            shares = zip(leaves, data.dataset_weights, strict=True)
            return {"blend": [{**leaf, "weight": weight} for leaf, weight in shares]}
        if data.dataset_type == "packed_memmap":
            assert path is not None
            raw = {"dtype": "uint32"} if path.endswith(".bin") else {}
            files = "" if path.endswith((".bin", ".npy")) else "/*_token.npy"
            return {"path": self.path(path) + files, **raw, "seq_len": length + 1}
        if path is None:
            assert data.dataset is not None
            if not data.dataset.startswith((".", "/")):
                return {"path": f"{SCHEME}datasets/{data.dataset}"}
            path = data.dataset
        return {"path": self.path(path)}

    def path(self, path: str) -> str:
        """Return a path as the metadataset has it."""
        if is_remote(path) or PurePath(path).is_absolute():
            return path
        return os.path.relpath(path, self.folder)


def _notes(data: DataFields) -> Iterator[str]:
    """Yield what is not carried over exactly."""
    used, path = _USED[data.dataset_type], data.dataset_path
    unused = [name for of_type in _USED.values() for name in of_type if name not in used]
    unused += ["dataset"] if "dataset" in used and path else []
    if given := [name for name in dict.fromkeys(unused) if getattr(data, name)]:
        yield f"`{data.dataset_type}` makes no use of {_names(given)} here."
    if data.dataset_type == "packed_memmap" and path is not None:
        if path.endswith(".bin"):
            yield f"The TOML does not say what a row is. This is {data.seq_len + 1} uint32."
        elif not path.endswith(".npy"):
            yield "Windows run over all sequences: _index.npy and _mask.npy are not read."
    elif data.dataset_type == "huggingface" and not path and "/" not in (data.dataset or ""):
        yield "If this is a name of the trainer's own, write that of the Hub."


def _names(fields: Sequence[str]) -> str:
    return ", ".join(fields)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that our reader takes for something else."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        is_plain = text.isprintable() and scalar_of(text) == text
    except ValueError:
        is_plain = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if is_plain else '"')


_Dumper.add_representer(str, _text)


def _dumped(data: Mapping[str, Any], *, flow: bool) -> str:
    """Return plain data as YAML on one line."""
    text: str = yaml.dump(
        data,
        Dumper=_Dumper,
        default_flow_style=flow,
        sort_keys=False,
        allow_unicode=True,
        width=2**30,
    )
    return text.rstrip("\n")


def _written(
    notes: Sequence[str], node: Mapping[str, Any], indent: str, start: str = ""
) -> Iterator[str]:
    """Yield a node, each key on a line of its own, and comments above it.

    start: what comes before its first key.
    """
    yield from (f"{indent}# {note}" for note in notes)
    for name, value in node.items():
        if isinstance(value, list):
            yield f"{indent}{start}{name}:"
            yield from (
                f"{indent}{' ' * len(start)}  - {_dumped(leaf, flow=True)}" for leaf in value
            )
        elif isinstance(value, dict):
            yield f"{indent}{start}{name}: {_dumped(value, flow=True)}"
        else:
            yield f"{indent}{start}{_dumped({name: value}, flow=False)}"
        start = " " * len(start)
