"""Preparing a metadataset: its joins are computed before a run needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.leaves import JoinedDataset, LeafUse, leaf_uses
from energy_data.config.load import Metadataset
from energy_data.config.opening import DEFAULT, Opener, OpenSource
from energy_data.data.join.energon_index import energon_name, write_energon_index
from energy_data.data.join.table import PREFIX, Kept, Member, load_table, open_table
from energy_data.data.tar.nv_meta import FOLDER, SPLIT, read_counts, read_mapping
from energy_data.data.tar.nv_meta import expand as expanded
from energy_data.errors import SpecError


@frozen(kw_only=True)
class PreparedJoin:
    """A join of one split, computed."""

    split: str
    id: str  # of the leaf
    table: Kept
    energon: str | None  # its index for Energon; None: there is none that Energon could tell apart


def prepare_joins(metadataset: Metadataset, *, open_source: OpenSource) -> list[PreparedJoin]:
    """Compute the joins of all splits, and of the files they name; keep those that are computed.

    The index that Energon looks for is written next to each table, except for splits that Energon
    cannot tell apart. Tables next to the outermost file that are no longer needed are removed. Code
    that files name is not run. Raises SpecError with every problem, StructureError for damage.
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
    metadataset: Metadataset, split: str, open_source: OpenSource, diagnostics: Diagnostics
) -> Iterator[tuple[LeafUse, Kept, list[Member]]]:
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


def _energon_name(leaf: LeafUse, members: list[Member]) -> str | None:
    """Return Energon's name for the index; None if Energon could not read what we would write."""
    assert isinstance(leaf.of, tuple)
    if any(_excludes_shards(member) for member in leaf.of):
        return None  # Energon counts them, and joins what is in them
    return energon_name(members)


def _excludes_shards(member: JoinedDataset) -> bool:
    root = Path(member.of.path)
    where = root / FOLDER / (member.of.split_config or SPLIT)
    said = read_mapping(where) or {}
    excluded = said.get("exclude", [])
    counts: Mapping[str, int] = read_counts(root) if excluded else {}
    return any(name in counts for name in expanded(excluded, where))


def _remove_others(folder: Path, needed: set[str]) -> None:
    for file in folder.glob(f"{PREFIX}*"):
        if str(file) not in needed and not file.name.startswith("join_index_"):
            file.unlink()
