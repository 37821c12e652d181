"""Opening leaves: the source of their samples, the files for their cookers, and their joins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.keys import JoinSpec
from energy_data.config.leaves import DatasetPart, JoinedDataset, LeafUse, leaf_uses
from energy_data.config.load import LoadedMetadataset
from energy_data.config.rules import Aux
from energy_data.data.files.stores import FileStore, SystemFileStore
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.join import Joiner, open_join
from energy_data.data.join_table import (
    PREFIX,
    JoinMember,
    Kept,
    energon_name,
    load_table,
    open_table,
    write_energon_index,
)
from energy_data.data.registry import open_store
from energy_data.data.source import Source
from energy_data.data.tar.nv_meta import FOLDER, SPLIT, read_counts, read_mapping
from energy_data.data.tar.nv_meta import expand as expanded
from energy_data.data.typed.samples import SAMPLE_TYPES
from energy_data.errors import SpecError

Range = tuple[int, int | None]


OpenSource: TypeAlias = Callable[..., Source]
"""Opens one dataset; `energy_data.data.registry.open_source` is one.

Called with the path, and by name `split_part`, `subset` (samples [start, end), end None: the last;
or None), `subflavors`, and, only where the metadataset gives them, `dataset_config` and
`split_config`: names of files in `.nv-meta` to read in place of `dataset.yaml` and `split.yaml`.
SpecError if there is no such dataset or part.
"""


@frozen(kw_only=True)
class Options:
    """Options of a run for all its datasets."""

    shuffle_over_epochs_multiplier: int | None = 1  # at the root of the tree
    trust: ImportPolicy = field(factory=ImportPolicy)  # code that files may name
    # Opens datasets that are joined to a declared type, typed by dataset.yaml; None: `open_source`.
    open_typed: OpenSource | None = None


DEFAULT = Options()


class Opener:
    """Opens leaves; equal parts of datasets are opened once."""

    def __init__(self, open_source: OpenSource, options: Options) -> None:
        self._open_source, self._options = open_source, options
        self._sources: dict[tuple[object, ...], Source] = {}
        self._stores: dict[Aux, FileStore[bytes]] = {}

    def samples(
        self, leaf: LeafUse, subset: Range | None, subflavors: Mapping[str, Any] | None = None
    ) -> Source:
        """Return the samples of a leaf. subflavors: in place of its own."""
        own = leaf.subflavors if subflavors is None else subflavors
        if isinstance(leaf.of, DatasetPart):
            return self._dataset(leaf.of, subset, own)
        assert isinstance(leaf.recipe, JoinSpec)
        names = leaf.recipe.names
        joiner, code = self._joiner(leaf.recipe), leaf.recipe.joiner
        key = (leaf.of, _text([one.subflavors for one in leaf.of]), names, code, subset)
        if key not in self._sources:
            typed = self._options.open_typed if isinstance(joiner, type) else None
            members = [self._member(member, typed) for member in leaf.of]
            self._sources[key] = open_join(
                dict(zip(names, members, strict=True)) if names else members,
                joiner=joiner,
                subset=subset,
                folder=leaf.cache,
            )
        return self._sources[key]

    def keyed(self, leaf: LeafUse) -> list[JoinMember]:
        """Return the keys of the datasets of a join. The joiner is not imported."""
        assert not isinstance(leaf.of, DatasetPart)
        return [self._member(member, None) for member in leaf.of]

    def stores(self, leaf: LeafUse) -> dict[str, FileStore[bytes]]:
        """Return the files for cookers, by name. Raises SpecError if a path has none."""
        return {name: self._store(name, aux) for name, aux in leaf.aux.items()}

    def _dataset(
        self,
        part: DatasetPart,
        subset: Range | None,
        subflavors: Mapping[str, Any],
        typed: OpenSource | None = None,
    ) -> Source:
        given = {"dataset_config": part.dataset_config, "split_config": part.split_config}
        config = {name: value for name, value in given.items() if value is not None}
        key = (part.path, part.split_part, subset, _text(subflavors), typed, *config.items())
        if key not in self._sources:
            self._sources[key] = (typed or self._open_source)(
                part.path,
                split_part=part.split_part,
                subset=subset,
                subflavors=subflavors,
                **config,
            )
        return self._sources[key]

    def _member(self, member: JoinedDataset, typed: OpenSource | None) -> JoinMember:
        return JoinMember(self._dataset(member.of, None, member.subflavors, typed), member.nonmatch)

    def _joiner(self, recipe: JoinSpec) -> Joiner | None:
        code = recipe.joiner
        if code is None:
            return None
        joiner = self._options.trust.find(code.module, code.name, SAMPLE_TYPES)
        if not callable(joiner) or isinstance(joiner, type) != code.is_class:
            what = "class" if code.is_class else "function"
            raise SpecError(f"{code} is not a {what}, found {joiner!r}. Name one.")
        if code.is_class and not hasattr(joiner, "from_joined"):
            raise SpecError(
                f"{code} cannot be created from joined samples: it has no class method "
                "`from_joined`. Derive it from Sample, or name a function by `__function__`."
            )
        found: Joiner = joiner
        return found

    def _store(self, name: str, aux: Aux) -> FileStore[bytes]:
        if aux not in self._stores:
            if aux.kind == "fs_path" and not Path(aux.path).is_dir():
                raise SpecError(f"{name!r}: there is no folder {aux.path}. Check the path.")
            if aux.kind == "fs_path":
                self._stores[aux] = SystemFileStore(aux.path)
            else:
                self._stores[aux] = open_store(aux.path)
        return self._stores[aux]


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True, default=str)


@frozen(kw_only=True)
class PreparedJoin:
    """A join of one split, computed."""

    split: str
    id: str  # of the leaf
    table: Kept
    energon: str | None  # its index for Energon; None: Energon cannot distinguish it from another


def prepare_joins(metadataset: LoadedMetadataset, *, open_source: OpenSource) -> list[PreparedJoin]:
    """Compute the joins of all splits, and of the files they name; keep those that are computed.

    The index that Energon looks for is written next to each table, except where two joins would
    have the same name there. Tables next to the outermost file that are no longer needed are
    removed. Code that files name is not run. Raises SpecError with every problem, StructureError
    for damage.
    """
    diagnostics = Diagnostics()
    found = [
        (split, leaf, kept, members)
        for split in metadataset.splits
        for leaf, kept, members in _computed(metadataset, split, open_source, diagnostics)
    ]
    diagnostics.raise_if_any()
    names = [_energon_name(leaf, members) for _, leaf, _, members in found]
    owners: dict[str | None, set[str]] = {}
    for name, (_, _, kept, _) in zip(names, found, strict=True):
        owners.setdefault(name, set()).add(kept.path)
    prepared = []
    for name, (split, leaf, kept, members) in zip(names, found, strict=True):
        energon = None
        if name is not None and len(owners[name]) == 1 and leaf.cache is not None:
            energon = str(Path(leaf.cache, name))
            write_energon_index(energon, load_table(kept.path, len(members)), members)
        prepared.append(PreparedJoin(split=split, id=leaf.id, table=kept, energon=energon))
    if metadataset.root.key:
        _remove_others(Path(f"{metadataset.root.key}.cache"), {one.table.path for one in prepared})
    return prepared


def _computed(
    metadataset: LoadedMetadataset, split: str, open_source: OpenSource, diagnostics: Diagnostics
) -> Iterator[tuple[LeafUse, Kept, list[JoinMember]]]:
    """Yield the joins of a split with their tables; problems are reported."""
    opener = Opener(open_source, DEFAULT)
    for leaf in leaf_uses(metadataset.tree(split)):
        if leaf.recipe.kind != "join":
            continue
        try:
            members = opener.keyed(leaf)
            yield leaf, open_table(members, leaf.cache), members
        except SpecError as error:
            origin = metadataset.origins.of(leaf.recipe)
            for problem in error.faults:
                text = f"leaf {leaf.id!r}: {problem}"
                diagnostics.report(origin.locate("join")[0], origin.where, text)


def _energon_name(leaf: LeafUse, members: list[JoinMember]) -> str | None:
    """Return Energon's name for the index; None if Energon could not read what we would write."""
    assert isinstance(leaf.of, tuple)
    if any(_excludes_shards(member) for member in leaf.of):
        return None  # Energon counts them, and joins what is in them
    return energon_name(members)


def _excludes_shards(member: JoinedDataset) -> bool:
    root = Path(member.of.path)
    where = root / FOLDER / (member.of.split_config or SPLIT)
    excluded = (read_mapping(where) or {}).get("exclude", [])
    counts: Mapping[str, int] = read_counts(root) if excluded else {}
    return any(name in counts for name in expanded(excluded, where))


def _remove_others(folder: Path, needed: set[str]) -> None:
    for file in folder.glob(f"{PREFIX}*"):
        if str(file) not in needed and not file.name.startswith("join_index_"):
            file.unlink()
