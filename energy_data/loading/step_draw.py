"""Drawing rounds of micro-batches, and learning what is in them on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from energy_data.core.node import State
from energy_data.errors import DataError, SpecError
from energy_data.loading.exchange import Exchange
from energy_data.loading.exchange_gloo import GlooExchange
from energy_data.loading.lanes import Host
from energy_data.loading.loader import Loader
from energy_data.loading.run import Run
from energy_data.loading.step_rounds import NUM_COLUMNS, Drawn, Known, check_known, own
from energy_data.loading.step_stages import StepStages
from energy_data.loading.step_state import At, Settled
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.nodes.run_plan import PlannedStage
from energy_data.nodes.staged import StagedNode
from energy_data.steps.counts import EMPTY, Counts, counts_of
from energy_data.steps.plan import Open
from energy_data.steps.rules import DocsPerStep, Rules


class Slot(NamedTuple):
    """A micro-batch of a step."""

    base: int  # number of the first micro-batch of its round
    batch: Any = None  # None: an empty one
    counts: Counts = EMPTY
    is_owned: bool = True  # it was copied out of the arena


class Buffer:
    """What was drawn and not handed over: the rounds of one step, and rounds after it."""

    def __init__(self, step: int, start: int, stage: Any = None) -> None:
        self.settled: Settled | None = None
        self.slots: list[Slot] = []  # of the settled step
        self.pending: list[Drawn] = []  # rounds after it; and what all ranks know of the first ones
        self.known: list[Known] = []
        self.so_far = Open(step), EMPTY  # the first of them, as the next step
        self.carried = 0  # the first of them are of an earlier pass
        self.start, self.stage = start, stage  # where to draw on if there are none

    def next_base(self, stride: int) -> int:
        """Return the number of the next round's first micro-batch."""
        pending = self.pending
        return pending[-1].base + stride if len(pending) > self.carried else self.start

    @property
    def is_over(self) -> bool:
        """Whether this rank has met the end of the pass."""
        return len(self.pending) > self.carried and self.pending[-1].ended

    def following(self) -> Buffer:
        """Return the buffer without its settled step."""
        assert self.settled is not None
        after = Buffer(self.settled.plan.step + 1, self.start, self.stage)
        after.pending, after.known, after.carried = self.pending, self.known, self.carried
        return after


