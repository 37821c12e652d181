"""`staged`: one node after another, each for a part of the run."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal

from attrs import field, frozen

from energy_data.config.definitions import Definition, Group, Node, Nodes, Part, key
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.rules import AMOUNT, COUNT, MAPPING, NAME, TEXT, one_of
from energy_data.config.stage_bounds import StageBounds, WrittenBounds, bounds_of, check_bounds
from energy_data.nodes.stage import DEFAULT

UNITS = ("steps", "microbatches", "samples", "tokens", "epochs")


@frozen(kw_only=True, eq=False)
class Ramp:
    """What stands below `ramp`."""

    kind: Literal["linear", "cosine"] = field(
        default="linear",
        metadata=key(
            one_of("linear", "cosine"),
            "Shape of the ramp: a straight line, or half a cosine wave.",
            "kind: cosine",
        ),
    )
    over: Fraction = field(metadata=key(AMOUNT, "Length of the ramp, in `unit`.", "over: 2K"))

    def plain(self) -> dict[str, Any]:
        """Return the keys as they are written in YAML."""
        return {"kind": self.kind, "over": amount(self.over)}


@frozen(kw_only=True, eq=False)
class StagePart(Part):
    """A child of `staged`."""

    name: str = field(
        metadata=key(NAME, "Name of the stage: seeds and states are kept by it.", "name: anneal")
    )
    start: Fraction | None = field(
        default=None,
        metadata=key(
            AMOUNT, "Where it begins, in `unit`. Default: where the one before ends.", "start: 1000"
        ),
    )
    end: Fraction | None = field(
        default=None,
        metadata=key(
            AMOUNT,
            "Where it ends: the first that is no longer its own. Default: where the next begins.",
            "end: 20000",
        ),
    )
    length: Fraction | None = field(
        default=None,
        metadata=key(AMOUNT, "How long it lasts, in place of `end`.", "for: 20B", name="for"),
    )
    on_enter: Literal["continue", "restart"] | None = field(
        default=None,
        metadata=key(
            one_of("continue", "restart"),
            "Leaves of earlier stages go on where they were, or begin anew in another order. "
            "Default: that of `staged`.",
            "on_enter: restart",
        ),
    )
    on_exhausted: Literal["repeat", "advance", "error"] | None = field(
        default=None,
        metadata=key(
            one_of("repeat", "advance", "error"),
            "After one pass over its data: the stage goes on with the next pass, ends, or was "
            "wrong to last so long. Default: that of `staged`.",
            "on_exhausted: advance",
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=key(COUNT, "Seed of the stage, in place of its name.", "seed: 7"),
    )
    ramp: Ramp | None = field(
        default=None,
        metadata=key(
            Group(Ramp),
            "Blend from the mixture of the stage before into this one, sample by sample. Both "
            "stages need the same `params`.",
            "ramp: {kind: linear, over: 2000}",
        ),
    )
    params: dict[str, Any] = field(
        factory=dict,
        metadata=key(
            MAPPING,
            "What differs in this stage: `batch_size`, `shuffle_buffer_size`, "
            "`max_samples_per_sequence`, `microbatches_per_step`, `global_batch_size`, and the "
            "parameters of the task encoder.",
            "params: {batch_size: 1, seq_len: 32768}",
        ),
    )

    def plain(self) -> dict[str, Any]:
        """Return the keys of this part as they are written in YAML."""
        own = {
            "name": self.name,
            "start": amount(self.start),
            "end": amount(self.end),
            "for": amount(self.length),
            "on_enter": self.on_enter,
            "on_exhausted": self.on_exhausted,
            "seed": self.seed,
            "ramp": self.ramp and self.ramp.plain(),
            "params": self.params or None,
        }
        return {name: value for name, value in own.items() if value is not None}


@frozen(kw_only=True, eq=False)
class Staged:
    """What stands below `staged`."""

    unit: Literal["steps", "microbatches", "samples", "tokens", "epochs"] = field(
        default="steps",
        metadata=key(
            one_of(*UNITS),
            "What `start`, `end` and `for` count; of all ranks. Tokens are `batch_size` times "
            "`seq_len` per micro-batch.",
            "unit: tokens",
        ),
    )
    microbatches_per_step: int | None = field(
        default=None,
        metadata=key(
            COUNT,
            "Micro-batches of all ranks in an optimizer step. Default: that of the call.",
            "microbatches_per_step: 32",
        ),
    )
    global_batch_size: int | None = field(
        default=None,
        metadata=key(
            COUNT,
            "Samples of all ranks in a step, in place of `microbatches_per_step`.",
            "global_batch_size: 1024",
        ),
    )
    on_enter: Literal["continue", "restart"] | None = field(
        default=None,
        metadata=key(
            one_of("continue", "restart"),
            "`on_enter` of stages that do not set it. Default: continue.",
            "on_enter: restart",
        ),
    )
    on_exhausted: Literal["repeat", "advance", "error"] | None = field(
        default=None,
        metadata=key(
            one_of("repeat", "advance", "error"),
            "After one pass over its data, a stage starts the next pass, ends (in whole steps), "
            "or is an error. Default: repeat.",
            "on_exhausted: advance",
        ),
    )
    resume: Literal["strict", "ablation"] = field(
        default="strict",
        metadata=key(
            one_of("strict", "ablation"),
            "Which edits a saved state accepts: of later stages only, or also a new stage that "
            "begins exactly where the state was saved.",
            "resume: ablation",
        ),
    )
    at: str | None = field(
        default=None,
        metadata=key(TEXT, "In validation: the one stage whose data is read.", "at: anneal"),
    )
    total: Fraction | None = field(
        default=None,
        metadata=key(
            AMOUNT, "Length of the run in `unit`, to check the stages by.", "total: 120000"
        ),
    )
    default: Definition | None = field(
        default=None,
        metadata=key(Node(), "What is played before the first stage.", "default: {path: ./base}"),
    )
    stages: tuple[StagePart, ...] = field(
        metadata=key(
            Nodes(StagePart),
            "The stages, each a node with a `name` and where it ends.",
            "stages: [{name: general, end: 1000, path: ./web}, {name: anneal, path: ./books}]",
        )
    )


@frozen(kw_only=True, eq=False)
class StagedDefinition(Definition):
    """Stages."""

    kind: ClassVar[str] = "staged"
    apart: ClassVar[bool] = True

    staged: Staged = field(
        metadata=key(
            Group(Staged),
            "One node after another, each for a part of the run, switched exactly.",
            "staged: {stages: [{name: general, end: 1000, path: ./web}, "
            "{name: anneal, path: ./books}]}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """What fills the gap at the front, if anything does, and the stages as they are written."""
        default = self.staged.default
        return [*([] if default is None else [Part(of=default)]), *self.staged.stages]

    @property
    def names(self) -> Sequence[str]:
        """The names of the stages."""
        stages = [part.name for part in self.staged.stages]
        return stages if self.staged.default is None else [DEFAULT, *stages]

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return f"staged by {self.staged.unit}"

    @property
    def asked(self) -> list[WrittenBounds]:
        """What is asked of the bounds of each stage, as they are written."""
        return [
            WrittenBounds(
                name=part.name,
                start=part.start,
                end=part.end,
                length=part.length,
                advances=(part.on_exhausted or self.staged.on_exhausted) == "advance",
                place=part.of.place,
                places=part.of.places,
                where=part.of.where,
            )
            for part in self.staged.stages
        ]

    @property
    def spans(self) -> list[StageBounds]:
        """The stages in their order, with their bounds in `unit`."""
        return bounds_of(self.asked, with_default=self.staged.default is not None)

    def check(self, faults: Diagnostics) -> None:
        """Note what is wrong with the names and the bounds of the stages."""
        staged = self.staged
        place = self.places["staged"]
        where = f"{self.where}.staged"
        if staged.microbatches_per_step is not None and staged.global_batch_size is not None:
            problem = "both `microbatches_per_step` and `global_batch_size` are given. Keep one."
            faults.report(place, where, problem)
        if staged.unit != "epochs":
            for part in staged.stages:
                for name, value in (("start", part.start), ("end", part.end), ("for", part.length)):
                    if value is not None and value.denominator != 1:
                        problem = (
                            f"must be whole in {staged.unit}, found {float(value):g}. Round it."
                        )
                        faults.report(part.of.places[name], f"{part.of.where}.{name}", problem)
        check_bounds(
            self.asked,
            faults,
            with_default=staged.default is not None,
            total=staged.total,
            unit=staged.unit,
            at=(place, where),
        )

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML."""
        staged = self.staged
        first = [] if staged.default is None else [children[0]]
        own: dict[str, Any] = {
            "unit": staged.unit,
            "microbatches_per_step": staged.microbatches_per_step,
            "global_batch_size": staged.global_batch_size,
            "on_enter": staged.on_enter,
            "on_exhausted": staged.on_exhausted,
            "resume": staged.resume,
            "at": staged.at,
            "total": amount(staged.total),
            "default": first[0] if first else None,
            "stages": list(children[len(first) :]),
        }
        return {"staged": {name: value for name, value in own.items() if value is not None}}

    def size(self, drawn: Sequence[Fraction | None]) -> Fraction | None:
        """Return None: stages have no passes."""
        return None


def amount(value: Fraction | None) -> int | float | None:
    """Return an amount as a number of YAML."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)
