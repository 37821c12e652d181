"""Checks that a run does not exceed `max_repetitions`, and the nearest mixture that does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.staged import StagedSpec

SHOWN_DIGITS = 6

Drawn = Mapping[str, tuple[Leaf, int]]
"""Leaf id -> the leaf, and how many samples of it are drawn."""


def check_repetitions(spec: Spec, *, samples: int | None = None, tokens: int | None = None) -> None:
    """Raise SpecError if a run draws a leaf more often than its `max_repetitions` allow.

    The draws are counted from the orders, including weights that change. Stages that end are
    counted in full. A stream without an end is counted up to the budget. Without a budget it is not
    checked, and the run stops with an error at the first draw that exceeds the limit.

    Args:
        spec: The tree of batches of a run.
        samples: Samples that the run draws over all ranks.
        tokens: The same in tokens, from the mean lengths of the leaves; for runs without stages.
    """
    drawn = _drawn(spec, _samples(spec, samples, tokens))
    wrong = {
        leaf_id: (leaf, draws)
        for leaf_id, (leaf, draws) in drawn.items()
        if leaf.most_draws is not None and draws > leaf.most_draws
    }
    if wrong:
        raise SpecError(
            [_problem(leaf, draws) for leaf, draws in wrong.values()] + [_advice(drawn)]
        )


def feasible_shares(
    wanted: Sequence[Fraction], most: Sequence[Fraction | None]
) -> list[Fraction] | None:
    """Return the shares nearest to `wanted` that do not exceed their `most`; they sum to 1.

    Shares that exceed their limit are set to it, and the remainder is divided among the others in
    their own proportions, until all fit (water filling). None: the limits sum to less than 1.
    """
    shares = [Fraction(0)] * len(wanted)
    free = {number for number, share in enumerate(wanted) if share}
    left = Fraction(1)
    while free:
        total = sum(wanted[number] for number in free)
        scaled = {number: wanted[number] * left / total for number in free}
        full = {n for n, share in scaled.items() if (cap := most[n]) is not None and share > cap}
        if not full:
            for number, share in scaled.items():
                shares[number] = share
            return shares
        for number in full:
            shares[number] = most[number] or Fraction(0)
            left -= shares[number]
        free -= full
    return None


def _samples(spec: Spec, samples: int | None, tokens: int | None) -> int | None:
    """Return the budget in samples."""
    for name, value in (("budget_samples", samples), ("budget_tokens", tokens)):
        if value is not None and value < 1:
            raise SpecError(f"{name}: must be >= 1, got {value}.")
    if tokens is None:
        return samples
    if samples is not None:
        raise SpecError("budget: both `budget_samples` and `budget_tokens` are given. Keep one.")
    trees = _trees(spec)
    if isinstance(spec, StagedSpec) or len(trees) != 1:
        raise SpecError("budget_tokens: the run has several mixtures. Give `budget_samples`.")
    return int(tokens / trees[0].of.mean_tokens)


def _drawn(spec: Spec, budget: int | None) -> Drawn:
    """Return how many samples of each leaf the run draws, as far as that is known."""
    drawn: dict[str, tuple[Leaf, int]] = {}
    for tree, draws in _parts(spec, budget):
        node = tree.build(Context(lanes=1))
        for leaf, count in zip(node.leaves, node.plan.ledger(draws, ()).tolist(), strict=True):
            drawn[leaf.id] = leaf, drawn.get(leaf.id, (leaf, 0))[1] + count
    return drawn


def _parts(spec: Spec, budget: int | None) -> Iterator[tuple[ReferencesSpec, int]]:
    """Yield the order trees of a run with the number of draws from each."""
    if not isinstance(spec, StagedSpec):
        trees = _trees(spec)
        if budget is not None and len(trees) == 1:
            yield trees[0], budget
        return
    for stage in spec.stages:
        trees = list(stage.order_trees)
        if len(trees) != 1:
            return  # nodes above reading decide how often each is drawn from
        clock = trees[0].clock
        size = clock.samples_per_microbatch if clock else int(stage.params.get("batch_size", 0))
        draws = None if stage.num_batches is None else stage.num_batches * size
        if budget is not None:
            draws = budget if draws is None else min(draws, budget)
            budget -= draws
        if not draws:
            return
        yield trees[0], draws


def _trees(spec: Spec) -> list[ReferencesSpec]:
    return [inner for _, inner in spec.walk() if isinstance(inner, ReferencesSpec)]


def _problem(leaf: Leaf, draws: int) -> str:
    assert leaf.max_repetitions is not None
    return (
        f"leaf {leaf.id!r}: the run draws {draws:,} samples of it, but at most "
        f"{leaf.most_draws:,} are allowed: it has {leaf.num_samples:,}, max_repetitions "
        f"{float(leaf.max_repetitions):g}."
    )


def _advice(drawn: Drawn) -> str:
    total = sum(draws for _, draws in drawn.values())
    limits = [leaf.most_draws for leaf, _ in drawn.values()]
    shares = feasible_shares(
        [Fraction(draws, total) for _, draws in drawn.values()],
        [None if limit is None else Fraction(limit, total) for limit in limits],
    )
    if shares is None:
        most = sum(limit or 0 for limit in limits)
        return (
            f"No mixture is feasible: all leaves together allow {most:,} samples, the run draws "
            f"{total:,}. Shorten the run, or allow more repetitions."
        )
    mixture = ", ".join(
        f"{leaf_id} {_rounded(share)}" for leaf_id, share in zip(drawn, shares, strict=True)
    )
    return f"The nearest feasible mixture, in shares of all draws: {mixture}."


def _rounded(share: Fraction) -> str:
    """Return a share, rounded down, so that it stays feasible."""
    return f"{int(share * 10**SHOWN_DIGITS) / 10**SHOWN_DIGITS:.{SHOWN_DIGITS}f}"
