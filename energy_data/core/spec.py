"""Specs: frozen descriptions of a tree, which build its nodes.

Below reading, nodes return *references*: which sample of which leaf, in numpy blocks
(`energy_data.nodes.references`). Above reading, they return *samples* and *batches*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from inspect import isclass
from itertools import repeat
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from attrs import NOTHING, Attribute, Factory, evolve, fields, fields_dict, has

from energy_data.core.context import Context
from energy_data.core.node import Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.errors import SpecError, StateError

ItemKind = Literal["references", "samples", "batches"]


_KINDS: dict[str, type[Spec]] = {}  # every imported class, by its kind


class InvalidRecipeError(SpecError):
    """A spec whose fields contradict each other or are out of range."""

    def __init__(self, kind: str, problems: Sequence[FieldProblem]) -> None:
        super().__init__([f"{kind}: {problem}" for _, problem in problems])
        self.kind, self.problems = kind, tuple(problems)

    def __reduce__(self) -> tuple[type[InvalidRecipeError], tuple[Any, ...]]:
        return type(self), (self.kind, self.problems)


class Spec(ABC):
    """A frozen description of one node and its children; small, and picklable."""

    kind: ClassVar[str]
    """The name of this class of specs in states, errors and paths. Unique among those saved."""

    is_saved: ClassVar[bool] = True
    """Whether states have such specs."""

    unsaved: ClassVar[tuple[str, ...]] = ()
    """Fields that a state does not have, as they may change between runs. Give them defaults."""

    yaml: ClassVar[Yaml] = Yaml()  # how it is written in YAML, if it is

    children_are_sequential: ClassVar[bool] = False  # children play one after another

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in cls.__dict__ and cls.is_saved:
            # attrs creates a class with slots a second time.
            assert _KINDS.get(cls.kind, cls).__qualname__ == cls.__qualname__, f"two {cls.kind}"
            _KINDS[cls.kind] = cls

    @property
    def is_one_to_one(self) -> bool:
        """Whether item n is made of item n of the child, if nothing is skipped."""
        return False

    def __attrs_post_init__(self) -> None:
        if problems := list(self.check()):
            raise InvalidRecipeError(self.kind, problems)

    def check(self) -> Iterator[FieldProblem]:
        """Yield the problems of the fields: the key at fault, such as `blend[1].weight`, and text.

        The empty key stands for the node. Constructors raise SpecError with all of them.
        """
        yield from ()

    @property
    def holders(self) -> Mapping[str, Any]:
        """What holds each child, by the name of the child: itself, or a part whose `of` it is.

        Holders are values of fields, named as the field, and items of tuples, named by their
        `name`, or else by their number.
        """
        cls: type[Any] = type(self)
        found: dict[str, Any] = {}
        for one in fields(cls):
            value = getattr(self, one.name)
            if isinstance(value, Spec):
                found[one.name] = value
            elif isinstance(value, tuple):
                for number, item in enumerate(value):
                    if isinstance(item, Spec) or isinstance(getattr(item, "of", None), Spec):
                        found[getattr(item, "name", str(number))] = item
        return found

    @property
    def children(self) -> Mapping[str, Spec]:
        """The specs under this one, by name; names are parts of paths in a state."""
        holders = self.holders.items()
        return {name: held if isinstance(held, Spec) else held.of for name, held in holders}

    def with_children(self, children: Iterable[Spec]) -> Self:
        """Return the spec with other children, in the order of `children`."""
        cls: type[Any] = type(self)
        rest = iter(children)

        def replaced(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(replaced, value))
            if isinstance(value, Spec):
                return next(rest)
            is_part = isinstance(getattr(value, "of", None), Spec)
            return evolve(value, of=next(rest)) if is_part else value

        names = [one.name for one in fields(cls) if one.init]
        changed: Self = cls(**{name: replaced(getattr(self, name)) for name in names})
        return changed

    @property
    def item_kind(self) -> ItemKind:
        """The kind of items that the node returns: by default that of its first child."""
        return next((child.item_kind for child in self.children.values()), "references")

    @abstractmethod
    def build(self, context: Context) -> Node[Any]:
        """Return the node for one lane. Opens nothing: that happens on the first draw."""

    def num_items(self, context: Context, epoch: int) -> int | None:
        """Return the number of items of an epoch over all lanes, if nothing is skipped.

        None: the epoch never ends, or the number is not known.
        """
        return None

    def items_per_lane(self, context: Context) -> int:
        """Return how many full items a lane returns before it ends, or draws its leaves again.

        Assumes that nothing is skipped. Raises SpecError if the number is known only after a run.
        """
        raise SpecError(
            f"the number of items of a {self.kind} is known only after it has run, so "
            f"{context.lanes} lanes cannot end together"
        )

    def replay_blocker(self) -> str | None:
        """Return the kind of the node that cannot replay items from references; None: all can.

        Nodes that hold samples back need it of their children: a state has references, not samples.
        """
        return self.kind

    def to_dict(
        self, child: Callable[[Spec], Any] | None = None, *, defaults: bool = False
    ) -> list[Any]:
        """Return what decides the stream, as plain JSON data: `[kind, fields]`.

        Functions, fields in `unsaved`, and fields with their default value are omitted. Specs that
        draw the same stream have equal data; a kind overrides it where their fields may differ.

        child: returns the data of a child; by default the child's `to_dict`.
        defaults: whether fields with their default value are included.
        """
        child = child or (lambda spec: spec.to_dict(defaults=defaults))
        return [self.kind, fields_to_dict(self, child, defaults=defaults)]

    @staticmethod
    def from_dict(data: Any, child: Callable[[Any], Spec] | None = None) -> Spec:
        """Return the spec that `to_dict` wrote; its functions raise TypeError when they are called.

        child: returns the spec of a child's data. Raises StateError for a kind that no imported
        class has, and TypeError, ValueError, NameError or SpecError for damaged data.
        """
        kind, values = data
        if kind not in _KINDS:
            raise StateError(
                f"state: its tree has a {kind!r}, which no imported class of specs is. Import the "
                f"module that defines it, or use the version of energy_data that saved the state."
            )
        return cast(Spec, _attrs_from_dict(_KINDS[kind], values, child or Spec.from_dict))

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """Yield every spec of the tree with its path, parents first."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk((*path, name))


