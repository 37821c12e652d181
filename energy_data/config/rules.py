"""Rules of the keys of leaves: ranges, epochs, files in `.nv-meta`, named code, stores of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from attrs import evolve, field, frozen

from energy_data.core.recipe import (
    MAX_COUNT,
    TEXT_PATTERN,
    Rule,
    listed,
    matching,
    whole_number,
)
from energy_data.errors import SpecError
from energy_data.remote.mirror_paths import SCHEMES

MAX_EPOCHS = 2**20  # mixed with each other

_META_FILE = re.compile(r"^(?!/)(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f\ud800-\udfff]+$")
META_FILE = matching(
    _META_FILE,
    "the name of a file",
    "It is the name of a file in `.nv-meta`, without folders above it.",
)


def _epochs(found: Any) -> int | None:
    if found is None:
        return None
    epochs = whole_number(found, -1)
    if not epochs or epochs > MAX_EPOCHS:
        raise ValueError
    return epochs


EPOCHS = Rule(
    "a whole number >= 1, or -1, or null",
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": MAX_EPOCHS}, {"enum": [-1, None]}]},
    _epochs,
)


@frozen
class Subset:
    """A range of samples: first an absolute range, then a relative one of what that leaves."""

    first: int = 0
    end: int | None = None  # None: the end of the dataset
    low: Fraction = Fraction(0)  # of the samples [first, end)
    high: Fraction = Fraction(1)

    @property
    def is_absolute(self) -> bool:
        """Whether it has numbers of samples."""
        return self.first != 0 or self.end is not None

    def within(self, inner: Subset) -> Subset:
        """Return this relative range, applied to what `inner` leaves."""
        span = inner.high - inner.low
        return evolve(inner, low=inner.low + self.low * span, high=inner.low + self.high * span)

    def bounds(self, num_samples: int, dataset: str) -> tuple[int, int]:
        """Return the range in a dataset of `num_samples`. SpecError if it is empty or exceeds it.

        dataset: its name in errors.
        """
        end = num_samples if self.end is None else self.end
        total = end - self.first
        first, end = self.first + int(total * self.low), self.first + int(total * self.high)
        problem = f"it has no samples in the range {self}" if first >= end else ""
        if self.first + total > num_samples or total < 0:
            problem = f"the range {self} exceeds the dataset"
        if problem:
            found = f"found {num_samples} in {dataset}"
            raise SpecError(f"{problem}, {found}. Give a range within them.")
        return first, end

    def __str__(self) -> str:
        end = "end" if self.end is None else self.end
        absolute = f"[{self.first}:{end}]" if self.is_absolute else ""
        is_relative = self.low != 0 or self.high != 1
        return absolute + (f"[{percent(self.low)}:{percent(self.high)}]" if is_relative else "")


FULL = Subset()


def percent(fraction: Fraction) -> str:
    """Return a finite decimal fraction as exact percents: Fraction(1, 8) -> `12.5%`."""
    value, digits = fraction * 100, 0
    while value.denominator > 1:
        value, digits = value * 10, digits + 1
    text = str(value.numerator).rjust(digits + 1, "0")
    return f"{text[:-digits]}.{text[-digits:]}%" if digits else f"{text}%"


_PERCENT = re.compile(r"^(100(\.0{1,200})?|[0-9]{1,2}(\.[0-9]{1,200})?)%$")


def subset_range(*, absolute: bool) -> Rule:
    """Return the rule of `range: [start, end]`.

    absolute: whether numbers of samples are allowed, as well as percentages.
    """
    percentage = {"type": "string", "pattern": _PERCENT.pattern}
    index = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
    ranges = [
        {
            "type": "array",
            "prefixItems": [start, {"anyOf": [start, {"const": "end"}]}],
            "items": False,
            "minItems": 2,
        }
        for start in ([percentage, index] if absolute else [percentage])
    ]
    schema = {
        "type": "object",
        "properties": {"range": {"anyOf": ranges}},
        "required": ["range"],
        "additionalProperties": False,
    }
    both = " or two numbers of samples" if absolute else ""
    must_be = f"`range: [start, end]` with two percentages{both}, start before end"
    return Rule(must_be, schema, lambda found: _subset(found, absolute=absolute))


def _subset(found: Any, *, absolute: bool) -> Subset:
    if not isinstance(found, dict) or list(found) != ["range"]:
        raise ValueError
    if not isinstance(found["range"], list) or len(found["range"]) != 2:
        raise ValueError
    start, end = found["range"]
    if isinstance(start, str):
        subset = Subset(low=_fraction(start), high=_fraction("100%" if end == "end" else end))
        empty = subset.low >= subset.high
    elif absolute:
        last = None if end == "end" else whole_number(end, 0)
        subset = Subset(first=whole_number(start, 0), end=last)
        empty = last is not None and subset.first >= last
    else:
        raise ValueError("Numbers of samples are for single datasets: use percentages here.")
    if empty:
        raise ValueError("The range is empty: its end must be greater than its start.")
    return subset


def _fraction(percentage: Any) -> Fraction:
    if not isinstance(percentage, str) or not _PERCENT.fullmatch(percentage):
        raise ValueError
    return Fraction(percentage.removesuffix("%")) / 100


_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
_KEYS_OF_CODE = ("__class__", "__function__")


@frozen
class Code:
    """The name of a class or a function in a module. Whether it may run is decided elsewhere."""

    module: str
    name: str
    is_class: bool

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _code(found: Any) -> Code:
    if not isinstance(found, dict) or len(found) != 2 or "__module__" not in found:
        raise ValueError
    named = next((key for key in _KEYS_OF_CODE if key in found), None)
    if named is None:
        raise ValueError
    module, name = found["__module__"], found[named]
    if not (isinstance(module, str) and re.fullmatch(_MODULE, module)):
        raise ValueError("The name of a module is like `package.module`.")
    if not (isinstance(name, str) and re.fullmatch(_NAME, name)):
        raise ValueError("The name of a class or function is like `CaptioningSample`.")
    return Code(module, name, is_class=named == "__class__")


CODE = Rule(
    "a mapping with `__module__` and one of `__class__` and `__function__`",
    {
        "type": "object",
        "properties": {
            "__module__": {"type": "string", "pattern": _MODULE},
            **{key: {"type": "string", "pattern": _NAME} for key in _KEYS_OF_CODE},
        },
        "required": ["__module__"],
        "additionalProperties": False,
        "oneOf": [{"required": [key]} for key in _KEYS_OF_CODE],
    },
    _code,
)


@frozen
class Aux:
    """A store of files for cookers."""

    path: str  # as written, without `filesystem`; absolute, or a URL, once it is resolved
    # A prepared dataset of tars, or the files or ranges of the files of a folder.
    kind: Literal["path", "fs_path", "byte_ranges"]
    storage: Mapping[str, Any] = field(factory=dict, eq=False)  # options of its object store


Stores: TypeAlias = dict[str, Aux]

_SCHEME = "^[A-Za-z][A-Za-z0-9+.-]*://"
_URL = rf"^({'|'.join(SCHEMES)})://."
_FOLDERS: dict[str, Literal["fs_path", "byte_ranges"]] = {
    "filesystem": "fs_path",
    "byterange": "byte_ranges",
}
_OF_FOLDER = f"^({'|'.join(_FOLDERS)})"


def _stores(found: Any) -> Stores:
    if not isinstance(found, dict):
        raise ValueError  # noqa: TRY004 - the caller reports the problem
    return {name: _store(name, each) for name, each in found.items()}


def _store(name: str, found: Any) -> Aux:
    kind: Literal["path", "fs_path", "byte_ranges"] = "path"
    if folder := re.match(rf"{_OF_FOLDER}(://|\+)", str(found)):
        kind, path = _FOLDERS[folder[1]], str(found)[folder.end() :]
        if (folder[2] == "+") != bool(re.match(_SCHEME, path)):
            raise ValueError(
                f"'{name}' is a folder: write {folder[1]}:// before its path, or {folder[1]}+ "
                "before its URL."
            )
    elif isinstance(found, dict):
        if list(found) not in (["path"], ["fs_path"]):
            raise ValueError(
                f"'{name}' has one key: `path` of a dataset, or `fs_path` of a folder."
            )
        ((kind, path),) = found.items()
    else:
        path = found
    if not isinstance(path, str) or not TEXT_PATTERN.fullmatch(path):
        raise ValueError(f"'{name}' must be a path.")
    if re.match(_SCHEME, path) and not re.match(_URL, path):
        raise ValueError(f"'{name}' has none of the schemes {listed(SCHEMES)}.")
    return Aux(path, kind)


_TEXT: dict[str, Any] = {"type": "string", "pattern": TEXT_PATTERN.pattern}
_PATH: dict[str, Any] = {
    **_TEXT,
    "anyOf": [{"not": {"pattern": _SCHEME}}, {"pattern": _URL}],
    "not": {"pattern": rf"{_OF_FOLDER}\+"},
}
_LOCAL_FOLDER = {
    "pattern": f"{_OF_FOLDER}://.",
    "not": {"pattern": f"{_OF_FOLDER}://{_SCHEME[1:]}"},
}
_REMOTE_FOLDER = {"pattern": rf"{_OF_FOLDER}\+{_URL[1:]}"}
_ONE_KEY = [
    {
        "type": "object",
        "properties": {key: _PATH},
        "required": [key],
        "additionalProperties": False,
    }
    for key in ("path", "fs_path")
]

STORES = Rule(
    "a mapping of names to paths, of prepared datasets or after `filesystem://` of folders",
    {
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                _PATH,
                {**_TEXT, "anyOf": [_LOCAL_FOLDER, _REMOTE_FOLDER]},
                *_ONE_KEY,
            ]
        },
    },
    _stores,
)
