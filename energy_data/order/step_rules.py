"""`DocsPerStep`: the size of an optimizer step, and the rules for its ends. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import field, frozen

from energy_data.core import recipe
from energy_data.core.recipe import COUNT, POSITIVE, TARGET, Rule, one_of
from energy_data.errors import SpecError

Counted = Literal["documents", "samples", "tokens", "labels", "groups"]
COUNTED: tuple[Counted, ...] = ("documents", "samples", "tokens", "labels", "groups")
Measure = Literal["documents", "samples", "tokens", "labels", "groups", "microbatches"]
MEASURES: tuple[Measure, ...] = (*COUNTED, "microbatches")

ReportedCounts: TypeAlias = int | Mapping[str, int]
"""What a batch, or a `count` function, reports: a number of documents, or counts by name."""

Target: TypeAlias = int | Sequence[Sequence[int]]


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
    """Groups micro-batches into optimizer steps that hold a number of documents over all ranks.

    A *round* is one micro-batch of each rank, or `shares` micro-batches of the run.

    "at_least": rounds are added until the step holds the target. The round that reaches the target
    is included, and nothing is carried over. "exact": the target is divided into `shares`, and
    batches and packs are cut where a share is full. Ranks with fewer micro-batches get empty ones.
    """

    target: tuple[tuple[int, int], ...] = field(
        converter=_schedule,
        metadata=recipe.declare(
            TARGET,
            "The amount that a step holds over all ranks; or how it changes with the step.",
            "target: [[0, 64], [1000, 256]]",
        ),
    )
    """The amount that a step holds; or pairs [step, amount from that step on], from step 0."""
    count: Measure | Callable[[Any], ReportedCounts] = recipe.key(
        one_of(*MEASURES),
        "What the target counts. With `microbatches`, of all ranks, steps have one size.",
        "count: tokens",
        default="documents",
    )
    """What the target counts; or a function that takes a micro-batch and returns what it holds.
    "microbatches" counts those of all ranks: every step has the same number of micro-batches."""
    mode: Literal["at_least", "exact"] = recipe.key(
        one_of("at_least", "exact"),
        "Micro-batches are added until the target is reached, or cut to meet it.",
        "mode: exact",
        default="at_least",
    )
    max_microbatches: int | None = recipe.key(
        COUNT, "A step that needs more is an error.", "max_microbatches: 64", default=None
    )
    """A step that needs more micro-batches per rank is an error."""
    lookahead: int = recipe.key(
        COUNT,
        "Rounds whose counts are exchanged in one message. 1: nothing is drawn ahead.",
        "lookahead: 16",
        default=4,
    )
    """Rounds whose counts are exchanged in one message. With 1, no micro-batch is drawn before the
    step needs it; with more, micro-batches are drawn ahead while a step is handed out."""
    last: Literal["drop", "short"] = recipe.key(
        one_of("drop", "short"),
        "Whether micro-batches left at the end of a pass are dropped, or form a short step.",
        "last: short",
        default="drop",
    )
    on_rank_end: Literal["stop", "pad"] = recipe.key(
        one_of("stop", "pad"),
        "Whether a pass ends when the first lane ends, or when all lanes have ended.",
        "on_rank_end: pad",
        default="stop",
    )
    """Whether a pass ends when the first lane ends, or when all lanes have ended. Until then,
    ranks without a micro-batch get empty ones."""
    shares: int | None = recipe.key(
        COUNT,
        "With `exact`, parts of a step; with `at_least`, micro-batches of a round. The number "
        "of ranks must divide it. Default: the number of ranks.",
        "shares: 64",
        default=None,
    )
    """With "exact", the number of parts that a step is cut into; the stream depends on it. With
    "at_least", the number of micro-batches of the run in a round. The number of ranks must divide
    it, and steps do not depend on the number of ranks. None: the number of ranks."""
    timeout_s: float = recipe.key(
        POSITIVE,
        "Seconds after which a silent rank is reported as missing.",
        "timeout_s: 60",
        default=600.0,
    )
    """Seconds after which a silent rank that others wait for is reported as missing."""

    def __attrs_post_init__(self) -> None:
        faults = [
            f"{name} must be {key.holds.must_be}, got {value!r}"
            for name, key in recipe.keys_of(type(self)).items()
            if (value := getattr(self, name)) != key.default
            and isinstance(key.holds, Rule)
            and not (key.holds is TARGET or callable(value) or key.holds.allows(value))
        ]
        if self.mode == "exact" and self.count not in ("documents", "groups"):
            faults.append(
                f"mode 'exact' counts 'documents' or 'groups', got count {self.count!r}. Use mode "
                f"'at_least'"
            )
        if faults:
            raise SpecError([f"docs_per_step: {fault}." for fault in faults])

    @classmethod
    def of(cls, rules: DocsPerStep | int | None) -> DocsPerStep | None:
        """Return the rules; an integer is a target."""
        return cls(target=rules) if isinstance(rules, int) else rules

    def round_size(self, ranks: int) -> int:
        """Return the number of micro-batches of the run, or shares, in a round."""
        return self.shares or ranks

    def target_of(self, step: int) -> int:
        """Return the amount that a step holds."""
        return target_at(self.target, step)

    @property
    def measure(self) -> Measure:
        """What the target counts. A function that returns a number returns documents."""
        return "documents" if callable(self.count) else self.count

    @property
    def fixed(self) -> list[Any]:
        """The rules that must not change during a run, as plain data."""
        return [self.mode, self.measure, self.shares]


def target_at(target: Sequence[tuple[int, int]], step: int) -> int:
    """Return the target of a step. target: pairs (step, amount from that step on), from step 0."""
    return target[bisect_right(target, step, key=lambda pair: pair[0]) - 1][1]


def target_from(target: Sequence[tuple[int, int]], step: int) -> tuple[tuple[int, int], ...]:
    """Return the target with steps counted from `step`."""
    later = [(at - step, amount) for at, amount in target if at > step]
    return ((0, target_at(target, step)), *later)


def share_size(share: int, target: Sequence[tuple[int, int]], shares: int) -> int:
    """Return the amount that share number `share` of the run holds; a step has `shares` of them.

    The shares of a step differ by one at most, the larger ones come first, and they add up to the
    target of the step.
    """
    step, place = divmod(share, shares)
    least, rest = divmod(target_at(target, step), shares)
    return least + (place < rest)
