"""Leaves that an edit took out: how far they were, for when another puts them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen


@frozen
class Gone:
    """What each lane has drawn of leaves that are no longer in the tree."""

    prints: Mapping[str, str] = field(factory=dict)  # id -> first digits of the fingerprint
    drawn: Mapping[int, tuple[int, ...]] = field(factory=dict)  # lane -> of each, by sorted id

    def of(self, lane: int, still: Mapping[str, tuple[int | None, str]]) -> dict[str, int]:
        """Return by id what a lane has drawn of those leaves that are as in `still`."""
        counts = zip(sorted(self.prints), self.drawn.get(lane, ()), strict=False)
        return {
            name: count
            for name, count in counts
            if name in still and still[name][1] == self.prints[name]
        }

    def all_of(self, lane: int) -> dict[str, int]:
        """Return by id what a lane has drawn of each."""
        return dict(zip(sorted(self.prints), self.drawn.get(lane, ()), strict=False))

    @property
    def said(self) -> tuple[str, ...]:
        """The ids, each with its fingerprint, in one row."""
        return tuple(text for name in sorted(self.prints) for text in (name, self.prints[name]))

    @classmethod
    def read(cls, said: Sequence[str], drawn: Mapping[int, tuple[int, ...]]) -> Gone:
        """Return what `said` says, with what each lane has drawn. ValueError if damaged."""
        if not isinstance(said, tuple) or not all(isinstance(text, str) for text in said):
            raise ValueError(f"leaves that are gone: {said!r}")
        prints = dict(zip(said[::2], said[1::2], strict=True))
        for lane, counts in drawn.items():
            if not isinstance(counts, tuple) or len(counts) != len(prints):
                raise ValueError(f"lane {lane} of {len(prints)} leaves that are gone: {counts!r}")
            if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
                raise ValueError(f"lane {lane} of leaves that are gone: {counts}")
        return cls(prints, drawn)
