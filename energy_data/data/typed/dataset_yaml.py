"""`dataset.yaml`: the type of a dataset's samples, and which parts their fields come from.

sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: "jpg,png", caption: "json[caption]"}
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import yaml
from attrs import field, frozen

from energy_data.data.decode.parts import PartFilter, SampleDecoder
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.nv_meta import (
    DATASET,
    FOLDER,
    SPLIT,
    is_inside,
    read_mapping,
)
from energy_data.data.typed.field_map import FieldMap
from energy_data.data.typed.samples import BASIC_FIELDS, Sample, TypedDataset
from energy_data.errors import SpecError

log = logging.getLogger(__name__)

T = TypeVar("T")

SampleLoader = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Takes the parts of a sample and its `__` fields; returns the fields of its type."""

CRUDE = "CrudeWebdataset"
CRUDES = (
    CRUDE,
    *("CrudeJsonlShardListDatasetFactory", "DefaultCrudeJsonlShardListDatasetFactory"),
    *("ParquetShardListDatasetFactory", "DefaultParquetShardListDatasetFactory"),
)
"""The classes that files name whose samples are crude; Energon 8 writes all but the first."""
STANDARD = ("StandardWebdatasetFactory", "DefaultGenericWebdatasetFactory")

_KNOWN = (
    *("__module__", "__class__", "sample_type", "field_map", "sample_loader", "part_filter"),
    *("subflavors", "tags", "split_config", "split_part", "decoder", "auto_decode"),
    *("image_decode", "av_decode", "video_decode_audio", "guess_content"),
)
_IGNORED = (
    *("shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence"),
    "ignore_decoder_errors",
)
_DECODER_KEYS = ("image_decode", "av_decode", "video_decode_audio", "guess_content")


@frozen(kw_only=True)
class Typing:
    """What a dataset.yaml declares."""

    sample_type: type[Sample] | None = None  # None: crude samples
    fields: FieldMap | SampleLoader | None = field(default=None, eq=False)  # None: crude samples
    part_filter: PartFilter | None = field(default=None, eq=False)  # None: all parts
    subflavors: Mapping[str, Any] = field(factory=dict)
    decoder: Any = "unset"  # a SampleDecoder; None: bytes; "unset": the task encoder's
    split_config: str | None = None
    split_part: str | None = None


def read_dataset_yaml(
    path: Path, *, config: str | None = None, policy: ImportPolicy | None = None
) -> Typing:
    """Return what the dataset.yaml of a dataset declares.

    Without one, and where the dataset is not prepared, samples are crude.

    Args:
        path: The folder of the dataset.
        config: Name of another file in `.nv-meta` to read instead.
        policy: The code that the file may name; None: what the environment allows.

    Raises SpecError for an error in the file, for a named file that does not exist, and for code
    that is not allowed; StructureError for invalid YAML.
    """
    file = path / FOLDER / (config or DATASET)
    if config is not None:
        check_dataset_config(path, config)
    declared = read_mapping(file)
    if declared is None:
        return Typing()
    return _DatasetYamlReader(file, declared, policy or ImportPolicy.of()).read()


def check_dataset_config(path: Path, config: str) -> None:
    """Raise SpecError if there is no file of this name in the `.nv-meta` of a dataset."""
    file = path / FOLDER / config
    if not is_inside(config):
        raise SpecError(f"{file}: a dataset_config is a file in {FOLDER}. Give its name alone.")
    if not file.is_file():
        raise SpecError(f"{file}: there is no such file. Look at `dataset_config`.")


@frozen
class PartsOf:
    """A part filter that wants the parts it lists."""

    parts: frozenset[str]

    def __call__(self, part: str) -> bool:
        """Return whether it lists the part."""
        return part in self.parts


