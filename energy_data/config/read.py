"""YAML text, or plain Python data, as values that know their place.

Text is read event by event and becomes plain values only: no tags, no constructors, nothing that
could run code. Anchors, aliases and merge keys (`<<`) work; a value used again is shared, never
copied, and the size of the document with all aliases written out is bounded: no file is a bomb.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import yaml
from attrs import evolve, field, frozen

from energy_data.config.faults import SHOWN_LENGTH, Faults, Place, shown
from energy_data.config.scalars import Scalar, scalar_of

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
MAX_VALUES = 1_000_000  # with every alias written out
SHOWN_VALUES = 10  # of a collection in a message
NUMBERED = ("step", "linear", "cosine")  # keys of mappings whose own keys may be whole numbers

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@frozen(eq=False)
class Value:
    """One value of a document and where it stands."""

    data: Scalar | list[Value] | dict[str, Value]
    place: Place
    keys: Mapping[str, Place] = field(factory=dict)  # of a mapping: where its keys stand
    size: int = 1  # values in it, itself included, with every alias written out

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
                return self._describe_collection()
        return f"the number {self.data}"

    def _describe_collection(self) -> str:
        if self.size <= SHOWN_VALUES:
            text = _flow(self)
            if len(text) <= SHOWN_LENGTH and text.isprintable():
                return text
        if isinstance(self.data, list):
            return f"a list of {len(self.data)}"
        assert isinstance(self.data, dict)
        return f"a mapping with {shown(', '.join(self.data))}"

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
    """Reading cannot go on; the reason is among the faults."""


def read_text(text: str | bytes, file: str, faults: Faults) -> Value | None:
    """Return the one document in `text`, or None if it could not be read.

    file: its name in messages.
    """
    try:
        return _Composer(file, faults).document(_decoded(text, file, faults))
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        problem = error.problem or error.context or "it does not parse"
    except yaml.YAMLError as error:  # characters that may not stand in YAML have no mark
        place, problem = Place(file), " ".join(str(error).split())
    faults.add(
        place,
        "",
        f"not valid YAML, {problem}. Look here and just above for a missing quote, colon or "
        "bracket, or a tab.",
    )
    return None


def read_data(data: Any, name: str, faults: Faults) -> Value | None:
    """Return plain Python data as a value, or None if it is too deep or too large.

    name: what stands in messages in place of a file.
    """
    try:
        return _DataReader(name, faults).value(data, "", 0)
    except _Stop:
        return None


class _Reader:
    """Keeps the bounds."""

    def __init__(self, file: str, faults: Faults) -> None:
        self.file, self.faults = file, faults
        self.num_values = 0

    def count(self, place: Place, num_values: int, depth: int) -> None:
        """Note that the document has these values more."""
        self.num_values += num_values
        if self.num_values > MAX_VALUES:
            self.stop(
                place,
                f"too large, more than {MAX_VALUES:,} values with aliases written out. Split it "
                "into nested files.",
            )
        if depth > MAX_DEPTH:
            self.stop(place, f"nested too deep, more than {MAX_DEPTH} levels. Flatten it.")

    def stop(self, place: Place, problem: str, where: str = "") -> NoReturn:
        self.faults.add(place, where, problem)
        raise _Stop


class _Composer(_Reader):
    """Makes values of the events of one document."""

    def __init__(self, file: str, faults: Faults) -> None:
        super().__init__(file, faults)
        self.anchors: dict[str, Value | None] = {}  # None: its value is being read

    def document(self, text: str) -> Value:
        events = yaml.parse(text, Loader=_LOADER)
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            self.stop(Place(self.file), "empty, found no document. Write `splits:` and so on.")
        value = self.value(next(events), events, 0)
        next(events)  # the end of the document
        following = next(events)
        if not isinstance(following, yaml.StreamEndEvent):
            self.stop(
                self.place(following),
                "one document per file, found a second one. Take out the `---` and what follows.",
            )
        return value

    def place(self, event: yaml.Event) -> Place:
        mark: Any = event.start_mark
        return Place(self.file, mark.line + 1, mark.column + 1)

    def value(
        self, event: yaml.Event, events: Iterator[yaml.Event], depth: int, under: object = None
    ) -> Value:
        place = self.place(event)
        if isinstance(event, yaml.AliasEvent):
            return self.anchored(event, place, depth)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        self.count(place, 1, depth)
        if event.tag is not None:
            self.faults.add(
                place,
                "",
                f"tags are not allowed, found {shown(event.tag)}. A metadataset is plain data: "
                "take the tag out.",
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        value = self.untagged(event, events, depth, under)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def untagged(
        self, event: yaml.Event, events: Iterator[yaml.Event], depth: int, under: object
    ) -> Value:
        if isinstance(event, yaml.ScalarEvent):
            return Value(self.scalar(event), self.place(event))
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(event, events, depth, under in NUMBERED)
        items: list[Value] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(self.value(item, events, depth + 1))
        return Value(items, self.place(event), size=1 + sum(item.size for item in items))

    def anchored(self, event: yaml.AliasEvent, place: Place, depth: int) -> Value:
        name = str(event.anchor)
        if (value := self.anchors.get(name)) is None:
            found = "stands inside what it names" if name in self.anchors else "names nothing"
            problem = f"the alias *{name} {found}. Put &{name} before a whole value further up."
            self.stop(place, problem)
        self.count(place, value.size, depth)
        return value

    def scalar(self, event: yaml.ScalarEvent) -> Scalar:
        if not event.implicit[0]:
            return str(event.value)
        try:
            return scalar_of(event.value)
        except ValueError as error:
            self.faults.add(
                self.place(event), "", f"not clear, found {shown(event.value)}: {error}."
            )
            return str(event.value)

    def mapping(
        self, event: yaml.Event, events: Iterator[yaml.Event], depth: int, numbered: bool
    ) -> Value:
        place = self.place(event)
        own: dict[str, Value] = {}
        keys: dict[str, Place] = {}
        merged: list[Value] = []
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self.value(event, events, depth + 1)
            if numbered and type(key.data) is int:
                key = evolve(key, data=str(key.data))
            value = self.value(next(events), events, depth + 1, key.data)
            if key.data == "<<" and getattr(event, "implicit", (False,))[0]:
                merged += self.merged(value)
            elif self.is_key(key, keys):
                assert isinstance(key.data, str)
                own[key.data], keys[key.data] = value, key.place
        self.merge(merged, own, keys, depth)
        return Value(own, place, keys, size=1 + sum(value.size for value in own.values()))

    def is_key(self, key: Value, known: Mapping[str, Place]) -> bool:
        """Return whether `key` can be added to a mapping that has the keys `known`."""
        if not isinstance(key.data, str):
            problem = f"keys must be text, found {key.describe()}. Put it in quotes."
        elif key.data in known:
            first = known[key.data]
            problem = (
                f"duplicate key {shown(key.data)}, first given in line {first.line}. Keep one."
            )
        else:
            return True
        self.faults.add(key.place, "", problem)
        return False

    def merged(self, value: Value) -> list[Value]:
        """Return the mappings that stand behind a `<<`."""
        values = value.data if isinstance(value.data, list) else [value]
        wrong = [each for each in values if not isinstance(each.data, dict)]
        for each in wrong:
            self.faults.add(
                each.place,
                "",
                f"`<<` takes in mappings, found {each.describe()}. Name one by its alias.",
            )
        return [] if wrong else values

    def merge(
        self, merged: list[Value], own: dict[str, Value], keys: dict[str, Place], depth: int
    ) -> None:
        """Add what is taken in by `<<`; own keys come first, then the mappings as listed."""
        for mapping in merged:
            assert isinstance(mapping.data, dict)
            for name, value in mapping.data.items():
                if name not in own:
                    self.count(value.place, value.size, depth)
                    own[name], keys[name] = value, mapping.keys[name]


class _DataReader(_Reader):
    """Makes values of plain Python data; places have no line, so faults name keys instead."""

    def value(self, data: Any, where: str, depth: int) -> Value:
        place = Place(self.file)
        self.count(place, 1, depth)
        if isinstance(data, Mapping):
            return self.mapping(data, where, depth)
        if isinstance(data, list | tuple):
            items = [
                self.value(item, f"{where}[{number}]", depth + 1)
                for number, item in enumerate(data)
            ]
            return Value(items, place, size=1 + sum(item.size for item in items))
        if isinstance(data, os.PathLike):
            return Value(os.fspath(data), place)
        if data is None or isinstance(data, str | int | float | bool):
            return Value(data, place)
        self.faults.add(
            place,
            where,
            f"must be plain data, found a {type(data).__name__}. Use dict, list, str, numbers, "
            "bool or None.",
        )
        return Value(None, place)

    def mapping(self, data: Mapping[Any, Any], where: str, depth: int) -> Value:
        own: dict[str, Value] = {}
        numbered = where.rpartition(".")[2] in NUMBERED
        for key, item in data.items():
            inner = f"{where}.{key}" if where else str(key)
            if isinstance(key, str) or (numbered and type(key) is int):
                own[str(key)] = self.value(item, inner, depth + 1)
            else:
                self.faults.add(
                    Place(self.file), inner, f"keys must be text, found {key!r}. Make it a str."
                )
        place = Place(self.file)
        size = 1 + sum(value.size for value in own.values())
        return Value(own, place, dict.fromkeys(own, place), size)


def _decoded(text: str | bytes, file: str, faults: Faults) -> str:
    if len(text) > MAX_BYTES:
        size = f"found {len(text):,} bytes where {MAX_BYTES:,} are allowed"
        faults.add(Place(file), "", f"too large, {size}. Split it into nested files.")
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
    faults.add(place, "", f"not UTF-8, found {found}. Save the file as UTF-8.")
    raise _Stop
