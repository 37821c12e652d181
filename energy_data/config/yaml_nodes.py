"""YAML text, or plain Python data, as values with places; and the errors found at these places.

Text is composed to plain values only: there are no tags and no constructors, so reading runs no
code. Anchors, aliases and merge keys (`<<`) work. An aliased value is shared, never copied, and
the size of the document with all aliases expanded is bounded.

Scalars follow YAML 1.1, as in Energon, with three safer exceptions: `1e-3` is a number, dates are
text, and numbers that readers disagree on (`010`, `1:30`) are rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeAlias

import yaml
from attrs import define, field, frozen

from energy_data.errors import SpecError

Scalar: TypeAlias = str | int | float | bool | None

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
MAX_VALUES = 1_000_000  # with all aliases expanded
MAX_DIGITS = 100  # of a number
SHOWN_LENGTH = 60  # characters of a found value in a message
SHOWN_VALUES = 10  # of a collection in a message
NUMBERED = (".step", ".linear", ".cosine")  # mappings at these keys may have whole numbers as keys


@frozen
class Place:
    """A place in a file."""

    file: str
    line: int = 0  # from 1; 0: not from a text
    column: int = 0  # from 1, in characters

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@define(eq=False)
class Diagnostics:
    """The problems found so far; each is kept once."""

    _texts: dict[tuple[Place, str, str], str] = field(factory=dict)
    num_reports: int = 0  # including those of known problems

    def report(self, place: Place, where: str, problem: str) -> None:
        """Add a problem.

        place: its place in the file. where: the key or node, empty for the file as a whole.
        problem: *what is wrong, what was found. What to do.* A value that is used twice through an
        alias is reported once.
        """
        self.num_reports += 1
        text = f"{place}: {where}: {problem}" if where else f"{place}: {problem}"
        # Without a line, only the key tells two places apart.
        self._texts.setdefault((place, "" if place.line else where, problem), text)

    def messages(self) -> list[str]:
        """Return one line per problem: files in the order they were read, from top to bottom."""
        files = list(dict.fromkeys(place.file for place, *_ in self._texts))
        rank = {file: number for number, file in enumerate(files)}
        places = sorted(
            self._texts, key=lambda found: (rank[found[0].file], found[0].line, found[0].column)
        )
        return [self._texts[found] for found in places]

    def raise_if_any(self) -> None:
        """Raise a SpecError with all problems, if there are any."""
        if self._texts:
            raise SpecError(self.messages())


def slip_of(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` misspells by one missing, doubled or swapped letter.

    For keys that accept any name: `vla` is a slip of `val`, `valid` may be a name of its own.
    """
    for name in known:
        rest = [name[:n] + name[n + 1 :] for n in range(len(name))]
        doubled = [name[:n] + name[n] + name[n:] for n in range(len(name) - 1)]
        swapped = [name[:n] + name[n + 1] + name[n] + name[n + 2 :] for n in range(len(name) - 1)]
        if word.lower() in (name, *rest, *doubled, *swapped):
            return name
    return None


def shown(text: str) -> str:
    """Return `text` in quotes, on one line, shortened for a message."""
    return repr(text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "...")


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
            text: str = yaml.safe_dump(
                self.plain(), default_flow_style=True, sort_keys=False, width=2 * SHOWN_LENGTH
            ).rstrip("\n")
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


class _Stop(Exception):  # noqa: N818 - never leaves this module
    """Reading cannot continue; the reason has been reported."""


def read_text(text: str | bytes, file: str, diagnostics: Diagnostics) -> Value | None:
    """Return the single document in `text`, or None if it cannot be read.

    file: the name of the file in messages.
    """
    reader = _Reader(file, diagnostics)
    try:
        composer = _BoundedComposer(_decoded(text, reader))
        composer.reader = reader
        if (node := composer.get_single_node()) is None:
            reader.stop(Place(file), "the file is empty. Write `splits:` with a split.")
        return reader.value(node, "", 0)
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
        return _Reader(name, diagnostics).value(data, "", 0)
    except _Stop:
        return None


_Composer = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _BoundedComposer(_Composer):  # type: ignore[misc, valid-type]  # the faster of two classes
    """Composes nodes without resolving tags. Stops before deep nesting overflows the C stack."""

    reader: _Reader  # reports a document that is too large or too deep
    depth = num_nodes = 0

    def resolve(self, _kind: Any, _value: Any, _implicit: Any) -> None:
        """Return no tag, so that a tag in the document can be recognised."""

    def descend_resolver(self, *_: Any) -> None:
        self.depth += 1
        self.num_nodes += 1
        if self.depth > MAX_DEPTH + 1 or self.num_nodes > MAX_VALUES:
            self.reader.count(Place(self.reader.file), self.num_nodes, self.depth - 1)

    def ascend_resolver(self) -> None:
        self.depth -= 1