@frozen
class _DatasetYamlReader:
    """Reads one file; raises SpecError for what is wrong in it."""

    file: Path
    declared: Mapping[str, Any]
    policy: ImportPolicy

    def read(self) -> Typing:
        self._check_keys()
        sample_type = self._sample_type()
        fields, part_filter = self._fields(sample_type)
        return Typing(
            sample_type=sample_type,
            fields=fields,
            part_filter=part_filter,
            subflavors=self._subflavors(),
            decoder=self._decoder(),
            split_config=self._get("split_config", str, f"the name of a file such as {SPLIT}"),
            split_part=self._get("split_part", str, "the name of a part"),
        )

    def _subflavors(self) -> Mapping[str, Any]:
        """Return the subflavors, which Energon 8 calls tags."""
        if "tags" in self.declared and "subflavors" in self.declared:
            raise self._fault("tags", "it is another name of `subflavors`. Keep one of them.")
        name = "tags" if "tags" in self.declared else "subflavors"
        return self._get(name, dict, "a mapping") or {}

    def _fault(self, key: str, problem: object) -> SpecError:
        return SpecError(f"{self.file}{_place(self.file, key)}: {key}: {problem}")

    def _get(self, key: str, kind: type, words: str) -> Any:
        value = self.declared.get(key)
        if value is not None and not isinstance(value, kind):
            raise self._fault(key, f"it must be {words}, got {value!r}.")
        return value

    def _check_keys(self) -> None:
        for key in self.declared:
            if key in _IGNORED:
                log.warning(
                    "%s: %s is ignored: the run determines the order of samples.", self.file, key
                )
            elif key not in _KNOWN:
                near = difflib.get_close_matches(str(key), _KNOWN, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_KNOWN)}."
                raise self._fault(str(key), f"there is no such key. {hint}")

    def _sample_type(self) -> type[Sample] | None:
        """Return the type of samples; None: crude ones."""
        from energy_data.data.typed.sample_types import SAMPLE_TYPES, WEBDATASETS

        name = self._get("__class__", str, "the name of a class")
        ours = _is_energons(self.declared)
        if name in CRUDES and ours:
            return None
        if "sample_type" in self.declared:
            kind, options = self._class("sample_type", SAMPLE_TYPES, Sample)
            if options or not _is_derived(kind, Sample):
                raise self._fault(
                    "sample_type",
                    f"{self.declared['sample_type']} is not a sample type. Name a class that is "
                    "derived from energy_data.Sample.",
                )
            return kind
        if name in WEBDATASETS and ours:
            return WEBDATASETS[name]
        if name is None or name in STANDARD:
            reason = "so is `__class__`" if name is None else f"{name} needs it"
            raise self._fault("sample_type", f"it is missing, and {reason}. Give one.")
        if not ours:
            return self._sample_type_of_dataset()
        known = ", ".join((CRUDE, *WEBDATASETS))
        raise self._fault(
            "__class__",
            f"{self.declared.get('__module__')}.{name} is not a known dataset class, only: "
            f"{known}. Give a `sample_type` instead.",
        )

    def _sample_type_of_dataset(self) -> type[Sample]:
        """Return the type of samples of a class of the program's own."""
        named, _ = self._class("__class__", {}, TypedDataset)
        kind = getattr(named, "__sample_type__", None)
        if not (_is_derived(named, TypedDataset) and _is_derived(kind, Sample)):
            raise self._fault(
                "__class__",
                f"{named} is not a dataset class. Name one that is derived from "
                f"BaseWebdatasetFactory and has a `__sample_type__`, or give a `sample_type`.",
            )
        return kind

    def _class(
        self, key: str, known: Mapping[str, Any], base: type | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return what `__module__` and `__class__` in a key name, and the other keys in it."""
        declared = self.declared if key == "__class__" else self.declared[key]
        if not (isinstance(declared, dict) and {"__module__", "__class__"} <= declared.keys()):
            raise self._fault(
                key, f"it must be a mapping with __module__ and __class__, got {declared!r}."
            )
        options = {name: value for name, value in declared.items() if not name.startswith("__")}
        try:
            module, name = str(declared["__module__"]), str(declared["__class__"])
            return self.policy.find(module, name, known, base), options
        except SpecError as error:
            raise self._fault(key, error) from error

    def _fields(
        self, kind: type[Sample] | None
    ) -> tuple[FieldMap | SampleLoader | None, PartFilter | None]:
        """Return what makes the fields of a sample, and which parts it needs for that."""
        loader, field_map = self.declared.get("sample_loader"), self.declared.get("field_map")
        if kind is None:
            for key in ("sample_loader", "field_map"):
                if key in self.declared:
                    problem = f"{CRUDE} does not take it: its samples are dicts of parts."
                    raise self._fault(key, problem)
            return None, self._part_filter()
        if loader is None and field_map is None:
            raise self._fault("field_map", "it is missing, and so is `sample_loader`. Give one.")
        if loader is None:
            fields = self._field_map(kind, field_map)
            return fields, PartsOf(fields.parts)
        if field_map is not None:
            problem = "`field_map` and `sample_loader` exclude each other. Give one."
            raise self._fault("field_map", problem)
        if "part_filter" not in self.declared:
            raise self._fault("part_filter", "it is missing, but a `sample_loader` needs it.")
        return self._code("sample_loader"), self._part_filter()

    def _field_map(self, kind: type[Sample], declared: Any) -> FieldMap:
        if not (isinstance(declared, dict) and declared):
            problem = f"it must be a mapping of fields to parts, got {declared!r}."
            raise self._fault("field_map", problem)
        known = {one.name: one for one in own_fields(kind)}
        wrong = sorted({str(name) for name in declared} - known.keys())
        needed = {name for name, one in known.items() if not has_default(one)}
        missing = ", ".join(sorted(needed - declared.keys()))
        problem = f"{kind.__name__} also needs {missing}. Add it." if missing else ""
        if wrong:
            found = f"{kind.__name__} has no field {', '.join(wrong)}, only: {', '.join(known)}."
            problem = f"{found} {problem}".rstrip()
        if problem:
            raise self._fault("field_map", problem)
        try:
            return FieldMap(declared)
        except ValueError as error:
            raise self._fault("field_map", error) from error

    def _part_filter(self) -> PartFilter | None:
        declared = self.declared.get("part_filter")
        if declared is None:
            return None
        if isinstance(declared, list) and all(isinstance(part, str) for part in declared):
            return PartsOf(frozenset(declared))
        return self._code("part_filter")

    def _code(self, key: str) -> Callable[[Any], Any]:
        """Return a function from a Python file of the dataset."""
        declared = self.declared[key]
        if not isinstance(declared, str):
            raise self._fault(key, f"it must be like `{key}.py:{key}`, got {declared!r}.")
        file, _, name = declared.rpartition(":")
        try:
            return self.policy.load(self.file.parent / (file or declared), name if file else key)
        except SpecError as error:
            raise self._fault(key, error) from error

    def _decoder(self) -> Any:
        older = {key: self.declared[key] for key in _DECODER_KEYS if key in self.declared}
        if self.declared.get("auto_decode") is False or self.declared.get("decoder", 0) is None:
            return None
        if "decoder" in self.declared:
            key = "decoder"
            kind, options = self._class(key, {"SampleDecoder": SampleDecoder})
        elif older:
            key, kind, options = "image_decode", SampleDecoder, older
        else:
            return "unset"
        try:
            return kind(**options)
        except (TypeError, SpecError) as error:
            raise self._fault(key, error) from error


def _is_derived(found: Any, base: type[T]) -> TypeGuard[type[T]]:
    return isinstance(found, type) and issubclass(found, base)


def _is_energons(declared: Mapping[str, Any]) -> bool:
    """Return whether the module is one of Energon's; those of older versions were others."""
    module = str(declared.get("__module__"))
    return module.split(".")[:2] == ["megatron", "energon"] or module.startswith("energy_data")


def _place(file: Path, key: str) -> str:
    """Return `:line:column` of a key at the top of a YAML file; empty if the key is missing."""
    try:
        node = yaml.compose(file.read_text("utf-8"), yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return ""
    for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if name.value == key:
            return f":{name.start_mark.line + 1}:{name.start_mark.column + 1}"
    return ""


LOADER = "sample_loader.py"
_MODULE = "megatron.energon"


def definition_of(kind: type[Sample] | None, field_map: Mapping[str, str] | None = None) -> str:
    """Return the text of a dataset.yaml.

    kind: the sample type; None: crude samples. field_map: None: the functions of `loader_of`.
    """
    declared: dict[str, Any] = {"__module__": _MODULE, "__class__": CRUDE}
    if kind is not None:
        declared = {"sample_type": {"__module__": _MODULE, "__class__": kind.__name__}}
        functions = {name: f"{LOADER}:{name}" for name in ("sample_loader", "part_filter")}
        declared |= functions if field_map is None else {"field_map": dict(field_map)}
    return yaml.safe_dump(declared, sort_keys=False, allow_unicode=True)


def loader_of(kind: type[Sample], parts: Sequence[str]) -> str:
    """Return the text of a Python file with functions for the user to fill in.

    The function raises an error until it is filled in.
    """
    lines = "\n".join(f"        {_line(field)}" for field in own_fields(kind))
    return (
        f'"""Makes the fields of {kind.__name__} from the parts of a sample. Fill it in."""\n\n'
        "\n"
        "def sample_loader(raw: dict) -> dict:\n"
        f"    # raw: part -> value, decoded; parts seen here: {', '.join(parts)}\n"
        "    return dict(\n"
        f"{lines}\n"
        "    )\n\n\n"
        "def part_filter(part: str) -> bool:\n"
        "    # Parts that `sample_loader` does not use need not be decoded.\n"
        f"    return part in {tuple(parts)!r}\n"
    )


def own_fields(kind: type[Sample]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a sample type that not every sample has."""
    return [field for field in dataclasses.fields(kind) if field.name not in BASIC_FIELDS]


def has_default(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field can be left out."""
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _line(field: dataclasses.Field[Any]) -> str:
    optional = f", {field.default!r} if left out" if has_default(field) else ""
    return f'{field.name}=raw["FILL IN"],  # {field.type}{optional}'
