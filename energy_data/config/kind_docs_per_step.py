"""`docs_per_step`: optimizer steps that hold a number of documents over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

from attrs import field, fields, frozen

from energy_data.config.definitions import Definition, Group, Node, Part, key
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.rules import COUNT, POSITIVE, TARGET, one_of
from energy_data.errors import SpecError
from energy_data.order.step_rules import MEASURES, DocsPerStep, Measure


@frozen(kw_only=True, eq=False)
class Steps:
    """The keys below `docs_per_step`; all but `of` are those of `DocsPerStep`."""

    target: Any = field(
        metadata=key(
            TARGET,
            "The amount that a step holds over all ranks; or how it changes with the step.",
            "target: [[0, 64], [1000, 256]]",
        )
    )
    count: Measure = field(
        default="documents",
        metadata=key(
            one_of(*MEASURES),
            "What the target counts. With `microbatches`, of all ranks, steps have one size.",
            "count: tokens",
        ),
    )
    mode: Literal["at_least", "exact"] = field(
        default="at_least",
        metadata=key(
            one_of("at_least", "exact"),
            "Micro-batches are added until the target is reached, or cut to meet it.",
            "mode: exact",
        ),
    )
    max_microbatches: int | None = field(
        default=None,
        metadata=key(COUNT, "A step that needs more is an error.", "max_microbatches: 64"),
    )
    lookahead: int = field(
        default=4,
        metadata=key(
            COUNT,
            "Rounds whose counts are exchanged in one message. 1: nothing is drawn ahead.",
            "lookahead: 16",
        ),
    )
    last: Literal["drop", "short"] = field(
        default="drop",
        metadata=key(
            one_of("drop", "short"),
            "Whether micro-batches left at the end of a pass are dropped, or form a short step.",
            "last: short",
        ),
    )
    on_rank_end: Literal["stop", "pad"] = field(
        default="stop",
        metadata=key(
            one_of("stop", "pad"),
            "Whether a pass ends when the first lane ends, or when all lanes have ended.",
            "on_rank_end: pad",
        ),
    )
    shares: int | None = field(
        default=None,
        metadata=key(
            COUNT,
            "With `exact`, parts of a step; with `at_least`, micro-batches of a round. The number "
            "of ranks must divide it. Default: the number of ranks.",
            "shares: 64",
        ),
    )
    timeout_s: float = field(
        default=600.0,
        metadata=key(
            POSITIVE, "Seconds after which a silent rank is reported as missing.", "timeout_s: 60"
        ),
    )
    of: Definition = field(
        metadata=key(Node(), "What the micro-batches come from.", "of: {path: ./coco}")
    )

    def rules(self) -> DocsPerStep:
        """Return the rules for the loader. SpecError if they are impossible."""
        names = [each.name for each in fields(type(self)) if each.name != "of"]
        return DocsPerStep(**{name: getattr(self, name) for name in names})


@frozen(kw_only=True, eq=False)
class DocsPerStepDefinition(Definition):
    """Optimizer steps; only at the top of a split."""

    kind: ClassVar[str] = "docs_per_step"
    below_split_only: ClassVar[bool] = True
    elsewhere: ClassVar[str] = (
        "It groups the micro-batches of the run: put it over all of the split."
    )
    apart: ClassVar[bool] = True  # for those who ask how far the run is: it is known below

    docs_per_step: Steps = field(
        metadata=key(
            Group(Steps),
            "Optimizer steps that hold a number of documents over all ranks; at the top of a "
            "split.",
            "docs_per_step: {target: 256, of: {path: ./coco}}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return (Part(of=self.docs_per_step.of),)

    @property
    def names(self) -> Sequence[str]:
        """The name of the child; it does not stand in the tree of specs."""
        return ["of"]

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return f"docs_per_step, {self.docs_per_step.target}"

    def check(self, faults: Diagnostics) -> None:
        """Note what is impossible."""
        try:
            self.docs_per_step.rules()
        except SpecError as error:
            place, where = self.places["docs_per_step"], f"{self.where}.docs_per_step"
            for fault in error.faults:
                faults.report(place, where, fault.removeprefix("docs_per_step: "))

    def note_misplaced(self, faults: Diagnostics) -> None:
        """Note that the file this stands in was taken in as a part of a split."""
        problem = "must be all of a split, found its file in a part of one."
        place, where = self.places["docs_per_step"], f"{self.where}.docs_per_step"
        faults.report(place, where, f"{problem} {self.elsewhere}")

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        said = self.docs_per_step
        own = {each.name: getattr(said, each.name) for each in fields(type(said))}
        defaults = {each.name: each.default for each in fields(type(said))}
        given = {name: value for name, value in own.items() if value != defaults[name]}
        return {self.kind: {**given, "of": children[0]}}

    def size(self, drawn: Sequence[Fraction | None]) -> Fraction | None:
        """Return the number of draws in one pass. None: not known."""
        return drawn[0]
