"""`docs_per_step`: optimizer steps that hold so many documents, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

from attrs import field, fields, frozen

from energy_data.config.definitions import Definition, Group, Node, Part, key
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.rules import COUNT, TARGET, one_of
from energy_data.errors import SpecError
from energy_data.steps.rules import MEASURES, DocsPerStep, Measure


@frozen(kw_only=True, eq=False)
class Steps:
    """What stands below `docs_per_step`; all but `of` has the names of `DocsPerStep`."""

    target: Any = field(
        metadata=key(
            TARGET,
            "How much a step holds, over all ranks; or how it changes with the step.",
            "target: [[0, 64], [1000, 256]]",
        )
    )
    count: Measure = field(
        default="documents",
        metadata=key(
            one_of(*MEASURES),
            "What the target counts. With `microbatches`, of all ranks, a step is of one size.",
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
    multiple: int = field(
        default=1,
        metadata=key(
            COUNT,
            "The number of micro-batches of a step is rounded up to a multiple of this.",
            "multiple: 2",
        ),
    )
    max_microbatches: int | None = field(
        default=None,
        metadata=key(COUNT, "A step that would need more is an error.", "max_microbatches: 64"),
    )
    max_empty_rounds: int = field(
        default=16,
        metadata=key(
            COUNT,
            "So many rounds in a row that count nothing are an error.",
            "max_empty_rounds: 100",
        ),
    )
    lookahead: int = field(
        default=4,
        metadata=key(
            COUNT,
            "Rounds whose counts go to the other ranks in one message. 1: nothing is drawn ahead.",
            "lookahead: 16",
        ),
    )
    emit: Literal["microbatch", "step"] = field(
        default="microbatch",
        metadata=key(
            one_of("microbatch", "step"),
            "What an iteration gives: micro-batches, or lists of them.",
            "emit: step",
        ),
    )
    last: Literal["drop", "short", "carry"] = field(
        default="drop",
        metadata=key(
            one_of("drop", "short", "carry"),
            "What is left at the end of a pass is left out, a short step, or begins the next pass.",
            "last: carry",
        ),
    )
    on_rank_end: Literal["stop", "pad"] = field(
        default="stop",
        metadata=key(
            one_of("stop", "pad"),
            "A pass ends when the first lane has ended, or when all have.",
            "on_rank_end: pad",
        ),
    )
    at_boundary: Literal["close", "mix"] = field(
        default="close",
        metadata=key(
            one_of("close", "mix"),
            "A stage that begins inside a step closes it, short; or the step goes on.",
            "at_boundary: mix",
        ),
    )
    shares: int | None = field(
        default=None,
        metadata=key(
            COUNT,
            "Of `exact`: parts of a step. Of `at_least`: micro-batches of a round. The ranks must "
            "divide them. Default: the ranks.",
            "shares: 64",
        ),
    )
    of: Definition = field(
        metadata=key(Node(), "What the micro-batches come from.", "of: {path: ./coco}")
    )

    def rules(self) -> DocsPerStep:
        """Return what is said here as the loader takes it. SpecError if it is impossible."""
        names = [each.name for each in fields(type(self)) if each.name != "of"]
        return DocsPerStep(**{name: getattr(self, name) for name in names})


@frozen(kw_only=True, eq=False)
class DocsPerStepDefinition(Definition):
    """Steps; only at the top of a split, or of a stage."""

    kind: ClassVar[str] = "docs_per_step"
    below_split_only: ClassVar[bool] = True
    in_stages: ClassVar[bool] = True
    elsewhere: ClassVar[str] = (
        "It groups the micro-batches of the run: put it over all of the split, or of a stage."
    )
    apart: ClassVar[bool] = True  # for those who ask how far the run is: it is known below

    docs_per_step: Steps = field(
        metadata=key(
            Group(Steps),
            "Optimizer steps that hold so many documents, over all ranks; at the top of a split, "
            "or of a stage.",
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
