"""Recipes: classes of specs, and of what stands in them, that can be written in YAML; their rules.

One attribute is one key. Its rule, its description, its example and its default stand with it; the
checker, the JSON Schema, the reference page and the error texts follow from them.

    @frozen
    class RepeatSpec(OrderSpec):
        kind = "repeat"
        of: Spec = child("What is repeated.", "of: {path: ./coco}")
        times: int = key(COUNT, "Number of passes.", "times: 3")

A kind whose name is the key of one of its attributes, such as `blend: [...]`, has its other keys
next to it. The keys of all other kinds stand below the kind: `repeat: {times: 3, of: ...}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from numbers import Integral
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

from attrs import NOTHING, Factory, evolve, field, fields, frozen

from energy_data.errors import SpecError

T = TypeVar("T")

_METADATA = "energy_data key"

MAX_COUNT = 2**62
MAX_WEIGHT = 1e15

TEXT_PATTERN = re.compile(r"^[^\u0000-\u001f\u007f\ud800-\udfff]+$")
NAME_PATTERN = re.compile(
    r"^[^\s\u0000-\u001f\u007f\ud800-\udfff./]([^\u0000-\u001f\u007f\ud800-\udfff./]*[^\s\u0000-\u001f\u007f\ud800-\udfff./])?$"
)
_AMOUNT = re.compile(r"^([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMBT])$")
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


@frozen
class ValueProblem:
    """A problem inside the value of a key."""

    path: tuple[str, ...]  # from the key to the problem, such as ("step", "5k")
    problem: str  # `{}` stands for a description of what was found
    at_key: bool = False  # it is the last key of the path, and not its value


class InvalidValueError(ValueError):
    """Problems inside the value of a key."""

    def __init__(self, problems: Sequence[ValueProblem]) -> None:
        super().__init__("; ".join(each.problem for each in problems))
        self.problems = tuple(problems)


@frozen(eq=False)
class Rule:
    """What the value of one key may be."""

    must_be: str  # completes "must be ..."
    schema: Mapping[str, Any]  # the same as JSON Schema
    accept: Callable[[Any], Any]
    """Converts plain data to the value of the attribute.

    Raises ValueError if the rule is broken, with advice where an example is not enough, or
    `InvalidValueError` for problems inside the value.
    """

    def allows(self, value: Any) -> bool:
        """Return whether the attribute may have a value that was given in Python."""
        try:
            return type(self.accept(value)) is type(value)
        except ValueError:
            return False


@frozen
class Child:
    """A key that holds one node."""


@frozen
class Children:
    """A key that holds several nodes."""

    part: type[Any] | None  # the class of the items, whose `of` is the node; None: only nodes
    form: Literal["list", "list or mapping", "splits"] = "list"  # a mapping has names of nodes


@frozen
class Group:
    """A key that holds a mapping with the keys of a class."""

    of: type[Any]


FieldProblem: TypeAlias = tuple[str, str]
"""A key, as a path from the node or from the mapping below the kind, and what is wrong."""


@frozen(kw_only=True)
class Yaml:
    """How a kind is written in YAML, and where it may stand."""

    about: str = ""  # one line for users, of a kind whose keys stand below it
    example: str = ""
    under_split_only: bool = False  # it stands directly below a split
    advice: str = "Name datasets by their `path`."  # if it is not allowed where it stands


Holds: TypeAlias = Rule | Child | Children | Group


@frozen(eq=False)
class Key:
    """The description of one key."""

    holds: Holds
    about: str  # one line for users
    example: str  # `key: value`
    name: str
    required: bool = False
    attribute: str = ""
    default: Any = None
    or_null: bool = False  # null is allowed, as in Energon, and means the default
    alias: str = ""  # another name of the key, which Energon has

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and its alias if it has one."""
        return (self.name, self.alias) if self.alias else (self.name,)


def declare(
    holds: Holds,
    about: str,
    example: str,
    *,
    name: str = "",
    required: bool = False,
    alias: str = "",
) -> dict[str, Any]:
    """Return the metadata of an attrs field that is a key.

    name: the key, if it is not the attribute's name. required: whether YAML must have it, although
    the attribute has a default. alias: another name of the key, for Energon's metadatasets.
    """
    return {_METADATA: Key(holds, about, example, name, required, alias=alias)}


def key(
    holds: Holds,
    about: str,
    example: str,
    *,
    default: Any = NOTHING,
    factory: Callable[[], Any] | None = None,
    **options: Any,
) -> Any:
    """Return an attribute that is a key. options: as for `declare`."""
    default = default if factory is None else Factory(factory)
    return field(default=default, metadata=declare(holds, about, example, **options))


def child(about: str, example: str, *, default: Any = NOTHING) -> Any:
    """Return an attribute that holds one node."""
    return key(Child(), about, example, default=default)


def children(part: type[Any] | None, about: str, example: str, *, name: str = "") -> Any:
    """Return an attribute that holds a tuple of nodes, or of parts whose `of` is a node."""
    return key(Children(part), about, example, name=name)


def _keys_of(cls: type[Any]) -> Mapping[str, Key]:
    """Return the keys of a class, by name."""
    found = {}
    for attribute in fields(cls):
        if described := attribute.metadata.get(_METADATA):
            required = described.required or attribute.default is NOTHING
            has_none = attribute.default is None or hasattr(attribute.default, "factory")
            one = evolve(
                described,
                name=described.name or attribute.name,
                required=required,
                attribute=attribute.name,
                default=attribute.default,
                or_null=has_none and not required,
            )
            found[one.name] = one
    return MappingProxyType(found)


