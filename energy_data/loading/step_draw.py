"""Drawing rounds of micro-batches, and learning what is in them on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from energy_data.core.node import State
from energy_data.errors import SpecError
from energy_data.loading.exchange import Exchange
from energy_data.loading.exchange_gloo import GlooExchange
from energy_data.loading.lanes import Host
from energy_data.loading.loader import Loader
from energy_data.loading.run import Run
from energy_data.loading.step_rounds import NUM_COLUMNS, Drawn, Known, own, summed
from energy_data.loading.step_stages import StepStages, known, resolved
from energy_data.loading.step_state import SettledStep, StepPosition
from energy_data.loading.steps.counts import EMPTY, Counts, counts_of
from energy_data.loading.steps.planner import OpenStep
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.nodes.run_plan import PlannedStage
from energy_data.nodes.staged import StagedNode
from energy_data.order.step_rules import DocsPerStep


class Slot(NamedTuple):
    """A micro-batch of a step."""

    base: int  # number of the first micro-batch of its round
    batch: Any = None  # None: an empty one
    counts: Counts = EMPTY
    is_owned: bool = True  # it was copied out of the arena


class Buffer:
    """What was drawn and not handed over: the rounds of one step, and rounds after it."""

    def __init__(self, step: int, start: int, stage: Any = None) -> None:
        self.settled: SettledStep | None = None
        self.slots: list[Slot] = []  # of the settled step
        self.pending: list[Drawn] = []  # rounds after it; and what all ranks know of the first ones
        self.known: list[Known] = []
        self.so_far = OpenStep(step), EMPTY  # the first of them, as the next step
        self.start, self.stage = start, stage  # where to draw on if there are none

    def next_base(self, stride: int) -> int:
        """Return the number of the next round's first micro-batch."""
        return self.pending[-1].base + stride if self.pending else self.start

    @property
    def is_over(self) -> bool:
        """Whether this rank has met the end of the pass."""
        return bool(self.pending) and self.pending[-1].ended

    def following(self) -> Buffer:
        """Return the buffer without its settled step."""
        assert self.settled is not None
        after = Buffer(self.settled.plan.step + 1, self.start, self.stage)
        after.pending, after.known = self.pending, self.known
        return after


