"""YAML text, or plain Python data, as values that know their place in the file.

Text is composed to plain values only: there are no tags and no constructors, so reading runs no
code. Anchors, aliases and merge keys (`<<`) work. An aliased value is shared, never copied, and
the size of the document with all aliases expanded is bounded.

Scalars follow YAML 1.1, as in Energon, with three safer exceptions: `1e-3` is a number, dates are
text, and numbers that readers disagree on (`010`, `1:30`) are rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

import yaml
from attrs import field, frozen

from energy_data.config.diagnostics import SHOWN_LENGTH, Diagnostics, Place, shown

Scalar: TypeAlias = str | int | float | bool | None

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
MAX_VALUES = 1_000_000  # with all aliases expanded
MAX_DIGITS = 100  # of a number
SHOWN_VALUES = 10  # of a collection in a message
NUMBERED = ("step", "linear", "cosine")  # mappings below these keys may have whole numbers as keys


@frozen(eq=False)
class Value:
    """One value of a document and its place."""

    data: Scalar | list[Value] | dict[str, Value]
    place: Place
    keys: Mapping[str, Place] = field(factory=dict)  # places of the keys of a mapping
    size: int = 1  # number of values in it, itself included, with all aliases expanded

    def describe(self) -> str:
        """Return in words what was found here."""
        match self.data:
            case None:
                return "nothing"
            case bool():
                return f"the flag {str(self.data).lower()}"
            case str():
                return f"the text {shown(self.data)}"
            case list() | dict():
                return self._describe_collection(self.data)
        return f"the number {self.data}"

    def _describe_collection(self, data: list[Value] | dict[str, Value]) -> str:
        if self.size <= SHOWN_VALUES:
            text = _flow(self)
            if len(text) <= SHOWN_LENGTH and text.isprintable():
                return text
        if isinstance(data, list):
            return f"a list of {len(data)}"
        return f"a mapping with {shown(', '.join(data))}"

    def plain(self) -> Any:
        """Return the value as plain Python data."""
        if isinstance(self.data, dict):
            return {name: value.plain() for name, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data


def _flow(value: Value) -> str:
    """Return a small value as YAML on one line."""
    match value.data:
        case None:
            return "~"
        case bool():
            return str(value.data).lower()
        case list():
            return f"[{', '.join(map(_flow, value.data))}]"
        case dict():
            inner = ", ".join(f"{name}: {_flow(each)}" for name, each in value.data.items())
            return f"{{{inner}}}"
    return str(value.data)


class _Stop(Exception):  # noqa: N818 - never leaves this module
    """Reading cannot continue; the reason has been reported."""


def read_text(text: str | bytes, file: str, diagnostics: Diagnostics) -> Value | None:
    """Return the single document in `text`, or None if it cannot be read.

    file: the name of the file in messages.
    """
    try:
        decoded = _decoded(text, file, diagnostics)
        return _TextReader(file, diagnostics).document(decoded)
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        problem = error.problem or error.context or "it does not parse"
    except yaml.YAMLError as error:  # errors about characters have no mark
        place, problem = Place(file), " ".join(str(error).split())
    if problem == "but found another document":
        problem = "more than one document in the file. Remove the `---` and everything after it."
    elif problem == "found undefined alias":
        problem = "undefined alias. Define it above with `&name` before a value."
    else:
        problem = (
            f"not valid YAML, {problem}. Check this line and the one above for a missing quote, "
            "colon or bracket, or a tab."
        )
    diagnostics.report(place, "", problem)
    return None


def read_data(data: Any, name: str, diagnostics: Diagnostics) -> Value | None:
    """Return plain Python data as a value, or None if it is too deep or too large.

    name: what messages show in place of a file.
    """
    try:
        return _DataReader(name, diagnostics).value(data, "", 0)
    except _Stop:
        return None


class _Reader:
    """Enforces the limits on size and depth."""

    def __init__(self, file: str, diagnostics: Diagnostics) -> None:
        self.file, self.diagnostics = file, diagnostics
        self.num_values = 0

    def count(self, place: Place, num_values: int, depth: int) -> None:
        """Add to the number of values of the document."""
        self.num_values += num_values
        if self.num_values > MAX_VALUES:
            self.stop(
                place,
                f"too large, more than {MAX_VALUES:,} values with aliases expanded. Split it into "
                "nested files.",
            )
        if depth > MAX_DEPTH:
            self.stop(place, f"nested too deeply, more than {MAX_DEPTH} levels. Flatten it.")

    def stop(self, place: Place, problem: str) -> NoReturn:
        self.diagnostics.report(place, "", problem)
        raise _Stop


_Composer = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedComposer(_Composer):  # type: ignore[misc, valid-type]  # the faster of two classes
    """Composes nodes without resolving tags. Stops before deep nesting overflows the C stack."""

    depth = num_nodes = 0

    def resolve(self, _kind: Any, _value: Any, _implicit: Any) -> None:
        """Return no tag, so that a tag in the document can be recognised."""

    def descend_resolver(self, *_: Any) -> None:
        self.depth += 1
        self.num_nodes += 1
        if self.depth > MAX_DEPTH + 1 or self.num_nodes > MAX_VALUES:
            raise _Stop

    def ascend_resolver(self) -> None:
        self.depth -= 1


class _TextReader(_Reader):
    """Converts the YAML nodes of one document to values."""

    def __init__(self, file: str, diagnostics: Diagnostics) -> None:
        super().__init__(file, diagnostics)
        self.known: dict[tuple[int, bool], Value | None] = {}  # by node; None: being converted

    def document(self, text: str) -> Value:
        composer = _BoundedComposer(text)
        try:
            node = composer.get_single_node()
        except _Stop:
            self.count(Place(self.file), composer.num_nodes, composer.depth - 1)
            raise
        finally:
            composer.dispose()
        if node is None:
            self.stop(Place(self.file), "the file is empty. Write `splits:` with a split.")
        return self.value(node, 0)

    def place(self, node: yaml.Node) -> Place:
        mark: Any = node.start_mark
        return Place(self.file, mark.line + 1, mark.column + 1)

    def value(self, node: yaml.Node, depth: int, under: object = None) -> Value:
        """Return the value of a node; an aliased node is converted once."""
        key, place = (id(node), under in NUMBERED), self.place(node)
        if key in self.known:
            if (known := self.known[key]) is None:
                self.stop(place, "the value contains itself through an alias. Remove the alias.")
            self.count(place, known.size, depth)
            return known
        self.count(place, 1, depth)
        if node.tag is not None:
            self.report(
                node,
                f"tags are not allowed, found {shown(node.tag)}. A metadataset is plain data: "
                "remove the tag.",
            )
        self.known[key] = None
        value = self.known[key] = self.converted(node, depth, numbered=under in NUMBERED)
        return value

    def converted(self, node: yaml.Node, depth: int, *, numbered: bool) -> Value:
        if isinstance(node, yaml.ScalarNode):
            return Value(self.scalar(node), self.place(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, depth, numbered=numbered)
        items = [self.value(item, depth + 1) for item in node.value]
        return Value(items, self.place(node), size=1 + sum(item.size for item in items))

    def report(self, node: yaml.Node, problem: str) -> None:
        self.diagnostics.report(self.place(node), "", problem)

    def scalar(self, node: yaml.ScalarNode) -> Scalar:
        if node.style:  # quoted
            return str(node.value)
        try:
            return scalar_of(node.value)
        except ValueError as error:
            self.report(node, f"ambiguous, found {shown(node.value)}: {error}.")
            return str(node.value)

    def mapping(self, node: yaml.MappingNode, depth: int, *, numbered: bool) -> Value:
        own: dict[str, Value] = {}
        keys: dict[str, Place] = {}
        merged: list[Value] = []
        for key_node, value_node in node.value:
            key = self.value(key_node, depth + 1)
            name = str(key.data) if numbered and type(key.data) is int else key.data
            value = self.value(value_node, depth + 1, name)
            if name == "<<" and not key_node.style:
                merged += self.merged(value)
            elif not isinstance(name, str):
                self.report(key_node, f"keys must be text, found {key.describe()}. Quote it.")
            elif name in keys:
                problem = f"duplicate key {shown(name)}, first used in line {keys[name].line}."
                self.report(key_node, f"{problem} Keep one.")
            else:
                own[name], keys[name] = value, key.place
        for mapping in merged:  # own keys win, then the first mapping listed
            assert isinstance(mapping.data, dict)
            for name, value in mapping.data.items():
                if name not in own:
                    self.count(value.place, value.size, depth)
                    own[name], keys[name] = value, mapping.keys[name]
        return Value(own, self.place(node), keys, 1 + sum(value.size for value in own.values()))

    def merged(self, value: Value) -> list[Value]:
        """Return the mappings that a `<<` merges."""
        values = value.data if isinstance(value.data, list) else [value]
        for each in values:
            if not isinstance(each.data, dict):
                problem = f"`<<` merges mappings, found {each.describe()}. Use an alias of one."
                self.diagnostics.report(each.place, "", problem)
        return [each for each in values if isinstance(each.data, dict)]


class _DataReader(_Reader):
    """Converts plain Python data. Places have no line, so messages name keys instead."""

    def value(self, data: Any, where: str, depth: int) -> Value:
        place = Place(self.file)
        self.count(place, 1, depth)
        if isinstance(data, Mapping):
            return self.mapping(data, where, depth)
        if isinstance(data, list | tuple):
            items = [self.value(each, f"{where}[{n}]", depth + 1) for n, each in enumerate(data)]
            return Value(items, place, size=1 + sum(item.size for item in items))
        if isinstance(data, os.PathLike):
            return Value(os.fspath(data), place)
        if data is None or isinstance(data, str | int | float | bool):
            return Value(data, place)
        self.diagnostics.report(
            place,
            where,
            f"must be plain data, found a {type(data).__name__}. Use dict, list, str, numbers, "
            "bool or None.",
        )
        return Value(None, place)

    def mapping(self, data: Mapping[Any, Any], where: str, depth: int) -> Value:
        own: dict[str, Value] = {}
        place = Place(self.file)
        numbered = where.rpartition(".")[2] in NUMBERED
        for key, item in data.items():
            inner = f"{where}.{key}" if where else str(key)
            if isinstance(key, str) or (numbered and type(key) is int):
                own[str(key)] = self.value(item, inner, depth + 1)
            else:
                problem = f"keys must be text, found {key!r}. Use a str."
                self.diagnostics.report(place, inner, problem)
        size = 1 + sum(value.size for value in own.values())
        return Value(own, place, dict.fromkeys(own, place), size)


def _decoded(text: str | bytes, file: str, diagnostics: Diagnostics) -> str:
    if len(text) > MAX_BYTES:
        size = f"found {len(text):,} bytes where {MAX_BYTES:,} are allowed"
        diagnostics.report(Place(file), "", f"too large, {size}. Split it into nested files.")
        raise _Stop
    try:
        if isinstance(text, str):
            text.encode()
            return text
        return text.decode("utf-8-sig")
    except UnicodeEncodeError as error:
        place, found = Place(file), f"the character 0x{ord(error.object[error.start]):04x}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        place, found = Place(file, line, column), f"the byte 0x{error.object[error.start]:02x}"
    diagnostics.report(place, "", f"not UTF-8, found {found}. Save the file as UTF-8.")
    raise _Stop


_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{
        sign + word: float(f"{sign}inf")
        for sign in ("", "+", "-")
        for word in (".inf", ".Inf", ".INF")
    },
}
_DIGITS = "[0-9](?:_?[0-9])*"
_INTEGER = re.compile("[-+]?(?:0|[1-9](?:_?[0-9])*)")
_HEXADECIMAL = re.compile("[-+]?0x[0-9a-fA-F]+")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?")
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[0-9_]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)"
)


def scalar_of(text: str) -> Scalar:
    """Return the meaning of a plain scalar. Raises ValueError if it is ambiguous."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _AMBIGUOUS.fullmatch(text):
        raise ValueError(
            "some readers take it for a number in another base. Quote it, or write a plain "
            "decimal number"
        )
    whole = _INTEGER.fullmatch(text)
    if (whole or _FLOAT.fullmatch(text)) and len(text) > MAX_DIGITS:
        raise ValueError(f"a number of more than {MAX_DIGITS} digits. Quote it if it is text")
    if whole:
        return int(text)
    if len(text) <= MAX_DIGITS and _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    return float(text) if _FLOAT.fullmatch(text) else text