keys_of: Callable[[type[Any]], Mapping[str, Key]] = cache(_keys_of)  # type: ignore[assignment]  # classes are hashable


def share_of(part: Any | None) -> Any:
    """Return the number a parent gives a child, its weight for example; None: there is none."""
    name = getattr(part, "share_key", None)
    return None if name is None else getattr(part, name)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to `word`, if one is near."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def listed(words: Iterable[str]) -> str:
    """Return words joined for a sentence: `a, b or c`."""
    *most, last = list(words)
    return f"{', '.join(most)} or {last}" if most else last


def whole_number(found: Any, minimum: int) -> int:
    """Return a number as an int. Raises ValueError if it is not whole, or is out of range."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError  # noqa: TRY004 - the caller reports the problem
    if not minimum <= found <= MAX_COUNT or found != int(found):
        raise ValueError
    return int(found)


def check_whole(name: str, value: Any, least: int, most: int = MAX_COUNT) -> None:
    """Raise SpecError unless an argument is a whole number from `least` to `most`."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if is_whole and least <= value <= most:
        return
    limit = f"<= {most}" if is_whole and value > most else f">= {least}"
    raise SpecError(f"{name}: must be a whole number {limit}, got {value!r}.")


def number(maximum: float) -> Rule:
    """Return the rule of a finite number >= 0."""

    def accept(found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ValueError  # noqa: TRY004 - the caller reports the problem
        if not 0 <= found <= maximum:  # NaN is not
            raise ValueError
        return found

    schema = {"type": "number", "minimum": 0, "maximum": maximum}
    return Rule(f"a number from 0 to {maximum:g}", schema, accept)


def one_of(*words: str, advice: str = "") -> Rule:
    """Return the rule of one of a few words. advice: for a word that is near to none of them."""

    def accept(found: Any) -> str:
        if found not in words:
            near = did_you_mean(str(found), words)
            raise ValueError(f"Did you mean '{near}'?" if near else advice)
        return str(found)

    return Rule(listed(f"'{word}'" for word in words), {"enum": list(words)}, accept)


def matching(pattern: re.Pattern[str], must_be: str, advice: str = "") -> Rule:
    """Return the rule of text that matches a pattern."""

    def accept(found: Any) -> str:
        if not isinstance(found, str) or not pattern.fullmatch(found):
            raise ValueError(advice if isinstance(found, str) else "")
        return found

    return Rule(must_be, {"type": "string", "pattern": pattern.pattern}, accept)


def of_type(data_type: type[Any], must_be: str, schema_type: str) -> Rule:
    """Return the rule of any value of one type."""

    def accept(found: Any) -> Any:
        if not isinstance(found, data_type):
            raise ValueError  # noqa: TRY004 - the caller reports the problem
        return found

    return Rule(must_be, {"type": schema_type}, accept)


def _positive(found: Any) -> float:
    value: float = NUMBER.accept(found)
    if not value:
        raise ValueError
    return value


def _amount(found: Any) -> Fraction:
    if isinstance(found, str) and (match := _AMOUNT.fullmatch(found)):
        digits, suffix = match.groups()
        return Fraction(digits) * SUFFIXES[suffix]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MAX_COUNT:
        raise ValueError
    return Fraction(str(found))


def _count(minimum: int) -> Callable[[Any], int]:
    return lambda found: whole_number(found, minimum)


def _target(found: Any) -> int | tuple[tuple[int, int], ...]:
    if not isinstance(found, list):
        return whole_number(found, 1)
    if not found or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise ValueError
    return tuple((whole_number(step, 0), whole_number(amount, 1)) for step, amount in found)


def _names(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list | tuple) or not found or len(set(map(str, found))) < len(found):
        raise ValueError
    return tuple(map(TEXT.accept, found))


_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}

NUMBER = number(MAX_WEIGHT)
POSITIVE = Rule(
    f"a number above 0, to {MAX_WEIGHT:g}",
    {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WEIGHT},
    _positive,
)
COUNT = Rule("a whole number >= 1", _COUNT_SCHEMA, _count(1))
TOKEN = Rule("a token, a whole number >= 0", {**_COUNT_SCHEMA, "minimum": 0}, _count(0))
SEED = Rule("a whole number >= 0", {**_COUNT_SCHEMA, "minimum": 0}, _count(0))
AMOUNT = Rule(
    "a number from 0, or one with K, M, B or T, such as 20B",
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": MAX_COUNT},
            {"type": "string", "pattern": _AMOUNT.pattern},
        ]
    },
    _amount,
)
TARGET = Rule(
    "a whole number >= 1, or pairs [step, number from then on]",
    {
        "anyOf": [
            _COUNT_SCHEMA,
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "array",
                    "prefixItems": [{**_COUNT_SCHEMA, "minimum": 0}, _COUNT_SCHEMA],
                    "items": False,
                    "minItems": 2,
                },
            },
        ]
    },
    _target,
)
TEXT = matching(TEXT_PATTERN, "text, not empty, without control characters")
NAMES = Rule(
    "a list of different texts",
    {
        "type": "array",
        "items": {"type": "string", "pattern": TEXT_PATTERN.pattern},
        "minItems": 1,
        "uniqueItems": True,
    },
    _names,
)
NAME = matching(NAME_PATTERN, "a name without '/', '.' or blanks at its ends")
FLAG = of_type(bool, "true or false", "boolean")
MAPPING = of_type(dict, "a mapping of names to plain data", "object")
