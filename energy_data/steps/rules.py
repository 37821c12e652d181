"""What a step is: how much is in it, and what happens at its edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from energy_data.errors import SpecError
from energy_data.order.quotas import scheduled

Counted = Literal["documents", "samples", "tokens", "labels", "groups"]
COUNTED: tuple[Counted, ...] = ("documents", "samples", "tokens", "labels", "groups")
Measure = Literal["documents", "samples", "tokens", "labels", "groups", "microbatches"]
MEASURES: tuple[Measure, ...] = (*COUNTED, "microbatches")

Said: TypeAlias = int | Mapping[str, int]
"""What someone says is in a micro-batch: its documents, or several counts by name."""

Target: TypeAlias = int | Sequence[Sequence[int]]

_WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": ("at_least", "exact"),
    "emit": ("microbatch", "step"),
    "last": ("drop", "short", "carry"),
    "on_rank_end": ("stop", "pad"),
    "at_boundary": ("close", "mix"),
}
_LEAST = {"multiple": 1, "max_microbatches": 1, "max_empty_rounds": 1, "lookahead": 1, "shares": 1}


def _schedule(target: Target) -> tuple[tuple[int, int], ...]:
    """Return a target as pairs: from which step on, how much."""
    try:
        pairs = ((0, target),) if isinstance(target, int) else tuple((a, b) for a, b in target)
    except (TypeError, ValueError):
        pairs = ()
    steps = [step for step, _ in pairs]
    if (
        not all(type(value) is int for pair in pairs for value in pair)
        or steps[:1] != [0]
        or sorted(set(steps)) != steps
        or any(amount < 1 for _, amount in pairs)
    ):
        raise SpecError(
            f"docs_per_step: target must be a number >= 1, or pairs [step, number] that begin with "
            f"step 0 and ascend, got {target!r}. Write it like 256, or [[0, 64], [1000, 256]]."
        )
    return pairs


@frozen(kw_only=True)
class DocsPerStep:
    """Group micro-batches into optimizer steps that hold so many documents, over all ranks.

    A *round* is one micro-batch of each rank (or more, see `shares`): number n of the run has g =
    n R to n R + R - 1.

    "at_least": rounds are added until the step holds the target; the round that crosses it is
    included, nothing is carried over. "exact": the target is shared out to `shares`, lane by lane,
    and batches (or packs) are cut where a share is full; ranks with fewer of them get empty ones.
    """

    target: tuple[tuple[int, int], ...] = field(converter=_schedule)
    """How much a step holds; or pairs [step, how much from then on], from step 0."""
    count: Measure | Callable[[Any], Said] = "documents"
    """What the target counts; or a function of a micro-batch that says what is in it. With
    "microbatches", those of all ranks, a step is of one size."""
    mode: Literal["at_least", "exact"] = "at_least"
    multiple: int = 1
    """The number of micro-batches of a step is rounded up to a multiple of this."""
    max_microbatches: int | None = None
    """A step that would need more is an error."""
    max_empty_rounds: int = 16
    """So many rounds in a row that count nothing are an error."""
    lookahead: int = 4
    """Rounds whose counts go to the other ranks in one message. With 1, nothing is drawn before the
    step needs it; with more, micro-batches are drawn ahead while a step is handed out."""
    emit: Literal["microbatch", "step"] = "microbatch"
    """What an iteration gives: micro-batches, or lists of them."""
    last: Literal["drop", "short", "carry"] = "drop"
    """What becomes of micro-batches left at the end of a pass: left out, a short step, or the
    beginning of the next pass's first step."""
    on_rank_end: Literal["stop", "pad"] = "stop"
    """A pass ends when the first lane has ended, or when all have: until then, empty ones."""
    at_boundary: Literal["close", "mix"] = "close"
    """Where a stage begins inside a step: close the step before it, short; or let it go on."""
    known: Said | Callable[[int], Said] | None = None
    """What is in each micro-batch, or a function of its number g, where that is known beforehand:
    then ranks need not tell each other. It is checked."""
    shares: int | None = None
    """Of "exact": into how many parts a step is cut; the stream depends on it. Of "at_least": how
    many micro-batches of the run a round is. The number of ranks must divide it, and then steps do
    not depend on that. None: the number of ranks."""
    empty: Callable[[Any], Any] | None = None
    """Makes an empty micro-batch from a full one; None: tensors [0, ...] and empty lists, the rest
    as in the full one, which may be any."""
    timeout_s: float = 600.0
    """A rank that says nothing for so long, while others wait for it, is missing."""

    def __attrs_post_init__(self) -> None:
        faults = [
            f"{name} must be {' or '.join(repr(word) for word in words)}, got {value!r}"
            for name, words in _WORDS.items()
            if (value := getattr(self, name)) not in words
        ]
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                faults.append(f"{name} must be a number >= {least}, got {value!r}")
        if not callable(self.count) and self.count not in MEASURES:
            faults.append(f"count must be a function or one of {MEASURES}, got {self.count!r}")
        if not self.timeout_s > 0:
            faults.append(f"timeout_s must be > 0, got {self.timeout_s!r}")
        exact = self.count in ("documents", "groups") and self.known is None
        if self.mode == "exact" and not exact:
            faults.append(
                "mode 'exact' counts documents, or groups, by itself: leave out known and any "
                "other count"
            )
        if faults:
            raise SpecError([f"docs_per_step: {fault}." for fault in faults])

    @classmethod
    def of(cls, said: DocsPerStep | int | None) -> DocsPerStep | None:
        """Return what a number stands for."""
        return cls(target=said) if isinstance(said, int) else said

    def round_size(self, ranks: int) -> int:
        """Return how many micro-batches of the run, or shares, a round is on so many ranks."""
        return self.shares or ranks

    def target_of(self, step: int) -> int:
        """Return how much a step holds."""
        return scheduled(self.target, step)

    @property
    def measure(self) -> Measure:
        """What the target counts; what a function says without a name is documents."""
        return "documents" if callable(self.count) else self.count

    @property
    def fixed(self) -> list[Any]:
        """What must not change inside a run, as plain data: another value is another grouping."""
        return [self.mode, self.measure, self.shares]


Rules: TypeAlias = DocsPerStep | Mapping[str, DocsPerStep]
"""One rule for all steps of a run; or of a run whose stages count steps, by the names of stages.
A stage that is not named has steps of `Stage.microbatches_per_step`."""
