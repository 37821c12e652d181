"""The grammar: values of YAML become recipes, by the keys that the classes of recipes declare.

Every problem of a file is reported, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, frozen

from energy_data.config.diagnostics import Diagnostics, Place, slip_of
from energy_data.config.keys import LeafKeys, NodeKeys, PathSpec
from energy_data.config.kinds import (
    GROUPS,
    KINDS,
    PARTS,
    SPLITS,
    FileKeys,
    InNode,
    InSplit,
    Keys,
    is_below,
    keys_next_to,
    kinds_in,
    node_keys,
    refused_in,
    yaml_of,
)
from energy_data.config.yaml_nodes import Value
from energy_data.core.recipe import (
    Child,
    Children,
    FieldProblem,
    Group,
    InvalidValueError,
    Key,
    keys_of,
)
from energy_data.core.rules import did_you_mean, listed
from energy_data.core.spec import InvalidRecipeError, Spec
from energy_data.errors import SpecError

T = TypeVar("T")

A_NODE = "a node: a mapping with `path`, `blend` or another kind"
_HEADER = ("__module__", "__class__")


@frozen(eq=False)
class RecipeOrigin:
    """Where a recipe was written, and the keys that it shares with every node."""

    value: Value
    where: str
    keys: NodeKeys

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


class Origins:
    """The origins of recipes, which know nothing of files themselves."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, RecipeOrigin]] = {}

    def add(self, recipe: T, origin: RecipeOrigin) -> T:
        """Keep the origin of a recipe, and return the recipe."""
        self._known[id(recipe)] = recipe, origin
        return recipe

    def of(self, recipe: object) -> RecipeOrigin:
        """Return the origin of a recipe."""
        return self._known[id(recipe)][1]

    def report(self, diagnostics: Diagnostics, recipe: Spec, path: str, problem: str) -> None:
        """Report a problem at a key of a recipe; path: as in `Spec.check`."""
        if is_below(type(recipe)) and recipe.kind in KINDS:
            path = f"{recipe.kind}.{path}" if path else recipe.kind
        diagnostics.report(*self.of(recipe).locate(path), problem)


