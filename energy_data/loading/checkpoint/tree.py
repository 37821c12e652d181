"""The tree of a run as its state remembers it: what was drawn can be computed from that alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from energy_data.core.sample import Sample
from energy_data.core.spec import Spec
from energy_data.data.source import Source
from energy_data.errors import SampleError, StateError
from energy_data.loading.checkpoint.codec import pack_json, unpack_json
from energy_data.nodes.kinds import order_from_description
from energy_data.nodes.leaves import Leaf, Shuffle, distinct_leaves, leaf_entries
from energy_data.nodes.references import ReferencesSpec
from energy_data.order.schedule import Clock

FEW_LEAVES = 200  # up to here sizes are remembered also where only messages need them
FINGERPRINT_DIGITS = 6  # tells accidents apart, not attacks: a state must stay small


class RememberedSource(Source):
    """A source of a saved tree: how many samples there were is all that is known."""

    def __init__(self, num_samples: int, fingerprint: str) -> None:
        self._num_samples, self._fingerprint = num_samples, fingerprint

    def __len__(self) -> int:
        return self._num_samples

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def read(self, indices: npt.NDArray[np.int64]) -> list[Sample | SampleError]:
        raise TypeError(f"a remembered source has no samples to read, asked for {len(indices)}")


@frozen
class TreeRecord:
    """What decides the stream of a tree: its description, and its leaves by id."""

    description: list[Any]
    # id -> number of samples (None where unknown), first digits of the source's fingerprint
    leaves: dict[str, tuple[int | None, str]]

    @classmethod
    def of(cls, spec: Spec) -> TreeRecord:
        """Return the record of a tree."""
        leaves = {
            leaf.id: leaf
            for order in order_trees(spec).values()
            for leaf in distinct_leaves([leaf for _, leaf in leaf_entries(order.of)])
        }
        sized = len(leaves) <= FEW_LEAVES or any(
            getattr(inner, "needs_sizes", False) or getattr(inner, "deal", 0)
            for _, inner in spec.walk()
        )
        facts = {
            leaf_id: (
                leaf.num_samples if sized else None,
                leaf.fingerprint[:FINGERPRINT_DIGITS],
            )
            for leaf_id, leaf in leaves.items()
        }
        return cls(spec.describe(), facts)

    def pack(self) -> str:
        """Return the record as compact text; equal trees give equal text."""
        ids = sorted(self.leaves)
        number = {leaf_id: n for n, leaf_id in enumerate(ids)}
        steps = _Steps()
        sizes = [self.leaves[leaf_id][0] for leaf_id in ids]
        return pack_json(
            {
                "tree": _with_leaves(self.description, lambda said: steps.to(number[said[1]])),
                "ids": ids,
                "sizes": None if None in sizes else sizes,
                "fingerprints": "".join(self.leaves[leaf_id][1] for leaf_id in ids),
            }
        )

    @classmethod
    def unpack(cls, text: str) -> TreeRecord:
        """Return what `pack` packed. StateError if it is something else."""
        said = unpack_json(text)
        try:
            digits = said["fingerprints"]
            prints = [
                digits[at : at + FINGERPRINT_DIGITS]
                for at in range(0, len(digits), FINGERPRINT_DIGITS)
            ]
            ids, steps = said["ids"], _Steps()
            sizes = [None] * len(ids) if said["sizes"] is None else said["sizes"]
            leaves = dict(zip(ids, zip(sizes, prints, strict=True), strict=True))
            tree = _with_leaves(said["tree"], lambda step: ["leaf", ids[steps.by(step)]])
            return cls(tree, leaves)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"state: its record of the tree is damaged ({error}).") from error

    def order_trees(self) -> dict[str, ReferencesSpec]:
        """Return the order trees by their path, with sources that know their length only."""
        return dict(self._order_trees(self.description, "root"))

    def _order_trees(self, said: list[Any], path: str) -> Iterator[tuple[str, ReferencesSpec]]:
        if said[0] == "references":
            _, (sequence_length, window), deal, drop_last, *clock, below = said
            order = order_from_description(below["of"], self._leaf)
            shuffle = Shuffle(
                buffer_size=window, sequence_length=sequence_length, parallel_sequences=0
            )
            yield (
                path,
                ReferencesSpec(
                    of=order,
                    shuffle=shuffle,
                    deal=deal,
                    drop_last=drop_last,
                    clock=Clock.from_description(clock[0]) if clock else None,
                ),
            )
        else:
            for name, child in _children(said).items():
                yield from self._order_trees(child, f"{path}/{name}")

    def _leaf(self, leaf_id: str) -> Leaf:
        size, fingerprint = self.leaves[leaf_id]
        return Leaf(id=leaf_id, source=RememberedSource(size or 1, fingerprint))


def order_trees(spec: Spec) -> dict[str, ReferencesSpec]:
    """Return the order trees of a tree by their path."""
    return {
        "/".join(("root", *path)): inner
        for path, inner in spec.walk()
        if isinstance(inner, ReferencesSpec)
    }


def same_above_order(saved: TreeRecord, ours: TreeRecord, path: str) -> bool:
    """Return whether the nodes at `path` and under it are the same, but for their order trees."""
    names = path.split("/")[1:]
    return bool(_pipeline(saved.description, names) == _pipeline(ours.description, names))


def _pipeline(said: list[Any], names: Sequence[str]) -> Any:
    """Return a described node below `said`, without what stands below reading; None: no node."""
    for name in names:
        below = _children(said)
        if said[0] == "references" or name not in below:
            return None
        said = below[name]
    if said[0] == "references":
        return "references"
    below = {name: _pipeline(child, ()) for name, child in _children(said).items()}
    return [said[:-1], below]


def differences(saved: TreeRecord, ours: TreeRecord) -> list[str]:
    """Return in sentences how two trees differ, the most telling first."""
    gone = [f"leaf {leaf_id!r} is gone" for leaf_id in saved.leaves.keys() - ours.leaves.keys()]
    new = [f"leaf {leaf_id!r} is new" for leaf_id in ours.leaves.keys() - saved.leaves.keys()]
    changed = [
        f"leaf {leaf_id!r} had {_samples(saved.leaves[leaf_id])} and has {_samples(leaf)}"
        for leaf_id, leaf in ours.leaves.items()
        if leaf_id in saved.leaves and saved.leaves[leaf_id] != leaf
    ]
    return (
        sorted(gone) + sorted(new) + changed + _compare(saved.description, ours.description, "root")
    )


def _samples(leaf: tuple[int | None, str]) -> str:
    size, fingerprint = leaf
    return f"{'other' if size is None else size} samples (fingerprint {fingerprint})"


def _compare(saved: list[Any], ours: list[Any], path: str) -> list[str]:
    """Return in sentences how two descriptions differ, node by node; leaves are told by id."""
    if saved[0] != ours[0]:
        return [f"{path} was a {saved[0]}, is a {ours[0]}"]
    if saved[0] == "leaf":
        return []
    found = []
    if saved[1:-1] != ours[1:-1]:
        found.append(f"{path} ({saved[0]}) was {_shown(saved)}, is {_shown(ours)}")
    below, now = _children(saved), _children(ours)
    if len(below) != len(now):
        found.append(f"{path} ({saved[0]}) had {len(below)} children, has {len(now)}")
    for name in below.keys() & now.keys():
        found += _compare(below[name], now[name], f"{path}/{name}")
    return found


def _shown(said: list[Any]) -> str:
    text = ", ".join(str(value) for value in said[1:-1])
    return text if len(text) <= 80 else f"{text[:80]}..."


def _children(said: list[Any]) -> dict[str, list[Any]]:
    """Return the described children of a described node, by name."""
    below = said[-1]
    return below if isinstance(below, dict) else {str(n): child for n, child in enumerate(below)}


def built_children(said: list[Any]) -> dict[str, list[Any]]:
    """Return the described children that a node above reading has: not those of weight 0."""
    below = _children(said)
    if said[0] not in ("blend", "mix"):
        return below
    return {name: child for name, child in below.items() if said[1][int(name)]}


def built_order_trees(said: list[Any], path: str = "root") -> Iterator[str]:
    """Yield the paths of the order trees that are drawn from."""
    if said[0] == "references":
        yield path
        return
    for name, child in built_children(said).items():
        yield from built_order_trees(child, f"{path}/{name}")


class _Steps:
    """Numbers of leaves as steps from one to the next: mostly 1, so they pack to nothing."""

    def __init__(self) -> None:
        self._number = -1

    def to(self, number: int) -> int:
        step, self._number = number - self._number, number
        return step

    def by(self, step: int) -> int:
        self._number += step
        return self._number


def _with_leaves(said: Any, name: Callable[[Any], Any]) -> Any:
    """Return a description with its leaves replaced: `["leaf", id]` by a number, or back."""
    if not isinstance(said, list) or said[0] == "leaf":
        return name(said)
    below = said[-1]
    if isinstance(below, dict):
        return [*said[:-1], {key: _with_leaves(child, name) for key, child in below.items()}]
    return [*said[:-1], [_with_leaves(child, name) for child in below]]
