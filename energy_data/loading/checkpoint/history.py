"""Leaves that an edit removed: how far they were, in case another edit adds them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from energy_data.core.cursor import is_count
from energy_data.core.node import ItemRef
from energy_data.nodes.leaf_history import LeafHistory, are_references


@frozen
class RemovedLeaves:
    """What each lane has done to leaves that are no longer in the tree."""

    prints: Mapping[str, str] = field(factory=dict)  # id -> first digits of the fingerprint
    drawn: Mapping[int, tuple[int, ...]] = field(factory=dict)  # lane -> of each, by sorted id
    # Lane -> what of it was never given: number of the leaf among these, epoch, sample number.
    returned: Mapping[int, tuple[ItemRef, ...]] = field(factory=dict)

    @classmethod
    def of(cls, prints: Mapping[str, str], pasts: Mapping[int, LeafHistory]) -> RemovedLeaves:
        """Return leaves with what each lane has done to them."""
        names = sorted(prints)
        number = {name: place for place, name in enumerate(names)}
        return cls(
            prints,
            {lane: tuple(one.drawn.get(name, 0) for name in names) for lane, one in pasts.items()},
            {lane: past.of_leaves(number).refs(number) for lane, past in pasts.items()},
        )

    def past(self, lane: int) -> LeafHistory:
        """Return what a lane has done to each."""
        names = sorted(self.prints)
        returned = self.returned.get(lane, ())
        return LeafHistory(
            dict(zip(names, self.drawn.get(lane, ()), strict=False)),
            ((names[place], epoch, number) for place, epoch, number in returned),
        )

    def past_of(self, lane: int, still: Mapping[str, tuple[int | None, str]]) -> LeafHistory:
        """Return what a lane has done to those leaves that are as in `still`."""
        return self.past(lane).of_leaves(
            {name for name, of in self.prints.items() if name in still and still[name][1] == of}
        )

    @property
    def listed(self) -> tuple[str, ...]:
        """The ids, each with its fingerprint, in one row."""
        return tuple(text for name in sorted(self.prints) for text in (name, self.prints[name]))

    def of_lane(self, lane: int) -> dict[str, Any]:
        """Return what a state has of a lane; empty of no leaves."""
        if not self.prints:
            return {}
        return {"gone": self.drawn.get(lane, ()), "back": self.returned.get(lane, ())}

    @classmethod
    def read(
        cls, listed: Sequence[str], of_lanes: Mapping[int, Mapping[str, Any]]
    ) -> RemovedLeaves:
        """Return what `listed` and `of_lane` of each lane returned. ValueError if damaged."""
        if not isinstance(listed, tuple) or not all(isinstance(text, str) for text in listed):
            raise ValueError(f"leaves that are gone: {listed!r}")
        prints = dict(zip(listed[::2], listed[1::2], strict=True))
        drawn = {lane: of.get("gone", ()) for lane, of in of_lanes.items()}
        returned = {lane: of.get("back", ()) for lane, of in of_lanes.items()}
        for lane, counts in drawn.items():
            if not isinstance(counts, tuple) or len(counts) != len(prints):
                raise ValueError(f"lane {lane} of {len(prints)} leaves that are gone: {counts!r}")
            if not all(map(is_count, counts)):
                raise ValueError(f"lane {lane} of leaves that are gone: {counts}")
            if not are_references(returned[lane], len(prints)):
                raise ValueError(f"lane {lane} of leaves that are gone: {returned[lane]!r}")
        return cls(prints, drawn, returned)

    @classmethod
    def merged(cls, parts: Iterable[RemovedLeaves]) -> RemovedLeaves:
        """Return the removed leaves of all lanes from those of some lanes each."""
        gone = cls()
        for part in parts:
            drawn, returned = {**gone.drawn, **part.drawn}, {**gone.returned, **part.returned}
            gone = cls(part.prints, drawn, returned)
        return gone
