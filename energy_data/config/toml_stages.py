"""A trainer's TOML with `[[training.data_stages]]`, read and checked.

run = read_run("run.toml")
run.stages[0].dataset_folders

The names of the fields are the trainer's. Gaps and overlaps of stages are found by the checks of
`staged`, so that a TOML without problems has a metadataset.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from attrs import evolve, frozen

from energy_data.config.grammar import Grammar, Origins
from energy_data.config.keys import PathSpec
from energy_data.config.staged import StagedRecipe, StagePart
from energy_data.config.yaml_nodes import Diagnostics, Place, Scalar, Value, read_data, shown
from energy_data.core import recipe
from energy_data.core.recipe import (
    COUNT,
    NAME,
    SEED,
    TEXT,
    FieldProblem,
    Rule,
    did_you_mean,
    keys_of,
    listed,
    number,
    one_of,
    whole_number,
)
from energy_data.core.spec import InvalidRecipeError

T = TypeVar("T")

_TYPES = ("huggingface", "nanoset", "preprocessed", "packed_memmap")
_STAGES = "training.data_stages"
_KEYS = {"start": "start_step", "end": "end_step"}  # of a stage: here -> in the TOML
_OF_RUN = ("dataset_random_seed", "seq_len")  # of `[training]`, that stages do not replace
# The trainer's:
_DEFAULTS: dict[str, Scalar] = {"dataset_type": "huggingface", "seq_len": 2048}  # of `[training]`
_TOLERANCE = 0.001  # of the sum of weights
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def _rule(must_be: str, accept: Callable[[Any], Any]) -> Rule:
    return Rule(must_be, {}, accept)  # there is no schema of the TOML


def _text(found: Any) -> str:
    text: str = TEXT.accept(found)
    if not text.strip():
        raise ValueError
    return text


def _texts(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise ValueError  # noqa: TRY004 - the caller reports the problem
    return tuple(map(_text, found))


def _weights(found: Any) -> tuple[float, ...]:
    if not isinstance(found, list):
        raise ValueError  # noqa: TRY004 - the caller reports the problem
    weights = tuple(map(number(1).accept, found))
    if abs(sum(weights) - 1) > _TOLERANCE:
        raise ValueError(f"Their sum is {sum(weights):g}.")
    return weights


def _end(found: Any) -> int | None:
    return None if found == "auto" else whole_number(found, 0)


def _global(found: Any) -> int | None:
    return None if found == -1 else whole_number(found, 1)


_TEXT = _rule("text, not blank", _text)
_STEP = _rule("a step, a whole number >= 0", lambda found: whole_number(found, 0))


@frozen(kw_only=True, eq=False)
class DataFields:
    """What `[training]` and a stage say about data."""

    dataset_type: str = recipe.key(one_of(*_TYPES), "The format.", 'dataset_type = "nanoset"')
    dataset: str | None = recipe.key(
        _TEXT, "A name on the hub, or a path.", 'dataset = "allenai/c4"', default=None
    )
    dataset_path: str | None = recipe.key(
        _TEXT, "A path, in place of `dataset`.", 'dataset_path = "/data/c4"', default=None
    )
    dataset_folders: tuple[str, ...] = recipe.key(
        _rule("a list of folders, none of them blank", _texts),
        "The folders of a nanoset.",
        'dataset_folders = ["/data/web", "/data/books"]',
        default=(),
    )
    dataset_weights: tuple[float, ...] | None = recipe.key(
        _rule("a list of numbers from 0 to 1 whose sum is 1", _weights),
        "The share of each folder. Default: that of its samples.",
        "dataset_weights = [0.7, 0.3]",
        default=None,
    )
    dataset_random_seed: int | None = recipe.key(
        SEED,
        "Seed of the order. Default: that of `[training]`.",
        "dataset_random_seed = 7",
        default=None,
    )
    seq_len: int = recipe.key(
        COUNT, "Tokens of a sample that are inputs; the labels end one later.", "seq_len = 4096"
    )

    def missing(self) -> Iterator[FieldProblem]:
        """Yield what the format needs and is not there."""
        if self.dataset_type == "nanoset" and not self.dataset_folders:
            yield "dataset_folders", "a nanoset needs folders. Add `dataset_folders`."
        elif self.dataset_type == "nanoset" and self.dataset_weights is not None:
            weights, folders = len(self.dataset_weights), len(self.dataset_folders)
            if weights != folders:
                problem = f"there must be one weight per folder, found {weights} for {folders}."
                yield "dataset_weights", f"{problem} List as many, in the same order."
        elif self.dataset_type == "huggingface" and self.dataset is None:
            yield "dataset", "`huggingface` needs a dataset. Add its name, as `dataset`."
        elif self.dataset_type == "preprocessed" and not (self.dataset or self.dataset_path):
            yield "dataset", "`preprocessed` needs a dataset. Add `dataset` or `dataset_path`."
        elif self.dataset_type == "packed_memmap" and self.dataset_path is None:
            problem = "`packed_memmap` needs a path, which the trainer has in its code."
            yield "dataset_path", f"{problem} Add `dataset_path`, a file or a folder."


@frozen(kw_only=True, eq=False, slots=False)  # a base next to another
class StepFields:
    """The name of a stage, and its steps."""

    name: str = recipe.key(NAME, "Name of the stage.", 'name = "general"')
    start_step: int = recipe.key(_STEP, "Its first step.", "start_step = 1000")
    end_step: int | None = recipe.key(
        _rule("a step, a whole number >= 0, or 'auto'", _end),
        "The first step after it. Default, and 'auto': where the next begins, or the run ends.",
        "end_step = 20000",
        default=None,
    )


@frozen(kw_only=True, eq=False)
class StageFields(DataFields, StepFields):
    """A `[[training.data_stages]]`."""


@frozen(kw_only=True, eq=False)
class RunFields:
    """What `[training]` says about the run."""

    steps: int | None = recipe.key(COUNT, "Length of the run.", "steps = 150000", default=None)
    epochs: int | None = recipe.key(COUNT, "Length of the run.", "epochs = 1", default=None)
    dataset_random_seed: int = recipe.key(
        SEED, "Seed of the run.", "dataset_random_seed = 7", default=1234
    )
    local_batch_size: int | None = recipe.key(
        COUNT, "Samples of a micro-batch.", "local_batch_size = 8", default=None
    )
    global_batch_size: int | None = recipe.key(
        _rule("a whole number >= 1, or -1", _global),
        "Samples of a step over all ranks. -1, the default: a micro-batch of each rank.",
        "global_batch_size = 1024",
        default=None,
    )

    @property
    def microbatches_per_step(self) -> int | None:
        """Micro-batches of all ranks in a step; None: the file does not say it."""
        if self.global_batch_size is None or self.local_batch_size is None:
            return None
        return self.global_batch_size // self.local_batch_size

    def wrong_sizes(self) -> Iterator[FieldProblem]:
        """Yield what does not fit together."""
        whole, part = self.global_batch_size, self.local_batch_size
        if whole is not None and part is not None and whole % part:
            problem = f"must be a multiple of `local_batch_size`, {part}, found {whole}."
            yield "global_batch_size", f"{problem} Change one of them."


@frozen(kw_only=True, eq=False)
class TomlRun:
    """The run that a TOML describes."""

    run: RunFields
    default: DataFields | None  # before the first stage; without stages, of all of the run
    stages: tuple[StageFields, ...]  # by their first steps
    unused: tuple[str, ...]  # fields of data of `[training]` that stages replace


def read_run(path: str | os.PathLike[str]) -> TomlRun:
    """Return the run that a TOML describes.

    Raises SpecError with every problem, one line each: `file: key: what is wrong, what was found.
    What to do.`; for a text that is no TOML, with its line and column.
    """
    name, diagnostics = os.fspath(path), Diagnostics()
    training = _training(name, diagnostics)
    diagnostics.raise_if_any()
    assert training is not None
    return _Tables(name, diagnostics).run(training)


def _training(name: str, diagnostics: Diagnostics) -> Value | None:
    """Return the table `[training]`; None: a problem was reported."""
    try:
        with Path(name).open("rb") as file:
            tables = tomllib.load(file)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        problem = f"not UTF-8, found the byte 0x{error.object[error.start]:02x}."
        diagnostics.report(Place(name, line, column), "", f"{problem} Save the file as UTF-8.")
    except ValueError as error:  # TOMLDecodeError, or that of a number with too many digits
        at = _AT.fullmatch(str(error))
        place = Place(name, int(at[2] or 0), int(at[3] or 0)) if at else Place(name)
        problem = f"not valid TOML: {at[1] if at else error}. Correct this line, or the one above."
        diagnostics.report(place, "", problem)
    except RecursionError:
        diagnostics.report(Place(name), "", "nested too deeply. Flatten it.")
    else:
        value = read_data({"training": tables.get("training")}, name, diagnostics)
        return None if value is None else _entries(value)["training"]
    return None


def _entries(table: Value) -> dict[str, Value]:
    assert isinstance(table.data, dict)
    return table.data


@frozen(eq=False)
class _Tables:
    """Converts the tables of a TOML; a method that reports a problem returns None."""

    file: str
    diagnostics: Diagnostics

    def report(self, where: str, problem: str) -> None:
        self.diagnostics.report(Place(self.file), where, problem)

    def run(self, training: Value) -> TomlRun:
        """Return the run. Raises SpecError with all problems."""
        if not isinstance(training.data, dict):
            problem = f"must be a table, found {training.describe()}. Write `[training]`."
            self.report("training", problem)
        self.diagnostics.raise_if_any()
        tables = self.tables(_entries(training).get("data_stages"))
        self.diagnostics.raise_if_any()
        run = self.fields(RunFields, training, "training")
        if run is not None:
            self.check(run.wrong_sizes(), "training")
        stages = [self.stage(one, f"{_STAGES}[{n}]") for n, one in enumerate(tables)]
        quiet = evolve(self, diagnostics=Diagnostics())
        steps = [quiet.fields(StepFields, one, "") for one in tables]
        known = [one for one in steps if one is not None]
        default = None
        if len(known) == len(tables):
            first = min((one.start_step for one in known), default=None)
            default = self.default(training, first) if first != 0 else None
            self.check_sequence(known, None if run is None else run.steps)
        self.diagnostics.raise_if_any()
        assert run is not None
        others = () if default is not None else _entries(training).keys() - {*_OF_RUN}
        found = sorted((one for one in stages if one is not None), key=lambda one: one.start_step)
        return TomlRun(
            run=run,
            default=default,
            stages=tuple(found),
            unused=tuple(name for name in keys_of(DataFields) if name in others),
        )

    def tables(self, stages: Value | None) -> list[Value]:
        """Return the tables of the stages."""
        if stages is None:
            return []
        found = stages.data
        if isinstance(found, list) and all(isinstance(one.data, dict) for one in found):
            return found
        problem = f"must be an array of tables, found {stages.describe()}."
        self.report(_STAGES, f"{problem} Write `[[{_STAGES}]]` before each of them.")
        return []

    def fields(self, cls: type[T], table: Value, where: str) -> T | None:
        """Return the fields of a class that a table has. Others are left out."""
        known = keys_of(cls)
        data = {name: one for name, one in _entries(table).items() if name in known}
        grammar = Grammar(self.diagnostics, Origins())
        found = grammar.keys(evolve(table, data=data), where, {cls: known})
        return None if found is None else cls(**found[cls])

    def check(self, problems: Iterable[FieldProblem], where: str, why: str = "") -> None:
        """Report the problems of fields. why: it comes first."""
        for key, problem in problems:
            self.report(f"{where}.{key}", f"{why}{problem}")

    def stage(self, table: Value, where: str) -> StageFields | None:
        """Return a stage."""
        known = keys_of(StageFields)
        for name in [name for name in _entries(table) if name not in known]:
            near = did_you_mean(name, known)
            advice = f"Did you mean '{near}'?" if near else f"There are {listed(known)}."
            self.report(where, f"unknown key {shown(name)}. {advice}")
        found = self.fields(StageFields, table, where)
        if found is not None:
            self.check(found.missing(), where)
        return found

    def default(self, training: Value, first: int | None) -> DataFields | None:
        """Return what `[training]` says about data. first: the step of the first stage."""
        defaults = {name: Value(one, training.place) for name, one in _DEFAULTS.items()}
        table = evolve(training, data={**defaults, **_entries(training)})
        found = self.fields(DataFields, table, "training")
        if found is not None:
            why = "" if first is None else f"the first stage begins at step {first}. Before it, "
            self.check(found.missing(), "training", why)
        return found

    def check_sequence(self, steps: Sequence[StepFields], total: int | None) -> None:
        """Report gaps and overlaps of the stages, as `staged` does."""
        if not steps:
            return
        of = PathSpec(path=".")
        stages = [
            StagePart(
                of=of,
                name=one.name,
                start=Fraction(one.start_step),
                end=None if one.end_step is None else Fraction(one.end_step),
            )
            for one in steps
        ]
        try:
            StagedRecipe(
                stages=tuple(stages),
                default=of if all(one.start for one in stages) else None,
                total=None if total is None else Fraction(total),
            )
        except InvalidRecipeError as error:
            for path, problem in error.problems:
                stage, _, key = path.rpartition(".")
                self.report(f"training.data_{stage}.{_KEYS.get(key, key)}", problem)
