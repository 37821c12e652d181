"""Preparing a metadataset: its joins are computed before a run needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.load import Metadataset
from energy_data.config.opening import DEFAULT, Opener, OpenSource
from energy_data.config.resolve import expand
from energy_data.config.twigs import Joined, Twig, twigs
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

    Beside each table, the index that Energon looks for is written, but for splits that Energon
    takes for one. Tables beside the outermost file that nothing needs any more are removed. Code
    that is named is not run. Raises SpecError with every fault, StructureError for damage.
    """
    faults = Diagnostics()
    found = [
        (split, twig, kept, members)
        for split in metadataset.splits
        for twig, kept, members in _computed(metadataset, split, open_source, faults)
    ]
    faults.raise_if_any()
    names = [_energon_name(twig, members) for _, twig, _, members in found]
    owners: dict[str | None, set[str]] = {}
    for name, (_, _, kept, _) in zip(names, found, strict=True):
        owners.setdefault(name, set()).add(kept.path)
    prepared = []
    for name, (split, twig, kept, members) in zip(names, found, strict=True):
        energon = None
        if name is not None and len(owners[name]) == 1 and twig.cache is not None:
            energon = str(Path(twig.cache, name))
            write_energon_index(energon, load_table(kept.path, len(members)), members)
        prepared.append(PreparedJoin(split=split, id=twig.id, table=kept, energon=energon))
    if metadataset.root.key:
        _remove_others(Path(f"{metadataset.root.key}.cache"), {one.table.path for one in prepared})
    return prepared


def _computed(
    metadataset: Metadataset, split: str, open_source: OpenSource, faults: Diagnostics
) -> Iterator[tuple[Twig, Kept, list[Member]]]:
    """Yield the joins of a split with their tables; faults are noted."""
    opener = Opener(open_source, DEFAULT)
    for twig in twigs(expand(metadataset, split)):
        if twig.kind != "join":
            continue
        try:
            members = opener.keyed(twig)
            yield twig, open_table(members, twig.cache), members
        except SpecError as error:
            for fault in error.faults:
                where = twig.definition.where
                faults.report(
                    twig.definition.places[twig.kind], where, f"leaf {twig.id!r}: {fault}"
                )


def _energon_name(twig: Twig, members: list[Member]) -> str | None:
    """Return Energon's name for the index; None if Energon could not read what we would write."""
    assert isinstance(twig.of, tuple)
    if any(_excludes_shards(member) for member in twig.of):
        return None  # Energon counts them, and joins what is in them
    return energon_name(members)


def _excludes_shards(member: Joined) -> bool:
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
