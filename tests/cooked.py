"""Cooked trees for tests: some leaves have files beside them, randomness, and failures."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from attrs import evolve

from energy_data.core.rng import sample_rng
from energy_data.core.sample import SampleSource
from energy_data.core.user_call import ErrorPolicy
from energy_data.data.files.stores import FileStore
from energy_data.energon import TaskEncoder
from energy_data.errors import SkipSample
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.read import ReadSpec
from energy_data.tasks.functions import Cooker, Cooking, cooker, stateless


class Letters(FileStore[str]):
    """Files that are not there: the content of each is its name, in capitals."""

    def __getitem__(self, key: str) -> tuple[str, SampleSource]:
        return key.upper(), SampleSource("letters", "memory", key)

    def get_path(self) -> str:
        return "letters"


@cooker(need_primary=True)
def with_files(sample: dict, *, primary: FileStore[str], notes: FileStore[str]) -> dict:
    """A sample with what is in files beside it; some samples have none, and some are bad."""
    number = sample["number"]
    if number > 6 and number % 7 == 1:
        raise SkipSample
    if number > 6 and number % 7 == 2:
        raise ValueError("bad on purpose")
    files = primary.get(".txt", sample), notes.get("note", sample)
    dice = int(sample_rng().integers(1000))
    return {**sample, "__key__": f"{sample['__key__']}={''.join(files)}={dice}"}


@stateless(restore_seeds=True)
def with_dice(sample: dict) -> dict:
    return {**sample, "__key__": f"{sample['__key__']}~{random.randrange(1000)}"}


def with_parts(sample: dict):
    """One or two samples for one, each with randomness of the sample."""
    for part in range(1 + sample["number"] % 2):
        dice = int(sample_rng().integers(1000))
        yield {**sample, "__key__": f"{sample['__key__']}.{part}~{dice}"}


def ignored(error: Exception, sample: Any, sources: Any) -> None:
    """Hears of failures, and says nothing."""


def cooks(function: Any, **aux: FileStore[str]) -> Any:
    return partial(TaskEncoder().cook_crude_sample, cooker=Cooker(function), aux=aux)


NEEDY = cooks(with_files, primary=Letters(), notes=Letters())
RECIPES = {("a", "{}"): NEEDY, ("d", "{}"): NEEDY, ("e", "{}"): cooks(with_dice)}


def cooked(read: ReadSpec) -> EncodeSpec:
    """A tree whose samples are cooked as each leaf needs; those of other leaves pass."""
    policy = ErrorPolicy(handler=ignored, tolerance=0)
    return EncodeSpec(of=evolve(read, keys=True), encode=Cooking(RECIPES), on_failure=policy)
