"""Specs: frozen descriptions of a tree, which build its nodes.

Below reading, nodes return *references*: which sample of which leaf, in numpy blocks
(`energy_data.nodes.references`). Above reading, they return *samples* and *batches*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from energy_data.core.context import Context
from energy_data.core.node import Node
from energy_data.core.recipe import FieldProblem, Yaml
from energy_data.errors import SpecError

ItemKind = Literal["references", "samples", "batches"]


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
    """The name of this class of specs in states, errors and paths. Unique."""

    yaml: ClassVar[Yaml | None] = None  # how it is written in YAML; None: it is not

    children_are_sequential: ClassVar[bool] = False  # children play one after another

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
    def children(self) -> Mapping[str, Spec]:
        """The specs under this one, by name; names are parts of paths in a state."""
        return {}

    @property
    @abstractmethod
    def item_kind(self) -> ItemKind:
        """The kind of items that the node returns."""

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

    def check_ranks(self, world_size: int) -> None:  # noqa: B027 - most kinds accept any
        """Raise SpecError if this number of ranks cannot run this node, apart from its children."""

    def replay_blocker(self) -> str | None:
        """Return the kind of the node that cannot replay items from references; None: all can.

        Nodes that hold samples back need it of their children: a state has references, not samples.
        """
        return self.kind

    def describe(self) -> list[Any]:
        """Return what decides the stream, as plain JSON data: `[kind, ..., children]`.

        Children are a list, or a dict where they have names. Trees with equal descriptions (and
        equal leaves) have states that fit each other.
        """
        return [self.kind, {name: child.describe() for name, child in self.children.items()}]

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Spec]]:
        """Yield every spec of the tree with its path, parents first."""
        yield path, self
        for name, child in self.children.items():
            yield from child.walk((*path, name))


def order_children(specs: Sequence[Spec]) -> Mapping[str, Spec]:
    """Return children named by their number: in an order tree names carry no state."""
    return {str(number): spec for number, spec in enumerate(specs)}
