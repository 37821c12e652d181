"""The tree of batches of a split, for commands, which do not have the task encoder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from energy_data.config.compile import compile_stream
from energy_data.config.load import LoadedMetadataset
from energy_data.config.staged import StagedRecipe
from energy_data.config.stages import BUILDER_PARAMS, changed_params
from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.mixture import StreamBuilder


class AnyTask(TaskEncoder[Any, Any, Any, Any]):
    """A task encoder that accepts any parameters that stages set."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with their values."""
        return self._values

    def with_params(self, **params: Any) -> AnyTask:
        """Return one with other parameters."""
        return AnyTask({**self._values, **params})


def is_staged(metadataset: LoadedMetadataset, split: str) -> bool:
    """Return whether a split has stages. SpecError if there is no such split."""
    return isinstance(metadataset.tree(split), StagedRecipe)


def stream(
    metadataset: LoadedMetadataset,
    split: str,
    *,
    batch_size: int = 1,
    microbatches_per_step: int | None = 1,
    params: Mapping[str, Any] | None = None,
    run: Context | None = None,
) -> Spec:
    """Return the tree of batches of a split in training. SpecError as `compile_stream`.

    run: its seed and its lanes, as far as they are known.
    """
    own = {*BUILDER_PARAMS} - {"seq_len"}
    named = [name for name in changed_params(metadataset.tree(split)) if name not in own]
    free: dict[str, Any] = dict.fromkeys(named)
    builder = StreamBuilder(
        batch_size=batch_size,
        task_encoder=AnyTask({**free, **(params or {})}),
        microbatches_per_step=microbatches_per_step,
    )
    return compile_stream(
        metadataset, split, open_source=open_source, builder=builder, run=run
    ).spec


def params_of(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return `name=value` texts as a mapping; values are read as YAML."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--param: must be NAME=VALUE, got {text!r}, such as `seq_len=4096`.")
        found[name] = yaml.safe_load(value)
    return found
