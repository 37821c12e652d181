"""Values -> definitions: every fault of a file is noted, with its place and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import NOTHING, Attribute

from energy_data.config.definitions import (
    SPLITS,
    Children,
    Definition,
    FileDefinition,
    Group,
    Keyed,
    LeafDefinition,
    Node,
    Nodes,
    Part,
    SplitPart,
    Splits,
    keys_of,
)
from energy_data.config.diagnostics import Diagnostics, did_you_mean, listed, slip_of
from energy_data.config.kind_join import JoinDefinition
from energy_data.config.kind_path import PathDefinition
from energy_data.config.kinds import GROUPS, KINDS, PARTS, kinds_of
from energy_data.config.rules import Rule, WrongInsideError
from energy_data.config.yaml_nodes import Value

_HEADER = ("__module__", "__class__")


def convert_file(value: Value, faults: Diagnostics) -> FileDefinition | None:
    """Return what a file says, or None if it has faults, which are noted."""
    if not isinstance(value.data, dict):
        problem = f"must be a mapping with `splits`, found {value.describe()}."
        faults.report(value.place, "", f"{problem} Write `splits: {{train: {{path: ./coco}}}}`.")
        return None
    before = len(faults)
    found = _Converter(faults).keys(value, "", {FileDefinition: keys_of(FileDefinition)})
    if found is None:
        return None
    definition = FileDefinition(**found[FileDefinition])
    definition.check(faults)
    return definition if len(faults) == before else None


class _Converter:
    """Walks one file. A method that finds a fault notes it and returns None."""

    def __init__(self, faults: Diagnostics) -> None:
        self.faults = faults

    def node(self, value: Value, where: str, part: type[Part]) -> Part | None:
        """Return the node in `value`, in the part its parent has for it."""
        if not isinstance(value.data, dict):
            self.faults.report(
                value.place,
                where,
                f"must be {Node.says}, found {value.describe()}. {_advice(value)}",
            )
            return None
        kinds = self.kinds(value, where, part)
        owners = {kind: keys_of(kind) for kind in (*kinds, part)}
        if kinds == [Definition]:  # no kind: any key of a leaf may stand
            owners[Definition] = {**keys_of(PathDefinition), **keys_of(Definition)}
            del owners[Definition]["path"]
        owners = {
            owner: {name: one for name, one in keys.items() if name not in part.refuses}
            for owner, keys in owners.items()
        }
        found = self.keys(value, where, owners, part.refuses)
        if found is None or len(kinds) != 1 or kinds[0] is Definition:
            return None
        places = {name: each.place for name, each in value.data.items()}
        definition = kinds[0](place=value.place, where=where, places=places, **found[kinds[0]])
        definition.check(self.faults)
        return part(of=definition, **found[part])

    def kinds(self, value: Value, where: str, part: type[Part]) -> list[type[Definition]]:
        """Return the kind of a node; on a fault, the kinds to check its keys by."""
        assert isinstance(value.data, dict)
        allowed = kinds_of(part)
        named = [name for name in value.data if name in KINDS]
        if len(named) > 1:
            both = " and ".join(f"'{name}'" for name in named)
            problem = f"a node has one kind, found {both}. Keep one, or list them in a `blend`."
            self.faults.report(value.keys[named[1]], where, problem)
        elif named and named[0] not in allowed:
            problem = (
                f"must have {listed(f'`{name}`' for name in _newer(allowed))}, found '{named[0]}'."
            )
            self.faults.report(
                value.keys[named[0]], where, f"{problem} {KINDS[named[0]].elsewhere}"
            )
        if named:
            return [KINDS[name] for name in named]
        known = {*allowed, *keys_of(PathDefinition), *keys_of(part)}
        for name in value.data:
            near = None if name in known else did_you_mean(name, known)
            if near is not None and near in allowed:
                return [KINDS[near]]  # what is wrong is told with the key
        problem = f"names no kind, found {value.describe()}. Add one of {listed(_newer(allowed))}."
        self.faults.report(value.place, where, problem)
        return [Definition]

    def keys(
        self,
        value: Value,
        where: str,
        owners: Mapping[type[Any], Mapping[str, Attribute[Any]]],
        refused: Mapping[str, str] | None = None,
    ) -> dict[type[Any], dict[str, Any]] | None:
        """Return the arguments of every class of `owners`, from the keys of one mapping.

        refused: keys that could stand elsewhere, and what to do about them here.
        """
        assert isinstance(value.data, dict)
        before = len(self.faults)
        known = {name: owner for owner, keys in owners.items() for name in keys}
        found: dict[type[Any], dict[str, Any]] = {owner: {} for owner in owners}
        meant: set[str | None] = set()
        for name, each in value.data.items():
            if (owner := known.get(name)) is None:
                problem = _unknown(name, known)
                if refused and name in refused:
                    problem = f"'{name}' does not belong here. {refused[name]}."
                self.faults.report(value.keys[name], where, problem)
                meant.add(did_you_mean(name, known))
            elif each.data is not None or not owners[owner][name].metadata["or_null"]:
                attribute = owners[owner][name]
                inner = f"{where}.{name}" if where else name
                found[owner][attribute.name] = self.held(attribute, each, inner)
        for name, owner in known.items():
            attribute = owners[owner][name]
            if attribute.default is NOTHING and name not in meant and name not in value.data:
                example = attribute.metadata["example"]
                problem = f"the key '{name}' is missing, found {value.describe()}."
                self.faults.report(value.place, where, f"{problem} Add it, such as `{example}`.")
        return None if len(self.faults) > before else found

    def held(self, attribute: Attribute[Any], value: Value, where: str) -> Any:
        """Return what a key holds."""
        holds = attribute.metadata["holds"]
        try:
            if isinstance(holds, Rule):
                return holds.accept(value)
            if isinstance(holds, Nodes | Keyed | Group):
                return self.several(value, where, holds)
            if isinstance(holds, Splits):
                return self.splits(value, where)
        except ValueError as error:
            self.wrong(attribute, value, where, error)
            return None
        part = self.node(value, where, Part)
        return None if part is None else part.of

    def wrong(self, attribute: Attribute[Any], value: Value, where: str, error: ValueError) -> None:
        """Note that a key holds what it must not."""
        if isinstance(error, WrongInsideError):
            for place, inner, problem in error.faults:
                self.faults.report(place, f"{where}{inner}", problem)
            return
        advice = str(error) or f"Write it like `{attribute.metadata['example']}`."
        if attribute.metadata["name"] in _HEADER:
            advice = (
                "A metadataset is data and runs no code, so nothing else can be named here: "
                "take the line out."
            )
        says = attribute.metadata["holds"].says
        problem = f"must be {says}, found {value.describe()}. {advice}"
        self.faults.report(value.place, where, problem)

    def several(self, value: Value, where: str, holds: Nodes | Keyed | Group) -> Any:
        """Return what a key holds that holds more than one thing."""
        if isinstance(holds, Nodes):
            return self.nodes(value, where, holds)
        if isinstance(holds, Keyed):
            return self.children(value, where, holds)
        return self.group(value, where, holds)

    def nodes(self, value: Value, where: str, holds: Nodes) -> tuple[Part | None, ...]:
        if not isinstance(value.data, list) or not value.data:
            raise ValueError
        return tuple(
            self.node(each, f"{where}[{number}]", holds.part)
            for number, each in enumerate(value.data)
        )

    def children(self, value: Value, where: str, holds: Keyed) -> Children:
        if not isinstance(value.data, dict):
            return Children(self.nodes(value, where, Nodes(holds.part)))  # type: ignore[arg-type]  # None: a fault
        if not value.data:
            raise ValueError
        parts = [
            self.node(each, f"{where}.{name}", holds.part) for name, each in value.data.items()
        ]
        return Children(tuple(parts), tuple(value.data))  # type: ignore[arg-type]  # None: a fault

    def group(self, value: Value, where: str, holds: Group) -> Any:
        if not isinstance(value.data, dict):
            raise ValueError  # noqa: TRY004 - `held` tells the fault
        found = self.keys(value, where, {holds.of: keys_of(holds.of)})
        return None if found is None else holds.of(**found[holds.of])

    def splits(self, value: Value, where: str) -> dict[str, Definition | None]:
        if not isinstance(value.data, dict) or not value.data:
            raise ValueError
        found: dict[str, Definition | None] = {}
        for name, each in value.data.items():
            if meant := slip_of(name, SPLITS):
                problem = f"unknown split '{name}'. Did you mean '{meant}'?"
                self.faults.report(value.keys[name], where, problem)
                continue
            part = self.node(each, f"{where}.{name}", SplitPart)
            found[name] = None if part is None else part.of
        return found


def _advice(value: Value) -> str:
    if isinstance(value.data, str):
        return f"If it is a path, write `path: {value.data}`."
    if isinstance(value.data, list):
        return "To mix a list, write `blend:` before it."
    return "Write it like `path: ./coco`."


def _newer(kinds: Iterable[str]) -> list[str]:
    """Return the kinds that are worth a mention: not those of older files."""
    return [kind for kind in kinds if not KINDS[kind].older]


def _unknown(name: str, known: Iterable[str]) -> str:
    """Return what to say of a key that does not belong where it stands."""
    if name in _HEADER:
        return (
            f"'{name}' does not belong here. A metadataset is data and runs no code; the header "
            "may stand at the top of a file. Take it out."
        )
    if (belongs := _BELONGS.get(name)) is not None:
        return f"'{name}' does not belong here. It is for {belongs}."
    if near := did_you_mean(name, known):
        return f"unknown key '{name}'. Did you mean '{near}'?"
    return f"unknown key '{name}'. Known here: {', '.join(known)}."


def _places_of_keys() -> dict[str, str]:
    """Return where each key of the grammar belongs."""
    belongs = dict.fromkeys(keys_of(FileDefinition), "the top of a file")
    above: dict[str, list[str]] = {}
    for cls, kind in GROUPS.items():
        for name in keys_of(cls):
            above.setdefault(name, []).append(f"`{kind}`")
    for name, kinds in above.items():
        belongs[name] = f"the mapping below {listed(kinds)}"
    for part, kind in reversed(list(PARTS.items())):
        belongs.update(dict.fromkeys(keys_of(part), f"children of `{kind}`"))
    belongs.update(dict.fromkeys(keys_of(Definition), "nodes, beside their kind"))
    belongs.update(dict.fromkeys(keys_of(JoinDefinition), "nodes with `join`"))
    belongs.update(dict.fromkeys(keys_of(PathDefinition), "nodes with `path`"))
    belongs.update(dict.fromkeys(keys_of(LeafDefinition), "nodes with `path` or `join`"))
    belongs.update(dict.fromkeys(keys_of(Definition), "nodes, beside their kind"))
    belongs.update(dict.fromkeys(KINDS, "nodes"))
    belongs.update(dict.fromkeys(SPLITS, "the mapping below `splits`"))
    return belongs


_BELONGS = _places_of_keys()