def fields_to_dict(value: Any, child: Callable[[Spec], Any], *, defaults: bool) -> dict[str, Any]:
    """Return the fields of an attrs value as plain data, without functions; see `Spec.to_dict`."""
    found = {}
    for one in fields(type(value)):
        if not one.init or one.name in getattr(value, "unsaved", ()):
            continue
        now = getattr(value, one.name)
        if defaults or not _is_default(one, now):
            data = _plain(now, child, defaults=defaults)
            if data is not _FUNCTION:
                found[one.name] = data
    return found


_FUNCTION = object()


def _is_default(one: Attribute[Any], value: Any) -> bool:
    default: Any = one.default
    if isinstance(default, Factory):  # type: ignore[arg-type]  # attrs types it as a function
        return not default.takes_self and bool(value == default.factory())
    return default is not NOTHING and bool(value == default)


def _plain(value: Any, child: Callable[[Spec], Any], *, defaults: bool) -> Any:
    """Return a value of a field as plain data; `_FUNCTION` for what a state cannot have."""
    if isinstance(value, Spec):
        return child(value)
    if value is None or isinstance(value, int | float | str):
        return value
    found: Any = _FUNCTION
    if isinstance(value, Fraction):
        found = str(value)
    elif isinstance(value, Mapping):
        items = sorted(value.items())
        found = {name: _plain(item, child, defaults=defaults) for name, item in items}
    elif isinstance(value, list | tuple):
        found = [_plain(item, child, defaults=defaults) for item in value]
    elif has(type(value)) and not callable(value):
        found = fields_to_dict(value, child, defaults=defaults)
    return found


def _attrs_from_dict(cls: type[Any], data: Any, child: Callable[[Any], Spec]) -> Any:
    """Return an attrs value of plain data."""
    annotations = _annotations(cls)  # type: ignore[arg-type]  # mypy: classes are hashable
    known = fields_dict(cls)
    if unknown := data.keys() - known.keys():
        raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    values = {
        one.alias or name: _value(annotations[name], data[name], child)
        if name in data
        else _function_of_saved_run
        for name, one in known.items()
        if name in data or (one.init and _needs_function(one, annotations[name]))
    }
    return cls(**values)


@cache
def _annotations(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _needs_function(one: Attribute[Any], annotation: Any) -> bool:
    kinds = {get_origin(kind) for kind in (annotation, *get_args(annotation))}
    return one.default is NOTHING or abc.Callable in kinds


def _function_of_saved_run(*_: Any) -> NoReturn:
    raise TypeError("this tree is that of a saved run, whose functions are not known")


_SCALARS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    type(None): (type(None),),
}


def _value(kind: Any, data: Any, child: Callable[[Any], Spec]) -> Any:
    """Return a value of an annotated type from plain data. TypeError or ValueError if damaged."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _one_of(arguments, data, child)
    if kind in _SCALARS:
        fits = type(data) in _SCALARS[kind]
    elif origin is Literal:
        fits = data in arguments
    elif origin is tuple:
        kinds = repeat(arguments[0]) if arguments[1:] == (...,) else arguments
        return tuple(_value(*each, child) for each in zip(kinds, data, strict=False))
    elif origin in (Mapping, dict):
        return {name: _value(arguments[1], item, child) for name, item in data.items()}
    elif kind is Fraction:
        return Fraction(data)
    elif isclass(kind) and issubclass(kind, Spec):
        data = child(data)
        fits = isinstance(data, kind)
    elif isclass(kind) and has(kind):
        return _attrs_from_dict(kind, data, child)
    else:
        fits = kind is Any
    if not fits:
        raise TypeError(f"{data!r:.60} is no {kind}")
    return data


def _one_of(kinds: Sequence[Any], data: Any, child: Callable[[Any], Spec]) -> Any:
    problems: list[Exception] = []
    for kind in kinds:
        try:
            return _value(kind, data, child)
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(error)
    raise problems[-1]
