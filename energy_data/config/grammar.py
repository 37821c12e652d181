"""The grammar: values of YAML become recipes, by the keys that the classes of recipes declare.

Every problem of a file is reported, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from energy_data.config.keys import LeafKeys, NodeKeys, PathSpec
from energy_data.config.schema import (
    GROUPS,
    KINDS,
    PARTS,
    SPLITS,
    FileKeys,
    InNode,
    InSplit,
    Keys,
    is_below,
    keys_in,
)
from energy_data.config.yaml_nodes import Diagnostics, Place, Value, slip_of
from energy_data.core.recipe import (
    Child,
    Children,
    FieldProblem,
    Group,
    InvalidValueError,
    Key,
    did_you_mean,
    keys_of,
    listed,
)
from energy_data.core.spec import InvalidRecipeError, Spec
from energy_data.errors import SpecError

T = TypeVar("T")

A_NODE = "a node: a mapping with `path`, `blend` or another kind"
_HEADER = ("__module__", "__class__")
_FORMS = {
    "list": "a list of nodes, not empty",
    "list or mapping": "a list of nodes, or a mapping of names to nodes, not empty",
    "splits": "a mapping with one or more splits, such as train, val and test",
}


@frozen(eq=False)
class RecipeOrigin:
    """Where a recipe was written, and the keys that it shares with every node."""

    value: Value
    where: str
    keys: NodeKeys
    kind: type[Spec]

    @property
    def place(self) -> Place:
        """The place of the node."""
        return self.value.place

    def locate(self, path: str) -> tuple[Place, str]:
        """Return place and full name of a key in the node, such as `blend[1].weight`.

        If the key is not written, these are of what would hold it.
        """
        value, where = self.value, self.where
        for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            if isinstance(value.data, list) and number:
                value, where = value.data[int(number)], f"{where}[{number}]"
            elif isinstance(value.data, dict) and name in value.data:
                value, where = value.data[name], f"{where}.{name}"
            else:
                break
        return value.place, where

    def locate_field(self, path: str) -> tuple[Place, str]:
        """Return place and full name of a field of the recipe. path: as in `Spec.check`."""
        if is_below(self.kind):
            path = f"{self.kind.kind}.{path}" if path else self.kind.kind
        return self.locate(path)


@frozen(eq=False)
class Origins:
    """The origins of recipes, which know nothing of files themselves."""

    _known: dict[int, tuple[object, RecipeOrigin]] = field(factory=dict)

    def add(self, recipe: T, origin: RecipeOrigin) -> T:
        """Keep the origin of a recipe, and return the recipe."""
        self._known[id(recipe)] = recipe, origin
        return recipe

    def of(self, recipe: object) -> RecipeOrigin:
        """Return the origin of a recipe."""
        return self._known[id(recipe)][1]


@frozen(eq=False)
class Grammar:
    """Converts the values of files to recipes; a method that reports a problem returns None."""

    diagnostics: Diagnostics
    origins: Origins
    paths: list[tuple[str, Place, str]] = field(factory=list)  # each `path` found, and its place

    def file(self, value: Value) -> Mapping[str, Spec] | None:
        """Return the splits of a file, or None if it has errors, which are reported."""
        if not isinstance(value.data, dict):
            problem = f"must be a mapping with `splits`, found {value.describe()}."
            advice = "Write `splits: {train: {path: ./coco}}`."
            self.diagnostics.report(value.place, "", f"{problem} {advice}")
            return None
        found = self.keys(value, "", {FileKeys: keys_of(FileKeys)})
        return None if found is None else found[FileKeys]["splits"]

    def node(self, value: Value, where: str, part: type[Any]) -> Any:
        """Return the recipe in `value`; in a part with keys of its own, the part that holds it."""
        if not isinstance(value.data, dict):
            problem = f"must be {A_NODE}, found {value.describe()}. {_advice(value)}"
            self.diagnostics.report(value.place, where, problem)
            return None
        kind = self.kind(value, where, part)
        # Of several kinds, one counts; the others have been reported.
        ignored = {} if kind is None else KINDS.keys() - {kind.kind}
        read = evolve(value, data={k: v for k, v in value.data.items() if k not in ignored})
        found = self.keys(read, where, keys_in(part, kind))
        if found is None or kind is None:
            return None
        of_part, shared, arguments = found.values()
        node_keys = (LeafKeys if LeafKeys in found else NodeKeys)(**shared)
        origin = RecipeOrigin(value, where, node_keys, kind)
        try:
            recipe = kind(**(arguments[kind.kind] if is_below(kind) else arguments))
        except InvalidRecipeError as error:
            problems: Sequence[FieldProblem] = error.problems
        except SpecError as error:
            problems = [("", problem.removeprefix(f"{kind.kind}: ")) for problem in error.faults]
        else:
            self.origins.add(recipe, origin)
            return recipe if part in (InNode, InSplit) else part(of=recipe, **of_part)
        for path, problem in problems:
            self.diagnostics.report(*origin.locate_field(path), problem)
        return None

    def kind(self, value: Value, where: str, part: type[Any]) -> type[Spec] | None:
        """Return the kind of a node, or the one it was probably meant to be; None: there is none.

        Problems are reported, so that the kind then serves to check the other keys.
        """
        assert isinstance(value.data, dict)
        allowed = getattr(part, "kinds", InNode.kinds)
        named = [name for name in value.data if name in KINDS]
        if len(named) > 1:
            both = " and ".join(f"'{name}'" for name in named)
            problem = f"a node has one kind, found {both}. Keep one, or list them in a `blend`."
            self.diagnostics.report(value.keys[named[1]], where, problem)
        elif named and named[0] not in allowed:
            kinds = listed(f"`{name}`" for name in allowed)
            problem = f"must have {kinds}, found '{named[0]}'. {KINDS[named[0]].yaml.advice}"
            self.diagnostics.report(value.keys[named[0]], where, problem)
        if named:
            return KINDS[named[0]]
        known = {*allowed, *keys_of(PathSpec), *keys_of(LeafKeys), *keys_of(part)}
        for name in value.data:
            near = None if name in known else did_you_mean(name, known)
            if near is not None and near in allowed:
                return KINDS[near]  # the problem is reported with the key
        problem = f"the node has no kind, found {value.describe()}. Add one of {listed(allowed)}."
        self.diagnostics.report(value.place, where, problem)
        return None

    def keys(
        self, value: Value, where: str, owners: Mapping[type[Any], Keys]
    ) -> dict[type[Any], dict[str, Any]] | None:
        """Return the arguments of every class of `owners`, from the keys of one mapping."""
        assert isinstance(value.data, dict)
        before = self.diagnostics.num_reports
        known = {
            name: (owner, one)
            for owner, keys in owners.items()
            for one in keys.values()
            for name in one.names
        }
        refused = {k: v for owner in owners for k, v in getattr(owner, "refuses", {}).items()}
        found: dict[type[Any], dict[str, Any]] = {owner: {} for owner in owners}
        meant: set[str | None] = set()
        for name, each in value.data.items():
            if name not in known:
                problem = _unknown(name, known)
                if name in refused:
                    problem = f"'{name}' does not belong here. {refused[name]}."
                self.diagnostics.report(value.keys[name], where, problem)
                meant.add(did_you_mean(name, known))
                continue
            owner, one = known[name]
            if name == one.alias and one.name in value.data:
                problem = f"'{name}' is another name of '{one.name}'. Keep one of them."
                self.diagnostics.report(value.keys[name], where, problem)
            elif each.data is not None or not one.or_null:
                held = self.held(one, each, f"{where}.{name}" if where else name)
                found[owner][one.attribute] = held
                if isinstance(one.holds, Children) and one.holds.form == "list or mapping":
                    names = tuple(each.data) if isinstance(each.data, dict) else None
                    found[owner]["names"] = names
        for name, (_, one) in known.items():
            if one.required and name not in meant and name not in value.data:
                problem = f"the key '{name}' is missing, found {value.describe()}."
                advice = f"Add it, such as `{one.example}`."
                self.diagnostics.report(value.place, where, f"{problem} {advice}")
        return None if self.diagnostics.num_reports > before else found

    def held(self, one: Key, value: Value, where: str) -> Any:
        """Return what a key holds."""
        holds = one.holds
        if isinstance(holds, Child):
            return self.node(value, where, InNode)
        if isinstance(holds, Children):
            return self.children(one, holds, value, where)
        if isinstance(holds, Group):
            return self.group(one, holds.of, value, where)
        if one.name == "path" and isinstance(value.data, str):
            self.paths.append((value.data, value.place, where))
        try:
            return holds.accept(value.plain())
        except InvalidValueError as error:
            self.report_inside(error, value, where)
        except ValueError as error:
            self.report_wrong(one, holds.must_be, value, where, str(error))
        return None

    def report_wrong(
        self, one: Key, must_be: str, value: Value, where: str, advice: str = ""
    ) -> None:
        """Report that a key holds what it must not."""
        advice = advice or f"Write it like `{one.example}`."
        if one.name in _HEADER:
            advice = (
                "A metadataset is data and runs no code, so nothing else can be named here: "
                "remove the line."
            )
        problem = f"must be {must_be}, found {value.describe()}. {advice}"
        self.diagnostics.report(value.place, where, problem)

    def report_inside(self, error: InvalidValueError, value: Value, where: str) -> None:
        """Report problems inside the value of a key."""
        for one in error.problems:
            holder, inner = value, value
            for name in one.path:
                assert isinstance(inner.data, dict)
                holder, inner = inner, inner.data[name]
            path = one.path[:-1] if one.at_key else one.path
            place = holder.keys[one.path[-1]] if one.at_key else inner.place
            below = "".join(f".{name}" for name in path)
            problem = one.problem.replace("{}", inner.describe())
            self.diagnostics.report(place, f"{where}{below}", problem)

    def children(self, one: Key, holds: Children, value: Value, where: str) -> Any:
        """Return the nodes of a list, or of a mapping of names to nodes; of splits with names."""
        part, items = holds.part or InNode, value.data
        if isinstance(items, list) and items and holds.form != "splits":
            return tuple([self.node(each, f"{where}[{n}]", part) for n, each in enumerate(items)])
        if not isinstance(items, dict) or not items or holds.form == "list":
            self.report_wrong(one, _FORMS[holds.form], value, where)
            return ()
        nodes = {name: self.node(each, f"{where}.{name}", part) for name, each in items.items()}
        if holds.form != "splits":
            return tuple(nodes.values())
        for name in nodes:
            if name not in SPLITS and (meant := slip_of(name, SPLITS)):
                problem = f"unknown split '{name}'. Did you mean '{meant}'?"
                self.diagnostics.report(value.keys[name], where, problem)
        return nodes

    def group(self, one: Key, cls: type[Any], value: Value, where: str) -> Any:
        """Return a group of keys: an object of its class, or the arguments of a recipe."""
        if not isinstance(value.data, dict):
            self.report_wrong(one, "a mapping", value, where)
            return None
        found = self.keys(value, where, {cls: keys_of(cls)})
        if found is None:
            return None
        return found[cls] if issubclass(cls, Spec) else cls(**found[cls])


def _advice(value: Value) -> str:
    if isinstance(value.data, str):
        return f"If it is a path, write `path: {value.data}`."
    if isinstance(value.data, list):
        return "To mix a list, write `blend:` before it."
    return "Write it like `path: ./coco`."


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return the problem of a key that does not belong where it stands."""
    if name in _HEADER:
        return (
            f"'{name}' does not belong here. A metadataset is data and runs no code; the header "
            "may stand at the top of a file. Remove it."
        )
    if (belongs := _BELONGS.get(name)) is not None:
        return f"'{name}' does not belong here. It is for {belongs}."
    if near := did_you_mean(name, known):
        return f"unknown key '{name}'. Did you mean '{near}'?"
    return f"unknown key '{name}'. Known here: {', '.join(known)}."


def _places_of_keys() -> dict[str, str]:
    """Return where each key of the grammar belongs."""
    owners = [
        (NodeKeys, "nodes, next to their kind"),
        (LeafKeys, "nodes with `path` or `join`"),
        *((cls, f"nodes with `{kind}`") for kind, cls in KINDS.items() if not is_below(cls)),
        *((part, f"children of `{kind}`") for part, kind in PARTS.items()),
        *((cls, f"the mapping below `{kind}`") for cls, kind in GROUPS.items()),
        (FileKeys, "the top of a file"),
    ]
    belongs = {
        **dict.fromkeys(KINDS, "nodes"),
        **dict.fromkeys(SPLITS, "the mapping below `splits`"),
    }
    for cls, place in owners:
        for one in keys_of(cls).values():
            for name in one.names:
                belongs.setdefault(name, place)
    return belongs


_BELONGS = _places_of_keys()