@define(eq=False)
class _Reader:
    """Converts the YAML nodes of one document, or plain Python data, to values.

    Python data has places without a line, so messages name its keys instead.
    """

    file: str
    diagnostics: Diagnostics
    num_values: int = 0
    known: dict[int, Value | None] = field(factory=dict)  # by id of a node; None: being converted

    def count(self, place: Place, num_values: int, depth: int) -> None:
        """Add to the number of values of the document. Stops at the limits on size and depth."""
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

    def report(self, place: Place, where: str, problem: str) -> None:
        self.diagnostics.report(place, "" if place.line else where, problem)

    def value(self, source: Any, where: str, depth: int) -> Value:
        """Return the value of a YAML node, which is converted once, or of plain Python data."""
        mark: Any = getattr(source, "start_mark", None)
        place = Place(self.file, mark.line + 1, mark.column + 1) if mark else Place(self.file)
        if mark and id(source) in self.known:
            if (known := self.known[id(source)]) is None:
                self.stop(place, "the value contains itself through an alias. Remove the alias.")
            self.count(place, known.size, depth)
            return known
        self.count(place, 1, depth)
        if mark and source.tag is not None:
            problem = f"tags are not allowed, found {shown(source.tag)}. A metadataset is plain"
            self.report(place, where, f"{problem} data: remove the tag.")
        self.known[id(source)] = None
        content = source.value if mark else source
        if isinstance(source, yaml.MappingNode | Mapping):
            pairs = content if mark else content.items()
            value = self.mapping(pairs, place, where, depth)
        elif isinstance(content, list | tuple):
            items = [self.value(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(content)]
            value = Value(items, place, size=1 + sum(item.size for item in items))
        else:
            value = Value(self.scalar(source, place, where), place)
        self.known[id(source)] = value
        return value

    def scalar(self, source: Any, place: Place, where: str) -> Scalar:
        if isinstance(source, yaml.ScalarNode):
            if source.style:  # quoted
                return str(source.value)
            try:
                return scalar_of(source.value)
            except ValueError as error:
                self.report(place, where, f"invalid number, found {shown(source.value)}: {error}.")
                return str(source.value)
        if isinstance(source, os.PathLike):
            return str(os.fspath(source))
        if isinstance(source, str | int | float | bool | None):
            return source
        problem = f"must be plain data, found a {type(source).__name__}. Use dict, list, str,"
        self.report(place, where, f"{problem} numbers, bool or None.")
        return None

    def mapping(self, pairs: Iterable[Any], place: Place, where: str, depth: int) -> Value:
        own: dict[str, Value] = {}
        keys: dict[str, Place] = {}
        merged: list[Value] = []
        is_numbered = where.endswith(NUMBERED)
        for source, content in pairs:
            key = self.value(source, where, depth + 1)
            name = str(key.data) if is_numbered and type(key.data) is int else key.data
            inner = f"{where}.{name}" if where else str(name)
            value = self.value(content, inner, depth + 1)
            if name == "<<" and isinstance(source, yaml.ScalarNode) and not source.style:
                merged += self.merged(value)
            elif not isinstance(name, str):
                problem = f"keys must be text, found {key.describe()}. Quote it."
                self.report(key.place, inner, problem)
            elif name in keys:
                problem = f"duplicate key {shown(name)}, first used in line {keys[name].line}."
                self.report(key.place, inner, f"{problem} Keep one.")
            else:
                own[name], keys[name] = value, key.place
        for mapping in merged:  # own keys win, then the first mapping listed
            assert isinstance(mapping.data, dict)
            for name, value in mapping.data.items():
                if name not in own:
                    self.count(value.place, value.size, depth)
                    own[name], keys[name] = value, mapping.keys[name]
        return Value(own, place, keys, 1 + sum(value.size for value in own.values()))

    def merged(self, value: Value) -> list[Value]:
        """Return the mappings that a `<<` merges."""
        values = value.data if isinstance(value.data, list) else [value]
        for each in values:
            if not isinstance(each.data, dict):
                problem = f"`<<` merges mappings, found {each.describe()}. Use an alias of one."
                self.diagnostics.report(each.place, "", problem)
        return [each for each in values if isinstance(each.data, dict)]


def _decoded(text: str | bytes, reader: _Reader) -> str:
    place = Place(reader.file)
    if len(text) > MAX_BYTES:
        size = f"found {len(text):,} bytes where {MAX_BYTES:,} are allowed"
        reader.stop(place, f"too large, {size}. Split it into nested files.")
    try:
        if isinstance(text, str):
            text.encode()
            return text
        return text.decode("utf-8-sig")
    except UnicodeEncodeError as error:
        found = f"the character 0x{ord(error.object[error.start]):04x}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        place = Place(reader.file, line, column)
        found = f"the byte 0x{error.object[error.start]:02x}"
    reader.diagnostics.report(place, "", f"not UTF-8, found {found}. Save the file as UTF-8.")
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
    """Return the meaning of a plain scalar. Raises ValueError if its number is not clear."""
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
    if not _FLOAT.fullmatch(text):
        return text
    value = float(text)
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise ValueError("a number too small for a float. Write 0, or a larger one")
    return value
