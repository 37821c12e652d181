"""Windows of tokens as written: places that read a dataset by windows of several lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attrs import evolve

from energy_data.nodes.leaf import leaves_of, two_lengths

if TYPE_CHECKING:
    from energy_data.config.leaves import DatasetPart, LeafUse
    from energy_data.config.opening import Builder
    from energy_data.nodes.references import OrderSpec

_LENGTHS = ("seq_len", "stride")


def set_longest(leaves: Iterable[LeafUse]) -> None:
    """Let places that read the same windows, of any length, be one leaf.

    If there are windows of several lengths, or a `max_seq_len`, all windows get `max_seq_len`: also
    the others, so that all samples have the same fields.
    """
    groups: dict[object, list[LeafUse]] = {}
    for leaf in leaves:
        part, *others = leaf.parts
        if not others and "seq_len" in dict(part.config):
            same = evolve(part, config=without_lengths(part))
            groups.setdefault((same, *leaf.data[1:]), []).append(leaf)
    found = [_longest(same) for group in groups.values() for same in _by_id(group)]
    if any(varies for _, _, varies in found):
        for same_leaf, longest, varies in found:
            for leaf in same_leaf:
                leaf.parts = (_with_longest(leaf.parts[0], longest, varies=varies),)


def without_lengths(part: DatasetPart) -> tuple[tuple[str, Any], ...]:
    """Return the keys of a dataset, but for the lengths of its windows."""
    return tuple(pair for pair in part.config if pair[0] not in (*_LENGTHS, "max_seq_len"))


def _by_id(group: list[LeafUse]) -> Iterable[list[LeafUse]]:
    """Return places of the same samples in groups: one for each `id`, if there are several."""
    ids = {leaf.keys.id for leaf in group} - {None}
    found: dict[str | None, list[LeafUse]] = {}
    for leaf in group:
        found.setdefault(leaf.keys.id if len(ids) > 1 else None, []).append(leaf)
    return found.values()


def _longest(same: list[LeafUse]) -> tuple[list[LeafUse], int, bool]:
    """Return places with their largest `seq_len`, and whether others may have another one."""
    keys = [dict(leaf.parts[0].config) for leaf in same]
    lengths = {one["seq_len"] for one in keys}
    declared = {one["max_seq_len"] for one in keys if "max_seq_len" in one}
    return same, max(declared or lengths), bool(declared) or len(lengths) > 1


def _with_longest(part: DatasetPart, longest: int, *, varies: bool) -> DatasetPart:
    """Return the part. varies: whether the length of windows must not decide which leaf it is."""
    key = ("max_seq_len", longest)
    if not varies:
        return evolve(part, windows=(key,))
    lengths = tuple(pair for pair in part.config if pair[0] in _LENGTHS)
    return evolve(part, config=(*without_lengths(part), key), windows=lengths)


def two_lengths_in(leaves: Iterable[LeafUse]) -> Iterator[tuple[LeafUse, str]]:
    """Yield leaves of one mixture that are read by windows of two lengths, with the problem."""
    known: dict[str, Any] = {}
    for leaf in leaves:
        length = dict(leaf.parts[0].windows).get("seq_len")
        if length is not None and length != known.setdefault(leaf.id, length):
            yield leaf, two_lengths(leaf.id, known[leaf.id], length)


def seq_len_of(builder: Builder[Any], order: OrderSpec) -> Any:
    """Return the tokens of a sample: of the task encoder, or of windows; None: not known.

    The windows of a mixture have one length if those of all its leaves do.
    """
    if (found := builder.params.get("seq_len")) is not None:
        return found
    lengths = {leaf.mean_tokens if leaf.cut.chunk > 1 else None for leaf in leaves_of(order)}
    length = lengths.pop()
    return int(length) if length is not None and not lengths else None


def params_with_windows(builder: Builder[Any], order: OrderSpec) -> dict[str, Any]:
    """Return the parameters of a builder, with `seq_len` if the length of samples is known."""
    length = seq_len_of(builder, order)
    return {**builder.params, **({} if length is None else {"seq_len": length})}
