"""What is in micro-batches that nobody has drawn yet: then ranks need not tell each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from attrs import evolve

from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.run import Run
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.nodes.share import ShareSpec
from energy_data.nodes.staged import StagedSpec
from energy_data.order.quotas import quota
from energy_data.steps.counts import Counts, known_counts
from energy_data.steps.rules import DocsPerStep
from energy_data.tasks.encoder import TaskEncoder

Run_ = TypeVar("Run_", bound=Run[Any])

Foreknown: TypeAlias = Callable[[int], tuple[int, Counts]]
"""Number of a micro-batch, or of a share, in the run -> how many micro-batches it is, and what is
in them."""


def foreknown(run: Run[Any], rules: DocsPerStep) -> Foreknown | None:
    """Return what is known beforehand, None if micro-batches must be looked at.

    That is what `known` says; and endless batches of samples that no code of the user's touches.
    """
    if rules.known is not None:
        return lambda number: (1, known_counts(rules, number))
    spec = run.spec
    if not _is_plain(spec):
        return None
    if isinstance(spec, ShareSpec):
        target, shares, batch_size = spec.target, spec.shares, spec.batch_size

        def of_share(number: int) -> tuple[int, Counts]:
            size = quota(number, target, shares)
            return -(-size // batch_size), Counts(size, size, None, None, None)

        return of_share
    if isinstance(spec, BatchSpec) and rules.count in ("documents", "samples"):
        counts = Counts(spec.batch_size, spec.batch_size, None, None, None)
        return lambda number: (1, counts)
    return None


def _is_plain(spec: Spec) -> bool:
    """Return whether a tree gives full batches without end, and no user code decides of what."""
    if not isinstance(spec, BatchSpec | ShareSpec) or getattr(spec, "aligned", False):
        return False
    encoder = getattr(spec.collate, "__self__", None)
    return (
        isinstance(encoder, TaskEncoder)
        and not encoder.has_functions
        and isinstance(spec.of, EncodeSpec)
        and isinstance(spec.of.of, ReadSpec)
        and isinstance(spec.of.of.of, ReferencesSpec | OrderSpec)
    )


def _packs_by_itself(spec: Spec, below: Spec) -> bool:
    """Return whether a node makes packs that cannot be told where to close."""
    if isinstance(spec, PackSpec):
        return spec.packing.quota is not None or spec is not below
    return isinstance(spec, SelectPackSpec) and spec is not below


def in_shares(run: Run_, rules: DocsPerStep) -> Run_:
    """Return the run with its batches cut into shares of steps, as "exact" needs it."""
    spec, ranks = run.spec, run.worker_config.world_size
    shares = ranks if rules.shares is None else rules.shares
    if shares % ranks:
        raise SpecError(
            f"docs_per_step: {ranks} ranks cannot deal out {shares} shares of a step evenly. Use a "
            f"number of ranks that divides shares."
        )
    if isinstance(spec, StagedSpec):
        raise SpecError(
            "docs_per_step: mode 'exact' cuts the batches of stages that count steps; these count "
            "micro-batches, and would begin inside a step. Write `unit: steps` (in Python "
            "`Stage(counts='steps')`), or use mode 'at_least'."
        )
    ends = any(isinstance(each, ReferencesSpec) and each.deal for _, each in spec.walk())
    if not isinstance(spec, BatchSpec | GroupSpec) or ends or getattr(spec, "aligned", False):
        raise SpecError(
            "docs_per_step: mode 'exact' cuts the batches of an endless training stream (repeat="
            "True); this tree gives other ones. Use mode 'at_least'."
        )
    _check_packs(spec, rules)
    shared = ShareSpec(
        of=spec.of if isinstance(spec, BatchSpec) else spec,
        batch_size=spec.batch_size or 1,
        collate=spec.collate if isinstance(spec, BatchSpec) else None,
        target=rules.target,
        shares=shares,
        count="groups" if rules.count == "groups" else "documents",
        on_failure=spec.on_failure if isinstance(spec, BatchSpec) else None,
    )
    return evolve(run, spec=shared)


def _check_packs(spec: BatchSpec | GroupSpec, rules: DocsPerStep) -> None:
    """Raise SpecError if a share of a step cannot be filled exactly."""
    if rules.count == "groups":
        if isinstance(spec, BatchSpec):
            raise SpecError(
                "docs_per_step: mode 'exact' with `count: groups` gives so many batches of one "
                "group each, and nothing groups samples here. Give the task encoder a "
                "`batch_group_criterion`, or count documents."
            )
        return
    below = spec.of if isinstance(spec, BatchSpec) else spec
    packed = next((each for _, each in spec.of.walk() if _packs_by_itself(each, below)), None)
    if packed is not None:
        raise SpecError(
            f"docs_per_step: mode 'exact' closes packs where a share of the step is full; this "
            f"tree has a {packed.kind} that decides by itself. Pack without a quota of its "
            f"own and right below the batches, or use mode 'at_least'."
        )