class RoundLoader(Loader[Any]):
    """Draws the rounds of one rank into a buffer. A part of `StepLoader`."""

    groups_steps = True

    def __init__(
        self, dataset: Run[Any], rules: Rules, host: Host | None, exchange: Exchange | None
    ) -> None:
        config = dataset.worker_config
        if dataset.from_start or dataset.even_batches is not None:
            found = "a validation stream" if dataset.from_start else "even_batches"
            raise SpecError(
                f"docs_per_step: it does not go with {found}. Passes of training end on all ranks "
                f"together as `on_rank_end` and `last` say."
            )
        self._ranks = config.world_size
        self._stages = StepStages.of(dataset, rules)
        # All messages of a run are of one form.
        self._rows = max(_lookahead(stage.rules) for stage in self._stages.stages)
        self._set_stage(())
        self._exchange = exchange or GlooExchange(config, self.rules.timeout_s)
        super().__init__(dataset, host)
        if self._stages.path is not None:
            self._transitions.stage_of = self._transitions.at = self._planned_stage

    def _begin_run(self) -> None:
        self._set_stage(())
        self._begin(At())

    def _set_stage(self, entered: Sequence[int]) -> None:
        """Take the rule of a stage. entered: the first micro-batch of each but the first."""
        self._stage, self._stage_begin = len(entered), entered[-1] if entered else 0
        stage = self._stages.stages[self._stage]
        self.rules, self._foreknown = stage.rules, stage.foreknown
        self._stride = self.rules.round_size(self._ranks)
        self._lookahead = _lookahead(self.rules)
        self._is_alone = self._ranks == 1 or self._foreknown is not None

    def _planned_stage(self, batch: int) -> PlannedStage | None:
        """Return the stage of the micro-batch handed over last; `batch` does not tell it."""
        return self._transitions.plan.stages[self._stage]

    @property
    def _is_over(self) -> bool:
        if self._stages.path is None:
            return super()._is_over
        return self._stages.number_at(self._at.step) == len(self._stages.stages)

    def _enter_stage_if_due(self) -> None:
        """Go on in the stage of the next step. StopIteration, each time, after the last."""
        at, number = self._at, self._stages.number_at(self._at.step)
        if number == self._stage:
            return
        if number == len(self._stages.stages):
            raise StopIteration
        first = self._own(at.base)
        places = self._host.states(first)
        nodes = self.dataset.build(places, self._num_lanes, meter=self._host.meter)
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

    def _begin(self, at: At, settled: Settled | None = None) -> None:
        """Go to a place; nothing is drawn yet."""
        self._at, self._buffer = at, Buffer(at.step, at.base)
        self._buffer.settled = settled
        self._last: int | None = None
        self._host.keep(self._own(at.base))
        self._begin_exchange()

    def _begin_exchange(self) -> None:
        """Begin to tell the other ranks of rounds, from the next one that is drawn."""
        rules, at = self.rules, self._at
        said = [rules.fixed, rules.target, rules.multiple, rules.lookahead, rules.last]
        said += [rules.on_rank_end, rules.at_boundary, at.step, at.docs_seen]
        self._digest = zlib.crc32(repr(said).encode())
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
        if self._foreknown is not None:
            self._check_foreknown(numbers, drawn)
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
        rows = np.zeros((self._rows, NUM_COLUMNS), np.int64)
        rows[: len(rounds)] = [drawn.row() for drawn in rounds]
        self._exchange.send(rows, place=rounds[0].base, digest=self._digest)
        self._on_its_way = True
        return True

    def _say_failed(self, error: Exception) -> None:
        if not self._is_alone:
            rows = np.zeros((self._rows, NUM_COLUMNS), np.int64)
            problem = f"{type(error).__name__}: {error}"
            self._exchange.send(rows, place=0, digest=self._digest, problem=problem)

    def _known_alone(self, drawn: Drawn) -> Known:
        """Return what is known of a round without asking anyone."""
        if self._foreknown is None:
            return Known.of([drawn.row()], self.rules)
        total, most, items, ended = EMPTY, 0, 0, 0
        for rank in range(self._ranks):
            numbers = range(drawn.base + rank, drawn.base + self._stride, self._ranks)
            told = [
                self._foreknown(number - self._stage_begin)
                for number in numbers
                if not self._is_beyond(number)
            ]
            for _, counts in told:
                total = total.plus(counts)
            most = max(most, sum(count for count, _ in told))
            items += bool(told)
            ended += not told or (self.rules.on_rank_end == "stop" and len(told) < len(numbers))
        known = Known.of_all(total, items, ended, most, self.rules, self._ranks)
        return known._replace(round=known.round._replace(new_stage=drawn.new_stage))

    def _is_beyond(self, number: int) -> bool:
        """Return whether a micro-batch is after the end of the pass, as all ranks know it."""
        total = self.dataset.num_batches(self._place.epoch, self._num_lanes)
        return total is not None and number >= total

    def _check_foreknown(self, numbers: Sequence[int], drawn: Drawn) -> None:
        """Raise DataError if the round is not what all ranks take it for."""
        assert self._foreknown is not None
        if self.rules.mode == "exact":
            return  # by its making
        if drawn.ended and any(map(self._is_beyond, numbers)):
            return
        if drawn.ended:
            raise DataError(
                f"docs_per_step: the stream ended at micro-batch {numbers[0]}, and ranks do not "
                f"tell each other, for `known` says what is in each. Leave out `known` for a "
                f"stream whose end is not known."
            )
        found: list[Counts | None] = [*drawn.counts, *[None] * len(numbers)]
        for number, counts in zip(numbers, found, strict=False):
            if not self._is_beyond(number):
                check_known(number, counts, self._foreknown(number - self._stage_begin)[1])


def _lookahead(rules: DocsPerStep) -> int:
    """Return how many rounds are told of in one message."""
    return 1 if rules.mode == "exact" else rules.lookahead