class Grammar:
    """Converts the values of files to recipes; a method that reports a problem returns None."""

    def __init__(self, diagnostics: Diagnostics, origins: Origins) -> None:
        self.diagnostics, self.origins = diagnostics, origins

    def file(self, value: Value) -> Mapping[str, Spec] | None:
        """Return the splits of a file, or None if it has errors, which are reported."""
        if not isinstance(value.data, dict):
            problem = f"must be a mapping with `splits`, found {value.describe()}."
            advice = "Write `splits: {train: {path: ./coco}}`."
            self.diagnostics.report(value.place, "", f"{problem} {advice}")
            return None
        before = len(self.diagnostics)
        found = self.keys(value, "", {FileKeys: keys_of(FileKeys)})
        if found is None:
            return None
        splits: Mapping[str, Spec] = found[FileKeys]["splits"]
        self.check_header(found[FileKeys].get("class_"), splits)
        return splits if len(self.diagnostics) == before else None

    def check_header(self, header: str | None, splits: Mapping[str, Spec]) -> None:
        """Report a split whose kind belongs to the other class of files."""
        for name, split in splits.items():
            is_legacy = yaml_of(type(split)).is_legacy
            if header is None or is_legacy == (header == "Metadataset"):
                continue
            wanted = "blend" if is_legacy else "datasets"
            other = "MetadatasetV2" if header == "Metadataset" else "Metadataset"
            problem = f"'{split.kind}' is of `{other}`, found in a `{header}`. Write `{wanted}`"
            place = self.origins.of(split).place
            self.diagnostics.report(place, f"splits.{name}", f"{problem}, or another `__class__`.")

    def node(self, value: Value, where: str, part: type[Any]) -> Any:
        """Return the recipe in `value`; in a part with keys of its own, the part that holds it."""
        if not isinstance(value.data, dict):
            problem = f"must be {A_NODE}, found {value.describe()}. {_advice(value)}"
            self.diagnostics.report(value.place, where, problem)
            return None
        kind = self.kind(value, where, part)
        refused = refused_in(part, kind)
        owners: dict[type[Any], Keys] = {part: keys_of(part)}
        if kind is None:  # any key of a leaf may stand
            owners |= {NodeKeys: keys_of(LeafKeys), PathSpec: keys_of(PathSpec)}
        else:
            owners |= {node_keys(kind): keys_of(node_keys(kind)), kind: keys_next_to(kind)}
        owners = {
            owner: {name: one for name, one in keys.items() if name not in refused}
            for owner, keys in owners.items()
        }
        if kind is None:
            owners[PathSpec] = {name: k for name, k in owners[PathSpec].items() if name != "path"}
        others = [name for name in value.data if name in KINDS and KINDS[name] is not kind]
        allowed = value if kind is None else _without(value, others)
        found = self.keys(allowed, where, owners, refused)
        if found is None or kind is None:
            return None
        arguments = found[kind][kind.kind] if is_below(kind) else found[kind]
        shared = node_keys(kind)(**found[node_keys(kind)])
        recipe = self.built(kind, arguments, RecipeOrigin(value, where, shared))
        if recipe is None or part in (InNode, InSplit):
            return recipe
        return part(of=recipe, **found[part])

    def built(
        self, kind: type[Spec], arguments: Mapping[str, Any], origin: RecipeOrigin
    ) -> Spec | None:
        """Return a recipe of these arguments."""
        try:
            return self.origins.add(kind(**arguments), origin)
        except InvalidRecipeError as error:
            problems: Sequence[FieldProblem] = error.problems
        except SpecError as error:
            problems = [("", problem.removeprefix(f"{kind.kind}: ")) for problem in error.faults]
        for path, problem in problems:
            if is_below(kind):
                path = f"{kind.kind}.{path}" if path else kind.kind
            self.diagnostics.report(*origin.locate(path), problem)
        return None

    def kind(self, value: Value, where: str, part: type[Any]) -> type[Spec] | None:
        """Return the kind of a node, or the one it was probably meant to be; None: there is none.

        Problems are reported, so that the kind then serves to check the other keys.
        """
        assert isinstance(value.data, dict)
        allowed = kinds_in(part)
        named = [name for name in value.data if name in KINDS]
        if len(named) > 1:
            both = " and ".join(f"'{name}'" for name in named)
            problem = f"a node has one kind, found {both}. Keep one, or list them in a `blend`."
            self.diagnostics.report(value.keys[named[1]], where, problem)
        elif named and named[0] not in allowed:
            kinds = listed(f"`{name}`" for name in _current(allowed))
            problem = f"must have {kinds}, found '{named[0]}'. {yaml_of(KINDS[named[0]]).advice}"
            self.diagnostics.report(value.keys[named[0]], where, problem)
        if named:
            return KINDS[named[0]]
        known = {*allowed, *keys_of(PathSpec), *keys_of(LeafKeys), *keys_of(part)}
        for name in value.data:
            near = None if name in known else did_you_mean(name, known)
            if near is not None and near in allowed:
                return KINDS[near]  # the problem is reported with the key
        kinds = listed(_current(allowed))
        problem = f"the node has no kind, found {value.describe()}. Add one of {kinds}."
        self.diagnostics.report(value.place, where, problem)
        return None

    def keys(
        self,
        value: Value,
        where: str,
        owners: Mapping[type[Any], Keys],
        refused: Mapping[str, str] | None = None,
    ) -> dict[type[Any], dict[str, Any]] | None:
        """Return the arguments of every class of `owners`, from the keys of one mapping.

        refused: keys that are allowed elsewhere, with advice.
        """
        assert isinstance(value.data, dict)
        before = len(self.diagnostics)
        known = {name: owner for owner, keys in owners.items() for name in keys}
        found: dict[type[Any], dict[str, Any]] = {owner: {} for owner in owners}
        meant: set[str | None] = set()
        for name, each in value.data.items():
            inner = f"{where}.{name}" if where else name
            if (owner := known.get(name)) is None:
                problem = _unknown(name, known)
                if refused and name in refused:
                    problem = f"'{name}' does not belong here. {refused[name]}."
                self.diagnostics.report(value.keys[name], where, problem)
                meant.add(did_you_mean(name, known))
            elif each.data is not None or not owners[owner][name].or_null:
                one = owners[owner][name]
                found[owner][one.attribute] = self.held(one, each, inner)
                if isinstance(one.holds, Children) and one.holds.named:
                    names = tuple(each.data) if isinstance(each.data, dict) else None
                    found[owner]["names"] = names
        for name, owner in known.items():
            one = owners[owner][name]
            if one.required and name not in meant and name not in value.data:
                problem = f"the key '{name}' is missing, found {value.describe()}."
                advice = f"Add it, such as `{one.example}`."
                self.diagnostics.report(value.place, where, f"{problem} {advice}")
        return None if len(self.diagnostics) > before else found

    def held(self, one: Key, value: Value, where: str) -> Any:
        """Return what a key holds."""
        holds = one.holds
        if isinstance(holds, Child):
            if one.name == "splits":
                return self.splits(one, value, where)
            return self.node(value, where, InNode)
        if isinstance(holds, Children):
            return self.children(one, holds, value, where)
        if isinstance(holds, Group):
            return self.group(one, holds, value, where)
        try:
            return holds.accept(value.plain())
        except InvalidValueError as error:
            self.report_inside(error, value, where)
        except ValueError as error:
            self.report_wrong(one, holds.must_be, value, where, str(error))
        return None

    def report_wrong(self, one: Key, must_be: str, value: Value, where: str, advice: str) -> None:
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
        """Return the nodes of a list, or of a mapping of names to nodes."""
        part, items = holds.part or InNode, value.data
        if isinstance(items, list) and items:
            pairs = [(f"{where}[{number}]", each) for number, each in enumerate(items)]
        elif isinstance(items, dict) and items and holds.named:
            pairs = [(f"{where}.{name}", each) for name, each in items.items()]
        else:
            named = ", or a mapping of names to nodes" if holds.named else ""
            self.report_wrong(one, f"a list of nodes{named}, not empty", value, where, "")
            return ()
        return tuple([self.node(each, inner, part) for inner, each in pairs])

    def group(self, one: Key, holds: Group, value: Value, where: str) -> Any:
        """Return a group of keys: an object of its class, or the arguments of a recipe."""
        if not isinstance(value.data, dict):
            self.report_wrong(one, "a mapping", value, where, "")
            return None
        found = self.keys(value, where, {holds.of: keys_of(holds.of)})
        if found is None or issubclass(holds.of, Spec):
            return None if found is None else found[holds.of]
        return holds.of(**found[holds.of])

    def splits(self, one: Key, value: Value, where: str) -> Mapping[str, Spec]:
        """Return the node of each split."""
        found: dict[str, Spec] = {}
        if not isinstance(value.data, dict) or not value.data:
            wanted = "a mapping with one or more splits, such as train, val and test"
            self.report_wrong(one, wanted, value, where, "")
            return found
        for name, each in value.data.items():
            if meant := slip_of(name, SPLITS):
                problem = f"unknown split '{name}'. Did you mean '{meant}'?"
                self.diagnostics.report(value.keys[name], where, problem)
            else:
                found[name] = self.node(each, f"{where}.{name}", InSplit)
        return found


