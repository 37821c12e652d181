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
from typing import Any

import yaml
from attrs import field, frozen

from energy_data.data.decode.parts import PartFilter, SampleDecoder
from energy_data.data.files.local import write_whole
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.tar.nv_meta import DATASET, FOLDER, SPLIT, is_inside, read_mapping
from energy_data.data.typed.field_map import FieldMap, parse_access
from energy_data.data.typed.samples import BASIC_FIELDS, SAMPLE_TYPES, Sample
from energy_data.errors import SpecError

log = logging.getLogger(__name__)

SampleLoader = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Takes the parts of a sample and its `__` fields; returns the fields of its type."""

CRUDE = "CrudeWebdataset"
STANDARD = ("StandardWebdatasetFactory", "DefaultGenericWebdatasetFactory")
WEBDATASETS = {name.removesuffix("Sample") + "Webdataset": name for name in SAMPLE_TYPES}
"""The classes that older files name, each for one type of sample."""

_KNOWN = (
    *("__module__", "__class__", "sample_type", "field_map", "sample_loader", "part_filter"),
    *("subflavors", "split_config", "split_part", "decoder", "auto_decode"),
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
    """Return what the dataset.yaml of a prepared dataset declares; without one, samples are crude.

    Args:
        path: The folder of the dataset.
        config: Name of another file in `.nv-meta` to read instead.
        policy: The code that the file may name; None: what the environment allows.

    Raises SpecError with every error in the file, for a named file that does not exist, and for
    code that is not allowed; StructureError for invalid YAML.
    """
    file = path / FOLDER / (config or DATASET)
    if config is not None:
        check_dataset_config(path, config)
    declared = read_mapping(file)
    return (
        Typing()
        if declared is None
        else _DatasetYamlReader(file, declared, policy or ImportPolicy.of()).read()
    )


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


class _DatasetYamlReader:
    """Reads one file and collects its errors."""

    def __init__(self, file: Path, declared: Mapping[str, Any], policy: ImportPolicy) -> None:
        self.file, self.declared, self.policy = file, declared, policy
        self.faults: list[str] = []

    def read(self) -> Typing:
        self._check_keys()
        sample_type = self._sample_type()
        fields, part_filter = self._fields(sample_type)
        typing = Typing(
            sample_type=sample_type,
            fields=fields,
            part_filter=part_filter,
            subflavors=self._of_kind("subflavors", dict, "a mapping") or {},
            decoder=self._decoder(),
            split_config=self._of_kind("split_config", str, f"the name of a file such as {SPLIT}"),
            split_part=self._of_kind("split_part", str, "the name of a part"),
        )
        if self.faults:
            raise SpecError(self.faults)
        return typing

    def _note(self, key: str, problem: str) -> None:
        self.faults.append(f"{self.file}{_place(self.file, key)}: {key}: {problem}")

    def _of_kind(self, key: str, kind: type, words: str) -> Any:
        value = self.declared.get(key)
        if value is not None and not isinstance(value, kind):
            self._note(key, f"it must be {words}, got {value!r}.")
            return None
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
                self._note(str(key), f"there is no such key. {hint}")

    def _sample_type(self) -> type[Sample] | None:
        """Return the type of samples; None: crude ones."""
        class_name = self._of_kind("__class__", str, "the name of a class")
        if class_name == CRUDE and _is_energons(self.declared):
            return None
        if "sample_type" in self.declared:
            return self._named_type("sample_type", self.declared["sample_type"])
        if class_name in WEBDATASETS and _is_energons(self.declared):
            return SAMPLE_TYPES[WEBDATASETS[class_name]]
        if class_name is None:
            self._note("sample_type", "it is missing, and so is `__class__`. Give one of them.")
        elif class_name in STANDARD:
            self._note("sample_type", f"it is missing, and {class_name} needs it. Give one.")
        else:
            known = ", ".join((CRUDE, *WEBDATASETS))
            self._note(
                "__class__",
                f"{self.declared.get('__module__')}.{class_name} is not a known dataset class, "
                f"only: {known}. Give a `sample_type` instead.",
            )
        return None

    def _named_type(self, key: str, declared: Any) -> type[Sample] | None:
        kind, options = self._class(key, declared, SAMPLE_TYPES)
        if kind is None:
            return None
        if options or not (isinstance(kind, type) and issubclass(kind, Sample)):
            self._note(
                key,
                f"{declared} is not a sample type. Name a class that is derived from "
                "energy_data.Sample.",
            )
            return None
        return kind

    def _class(self, key: str, declared: Any, known: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return what `__module__` and `__class__` name, and the other keys; None for an error."""
        if not (isinstance(declared, dict) and {"__module__", "__class__"} <= declared.keys()):
            self._note(
                key, f"it must be a mapping with __module__ and __class__, got {declared!r}."
            )
            return None, {}
        options = {name: value for name, value in declared.items() if not name.startswith("__")}
        try:
            found = self.policy.find(str(declared["__module__"]), str(declared["__class__"]), known)
        except SpecError as error:
            self._note(key, str(error))
            return None, options
        return found, options

    def _fields(
        self, kind: type[Sample] | None
    ) -> tuple[FieldMap | SampleLoader | None, PartFilter | None]:
        """Return what makes the fields of a sample, and which parts it needs for that."""
        loader, map_ = self.declared.get("sample_loader"), self.declared.get("field_map")
        is_crude = self.declared.get("__class__") == CRUDE
        if is_crude or (loader is None and map_ is None):
            for key in ("sample_loader", "field_map"):
                if is_crude and key in self.declared:
                    self._note(key, f"{CRUDE} does not take it: its samples are dicts of parts.")
            if not is_crude and not self.faults:
                self._note("field_map", "it is missing, and so is `sample_loader`. Give one.")
            return None, self._part_filter()
        if loader is not None and map_ is not None:
            self._note("field_map", "`field_map` and `sample_loader` exclude each other. Give one.")
        if loader is not None:
            if "part_filter" not in self.declared:
                self._note("part_filter", "it is missing, but a `sample_loader` needs it.")
            return self._code("sample_loader"), self._part_filter()
        fields = self._field_map(kind, map_)
        return fields, PartsOf(fields.parts)

    def _field_map(self, kind: type[Sample] | None, declared: Any) -> FieldMap:
        if not (isinstance(declared, dict) and declared):
            self._note("field_map", f"it must be a mapping of fields to parts, got {declared!r}.")
            return FieldMap({})
        accesses = {}
        for name, text in declared.items():
            try:
                accesses[str(name)] = parse_access(text if isinstance(text, str) else "")
            except ValueError:
                problem = f"{name}: it must be like `jpg`, `jpg,png` or `json[caption]`"
                self._note("field_map", f"{problem}, got {text!r}.")
        if kind is not None:
            self._check_fields(kind, {str(name) for name in declared})
        return FieldMap(accesses)

    def _check_fields(self, kind: type[Sample], given: set[str]) -> None:
        known = {one.name: one for one in own_fields(kind)}
        if wrong := sorted(given - known.keys()):
            self._note(
                "field_map",
                f"{kind.__name__} has no field {', '.join(wrong)}, only: {', '.join(known)}.",
            )
        missing = [name for name in known.keys() - given if not has_default(known[name])]
        if missing:
            names = ", ".join(sorted(missing))
            self._note("field_map", f"{kind.__name__} also needs {names}. Add it.")

    def _part_filter(self) -> PartFilter | None:
        declared = self.declared.get("part_filter")
        if declared is None:
            return None
        if isinstance(declared, list) and all(isinstance(part, str) for part in declared):
            return PartsOf(frozenset(declared))
        return self._code("part_filter")

    def _code(self, key: str) -> Callable[[Any], Any] | None:
        """Return a function from a Python file of the dataset."""
        declared = self.declared[key]
        if not isinstance(declared, str):
            self._note(key, f"it must be like `{key}.py:{key}`, got {declared!r}.")
            return None
        file, _, name = declared.rpartition(":")
        place = self.file.parent / (file or declared)
        try:
            return self.policy.load(place, name if file else key)
        except SpecError as error:
            self._note(key, str(error))
            return None

    def _decoder(self) -> Any:
        older = {key: self.declared[key] for key in _DECODER_KEYS if key in self.declared}
        if self.declared.get("auto_decode") is False or self.declared.get("decoder", 0) is None:
            return None
        if "decoder" not in self.declared:
            return self._made("image_decode", SampleDecoder, older) if older else "unset"
        known = {"SampleDecoder": SampleDecoder}
        kind, options = self._class("decoder", self.declared["decoder"], known)
        return kind and self._made("decoder", kind, options)

    def _made(self, key: str, kind: Any, options: Mapping[str, Any]) -> Any:
        try:
            return kind(**options)
        except (TypeError, SpecError) as error:
            self._note(key, str(error))
            return None


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


