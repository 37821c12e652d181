"""Drawing rounds of micro-batches, and learning what is in them on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from attrs import evolve

from energy_data.errors import DataError, SpecError
from energy_data.loader.arena import ArenaFullError
from energy_data.loader.exchange import Exchange
from energy_data.loader.exchange_gloo import GlooExchange
from energy_data.loader.host import Host
from energy_data.loader.loader import Loader
from energy_data.loader.run import Run
from energy_data.loader.step_known import Foreknown, foreknown
from energy_data.loader.step_rounds import NUM_COLUMNS, Drawn, Known, check_known, own, stage_of
from energy_data.loader.step_state import At, Settled
from energy_data.steps.counts import EMPTY, Counts, counts_of
from energy_data.steps.plan import Open, Round
from energy_data.steps.rules import DocsPerStep


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
        if rules.mode == "exact":
            rules = evolve(rules, shares=rules.shares or self._ranks)
        self.rules, self._stride = rules, rules.shares or self._ranks
        self._lookahead = 1 if rules.mode == "exact" else rules.lookahead
        self._foreknown: Foreknown | None = foreknown(dataset, rules)
        self._exchange = exchange or GlooExchange(config, rules.timeout_s)
        self._is_alone = self._ranks == 1 or self._foreknown is not None
        super().__init__(dataset, host)

    def _build(self, num_lanes: int) -> None:
        super()._build(num_lanes)
        self._begin(At())

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
        self._on_its_way = self._is_cramped = False
        self._postponed: Exception | None = None
        self._exchange.restart()

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
        first = self._own(base)
        for number in range(first, first + self._stride, self._ranks):
            for batch in self._taken(number, ahead=ahead):
                batches.append(batch)
                counts.append(counts_of(batch, self.rules))
        before = buffer.pending[-1].stage if buffer.pending else buffer.stage
        stage = stage_of(batches[-1]) if batches else before
        drawn = Drawn(
            base,
            tuple(batches),
            tuple(counts),
            ended=self._has_ended(first),
            stage=stage,
            new_stage=stage != before and before is not None,
        )
        if self._foreknown is not None:
            self._check_foreknown(first, drawn)
        return drawn

    def _has_ended(self, number: int) -> bool:
        if self.rules.on_rank_end == "stop":
            return number % self._num_lanes in self._ended
        return len(self._ended) * self._ranks >= self._num_lanes

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
        waits = self._is_cramped or self._postponed is not None or buffer.is_over
        if len(buffer.pending) < enough and not waits:
            try:
                self._draw(ahead=True)
            except ArenaFullError:
                self._is_cramped = True
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._postponed = error
        self._send_if_due()

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
        rows = self._exchange.receive()
        self._on_its_way = False
        buffer.known += [Known.of(of_round, self.rules) for of_round in zip(*rows, strict=True)]
        self._send_if_due()

    def _send_if_due(self) -> bool:
        """Tell the others of the next rounds, if there are enough; return whether it was done."""
        buffer, begin = self._buffer, len(self._buffer.known)
        rounds = buffer.pending[begin : begin + self._lookahead]
        if self._is_alone or self._on_its_way or len(rounds) < self._lookahead:
            return False
        rows = np.stack([drawn.row() for drawn in rounds])
        self._exchange.send(rows, place=rounds[0].base, digest=self._digest)
        self._on_its_way = True
        return True

    def _say_failed(self, error: Exception) -> None:
        if not self._is_alone:
            rows = np.zeros((self._lookahead, NUM_COLUMNS), np.int64)
            problem = f"{type(error).__name__}: {error}"
            self._exchange.send(rows, place=0, digest=self._digest, problem=problem)

    def _known_alone(self, drawn: Drawn) -> Known:
        """Return what is known of a round without asking anyone."""
        if self._foreknown is None:
            return Known.of([drawn.row()], self.rules)
        total, most, ended = EMPTY, 0, 0
        for rank in range(self._ranks):
            microbatches = 0
            for number in range(drawn.base + rank, drawn.base + self._stride, self._ranks):
                if self._is_beyond(number):
                    ended += 1
                else:
                    count, counts = self._foreknown(number)
                    microbatches, total = microbatches + count, total.plus(counts)
            most = max(most, microbatches)
        amount = getattr(total, self.rules.measure)
        most = most if self.rules.mode == "exact" else 1
        return Known(Round(amount, self._ranks - ended, ended, drawn.new_stage, most), total)

    def _is_beyond(self, number: int) -> bool:
        """Return whether a micro-batch is after the end of the pass, as all ranks know it."""
        total = self.dataset.num_batches(self._place.epoch, self._num_lanes)
        return total is not None and number >= total

    def _check_foreknown(self, number: int, drawn: Drawn) -> None:
        """Raise DataError if the round is not what all ranks take it for."""
        assert self._foreknown is not None
        if self.rules.mode == "exact":
            return  # by its making
        if self._is_beyond(number) and drawn.ended:
            return
        if drawn.ended:
            raise DataError(
                f"docs_per_step: the stream ended at micro-batch {number}, and ranks do not tell "
                f"each other, for `known` says what is in each. Leave out `known` for a stream "
                f"whose end is not known."
            )
        check_known(number, drawn.counts[0] if drawn.counts else None, self._foreknown(number)[1])