class RoundLoader(Loader[Any]):
    """Draws the rounds of one rank into a buffer. A part of `StepLoader`."""

    groups_steps = True

    def __init__(
        self, dataset: Run[Any], rules: DocsPerStep, host: Host | None, exchange: Exchange | None
    ) -> None:
        config = dataset.worker_config
        if dataset.from_start or dataset.even_batches is not None:
            found = "a validation stream" if dataset.from_start else "even_batches"
            raise SpecError(
                f"docs_per_step: it does not go with {found}. Passes of training end on all ranks "
                f"together as `on_rank_end` and `last` say."
            )
        self._ranks = config.world_size
        self.rules = resolved(rules, self._ranks)
        self._stride = self.rules.round_size(self._ranks)
        self._lookahead = 1 if rules.mode == "exact" else rules.lookahead
        self._stages = StepStages.of(dataset.spec)
        self._set_stage(())
        self._exchange = exchange or GlooExchange(config, self.rules.timeout_s)
        super().__init__(dataset, host)
        if self._stages.path is not None:
            self._transitions.stage_of = self._planned_stage

    def _begin_run(self) -> None:
        self._set_stage(())
        self._begin(StepPosition())

    def _set_stage(self, entered: Sequence[int]) -> None:
        """Take the rule of a stage. entered: the first micro-batch of each but the first."""
        self._stage, self._stage_begin = len(entered), entered[-1] if entered else 0
        self._known_counts = known(self._stages.specs[self._stage], self.rules)
        self._is_alone = self._ranks == 1 or self._known_counts is not None

    def _planned_stage(self, batch: int) -> PlannedStage | None:
        """Return the stage of the micro-batch handed over last; `batch` does not tell it."""
        return self._transitions.plan.stages[self._stage]

    @property
    def _is_over(self) -> bool:
        if self._stages.path is None:
            return super()._is_over
        return self._stages.number_at(self._at.step) == len(self._stages.specs)

    def _enter_stage_if_due(self) -> None:
        """Go on in the stage of the next step. StopIteration, each time, after the last."""
        at, number = self._at, self._stages.number_at(self._at.step)
        if number == self._stage:
            return
        if number == len(self._stages.specs):
            raise StopIteration
        first = self._own(at.base)
        places = self._host.states(first)
        nodes = self.dataset.build(places, self._num_lanes, profiler=self._host.profiler)
        entered = (*self._entered(places), at.base)
        for lane, node in nodes.items():
            node.load_state_dict(places[lane])
            staged = dict(node.walk())[self._stages.path or ""]
            assert isinstance(staged, StagedNode)
            staged.enter(at.base)

        def begin() -> None:
            self._set_stage(entered)
            self._begin(at)

        self._move(nodes, self._num_lanes, replace(self._place, batch=first), begin)

    def _entered(self, places: Mapping[int, State]) -> tuple[int, ...]:
        """Return the first micro-batch of each stage but the first, as the lanes have it."""
        if self._stages.path is None:
            return ()
        (entered,) = {tuple(place[self._stages.path]["entered"]) for place in places.values()}
        return entered

    def _begin(self, at: StepPosition, settled: SettledStep | None = None) -> None:
        """Go to a place; nothing is drawn yet."""
        self._at, self._buffer = at, Buffer(at.step, at.base)
        self._buffer.settled = settled
        self._last: int | None = None
        self._host.keep(self._own(at.base))
        self._begin_exchange()

    def _begin_exchange(self) -> None:
        """Begin to tell the other ranks of rounds, from the next one that is drawn."""
        rules, at = self.rules, self._at
        shared = [rules.fixed, rules.target, rules.lookahead, rules.last, rules.on_rank_end]
        self._digest = zlib.crc32(repr([*shared, at.step, at.docs_seen]).encode())
        self._blank: Any = None  # an empty micro-batch
        self._on_its_way = False
        self._cramped: int | None = None  # slots in use when a batch drawn ahead found no room
        self._postponed: Exception | None = None
        self._exchange.restart(self._moves)

    def _own(self, base: int) -> int:
        """Return the number of this rank's first micro-batch in the round that begins at `base`."""
        return base + (self.dataset.worker_config.rank - base) % self._ranks

    # ---- drawing

    def _draw(self, *, ahead: bool = False) -> None:
        """Draw one more round into the buffer. What it raises is told to the others."""
        buffer = self._buffer
        try:
            if self._postponed is not None:
                raise self._postponed
            buffer.pending.append(self._drawn(buffer, ahead=ahead))
        except Exception as error:
            if ahead:
                raise
            self._postponed = None
            self._say_failed(error)
            raise

    def _drawn(self, buffer: Buffer, *, ahead: bool) -> Drawn:
        base = buffer.next_base(self._stride)
        if buffer.is_over:
            return Drawn(base, ended=True)
        batches: list[Any] = []
        counts: list[Counts] = []
        numbers = range(self._own(base), base + self._stride, self._ranks)
        for number in numbers:
            for batch in self._taken(number, ahead=ahead):
                batches.append(batch)
                counts.append(counts_of(batch, self.rules))
        before = buffer.pending[-1].stage if buffer.pending else buffer.stage
        stage = self._stages.maker_of(base + self._stride - 1)
        drawn = Drawn(
            base,
            tuple(batches),
            tuple(counts),
            ended=self._has_ended(numbers, is_empty=not batches),
            stage=stage,
            new_stage=stage != before and before is not None,
        )
        assert self._known_counts is None or not drawn.ended, "an endless stream has ended"
        return drawn

    def _has_ended(self, numbers: Sequence[int], *, is_empty: bool) -> bool:
        if self.rules.on_rank_end == "stop":
            return any(number % self._num_lanes in self._ended for number in numbers)
        return is_empty and len(self._ended) * self._ranks >= self._num_lanes

    def _taken(self, number: int, *, ahead: bool) -> Sequence[Any]:
        """Return the micro-batches that item `number` of the run is; none if it is left out."""
        while True:
            try:
                items = self._take(number)
            except ArenaFullError:
                # The step is larger than the shared memory: what is held of it moves out.
                if ahead or not self._make_room():
                    raise
            else:
                return items[0] if items and self.rules.mode == "exact" else items

    def _make_room(self) -> bool:
        """Copy what is held out of the arena; return whether there was something."""
        buffer, found = self._buffer, False
        for number, slot in enumerate(buffer.slots):
            if not slot.is_owned:
                buffer.slots[number] = slot._replace(batch=own(slot.batch), is_owned=True)
                found = True
        for number, drawn in enumerate(buffer.pending):
            if drawn.batches and not drawn.owned:
                buffer.pending[number] = drawn.copied()
                found = True
        return found

    def _draw_ahead(self) -> None:
        """Draw a round for one that is handed over, and begin to tell of those drawn.

        An error waits until its round is due.
        """
        buffer = self._buffer
        if buffer.settled is None or self.rules.lookahead == 1:
            return
        enough = buffer.settled.plan.rounds + (0 if self._is_alone else self._lookahead)
        if self._stages.ends_with(self._at.step):
            return  # the next step is of another stage, and drawn from there
        waits = self._is_cramped or self._postponed is not None or buffer.is_over
        if len(buffer.pending) < enough and not waits:
            try:
                self._draw(ahead=True)
                self._cramped = None
            except ArenaFullError:
                self._cramped = self._host.slots_in_use
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._postponed = error
        self._send_if_due()

    @property
    def _is_cramped(self) -> bool:
        """Whether there is no more room than when there was none."""
        return self._cramped is not None and self._host.slots_in_use >= self._cramped

    # ---- learning

    def _learn(self) -> None:
        """Learn what is in one more round, at least, on all ranks."""
        buffer = self._buffer
        if self._is_alone:
            if len(buffer.pending) == len(buffer.known):
                self._draw()
            buffer.known.append(self._known_alone(buffer.pending[len(buffer.known)]))
            return
        while not self._on_its_way:
            if not self._send_if_due():
                self._draw()
        tables = self._exchange.receive()
        self._on_its_way = False
        rounds = list(zip(*tables, strict=True))[: self._lookahead]
        buffer.known += [Known.of(of_round, self.rules) for of_round in rounds]
        self._send_if_due()

    def _send_if_due(self) -> bool:
        """Tell the others of the next rounds, if there are enough; return whether it was done."""
        buffer, begin = self._buffer, len(self._buffer.known)
        rounds = buffer.pending[begin : begin + self._lookahead]
        if self._is_alone or self._on_its_way or len(rounds) < self._lookahead:
            return False
        rows = np.zeros((self._lookahead, NUM_COLUMNS), np.int64)
        rows[: len(rounds)] = [drawn.row() for drawn in rounds]
        self._exchange.send(rows, place=rounds[0].base, digest=self._digest)
        self._on_its_way = True
        return True

    def _say_failed(self, error: Exception) -> None:
        if not self._is_alone:
            rows = np.zeros((self._lookahead, NUM_COLUMNS), np.int64)
            problem = f"{type(error).__name__}: {error}"
            self._exchange.send(rows, place=0, digest=self._digest, problem=problem)

    def _known_alone(self, drawn: Drawn) -> Known:
        """Return what all ranks know of a round, without an exchange."""
        if self._known_counts is None:
            return Known.of([drawn.row()], self.rules)
        first = drawn.base - self._stage_begin
        parts = [self._known_counts(first + n) for n in range(self._stride)]
        most = max(sum(count for count, _ in parts[r :: self._ranks]) for r in range(self._ranks))
        total = summed([counts for _, counts in parts])
        found = Known.of_all(total, self._ranks, 0, most, self.rules, self._ranks)
        return found._replace(round=found.round._replace(new_stage=drawn.new_stage))