def definition_of(
    kind: type[Sample] | None, field_map: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the contents of a dataset.yaml.

    kind: the sample type; None: crude samples. field_map: None: the functions of `write_loader`.
    """
    if kind is None:
        return {"__module__": _MODULE, "__class__": CRUDE}
    declared: dict[str, Any] = {"sample_type": {"__module__": _MODULE, "__class__": kind.__name__}}
    if field_map is not None:
        return declared | {"field_map": dict(field_map)}
    functions = ("sample_loader", "part_filter")
    return declared | {function: f"{LOADER}:{function}" for function in functions}


def write_definition(path: Path, definition: Mapping[str, Any], name: str) -> None:
    """Write a dataset.yaml under the given name into a prepared folder."""
    text = yaml.safe_dump(dict(definition), sort_keys=False, allow_unicode=True)
    write_whole(str(path / FOLDER / name), text.encode(), path.stat().st_mode)


def has_loader(path: Path) -> bool:
    """Return whether the file of `write_loader` exists."""
    return (path / FOLDER / LOADER).exists()


def write_loader(path: Path, kind: type[Sample], parts: Sequence[str]) -> Path:
    """Write a file with functions for the user to fill in; return its path.

    The function raises an error until it is filled in.
    """
    lines = "\n".join(f"        {_line(field)}" for field in own_fields(kind))
    text = (
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
    file = path / FOLDER / LOADER
    write_whole(str(file), text.encode(), path.stat().st_mode)
    return file


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