def _without(value: Value, names: Sequence[str]) -> Value:
    """Return a mapping without some keys."""
    assert isinstance(value.data, dict)
    if not names:
        return value
    return evolve(value, data={k: v for k, v in value.data.items() if k not in names})


def _advice(value: Value) -> str:
    if isinstance(value.data, str):
        return f"If it is a path, write `path: {value.data}`."
    if isinstance(value.data, list):
        return "To mix a list, write `blend:` before it."
    return "Write it like `path: ./coco`."


def _current(kinds: Iterable[str]) -> list[str]:
    """Return the kinds without those of older files."""
    return [kind for kind in kinds if not yaml_of(KINDS[kind]).is_legacy]


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
    belongs = dict.fromkeys(keys_of(FileKeys), "the top of a file")
    above: dict[str, list[str]] = {}
    for cls, kind in GROUPS.items():
        for name in keys_of(cls):
            above.setdefault(name, []).append(f"`{kind}`")
    for name, kinds in above.items():
        belongs[name] = f"the mapping below {listed(kinds)}"
    for part, kind in reversed(list(PARTS.items())):
        belongs.update(dict.fromkeys(keys_of(part), f"children of `{kind}`"))
    next_to: dict[str, list[str]] = {}
    for kind, cls in KINDS.items():
        for name in () if is_below(cls) else keys_of(cls):
            next_to.setdefault(name, []).append(f"`{kind}`")
    for name, kinds in next_to.items():
        belongs[name] = f"nodes with {listed(kinds)}"
    belongs.update(dict.fromkeys(keys_of(LeafKeys), "nodes with `path` or `join`"))
    belongs.update(dict.fromkeys(keys_of(NodeKeys), "nodes, next to their kind"))
    belongs.update(dict.fromkeys(KINDS, "nodes"))
    belongs.update(dict.fromkeys(SPLITS, "the mapping below `splits`"))
    return belongs


_BELONGS = _places_of_keys()
