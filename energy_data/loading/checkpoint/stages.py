"""The stages of a run as its state remembers them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Problem, as_tuples, raise_if, wrong_kinds
from energy_data.loading.checkpoint.tree import TreeRecord
from energy_data.nodes.leaf_history import LeafHistory, StagedCursor, carried_by, wrong_carried
from energy_data.nodes.stage import DEFAULT, stage_context


@frozen(kw_only=True)
class Row:
    """A stage as a state remembers it."""

    name: str
    begin: int  # micro-batch, or step
    end: int | None
    on_enter: str
    seed: int | None
    microbatches_per_step: int | None
    params: Mapping[str, Any]
    body: list[Any]  # its description

    def context(self, around: Context) -> Context:
        """Return the context that the stage was built in."""
        return stage_context(around, self.name, restarts=self.on_enter == "restart", seed=self.seed)

    def is_over(self, clock: int) -> bool:
        """Return whether the stage has ended at micro-batch, or step, `clock`."""
        return self.end is not None and self.end <= clock


@frozen
class Plan:
    """The stages of a tree as its description has them."""

    path: str
    rows: list[Row]
    around: list[Any]  # the description of the tree without the stages
    leaves: Mapping[str, tuple[int | None, str]]

    @classmethod
    def of(cls, record: TreeRecord) -> Plan | None:
        """Return the stages of a tree; None if it has none."""
        for path, said in _walk(record.description, "root"):
            if said[0] == "staged":
                _, stages, *rest, bodies = said
                fields = ("name", "begin", "end", "on_enter", "seed", "microbatches_per_step")
                rows = [
                    Row(
                        **dict(zip(fields, stage, strict=False)),
                        params=stage[6],
                        body=bodies[stage[0]],
                    )
                    for stage in stages
                ]
                around = _without(record.description)
                return cls(path, rows, [around, *rest], record.leaves)
        return None

    @classmethod
    def plain(cls, record: TreeRecord, like: Plan) -> Plan:
        """Return a tree without stages as the stages of `like` that it would be: one, for ever."""
        said, around = record.description, ["staged"]
        if found := _taken_out(said, like.path.split("/")[1:]):
            said, around = found
        row = Row(
            name=DEFAULT,
            begin=0,
            end=None,
            on_enter="continue",
            seed=None,
            microbatches_per_step=None,
            params={},
            body=said,
        )
        return cls(like.path, [row], [around, *like.around[1:]], record.leaves)

    @property
    def counts_steps(self) -> bool:
        """Whether stages begin and end at steps of the run, not at micro-batches."""
        return "steps" in self.around[1:]

    @property
    def leaf_ids(self) -> list[str]:
        """The leaves that go on from stage to stage, sorted: as a cursor has them."""
        going_on = [row.body for row in self.rows if row.on_enter == "continue"]
        return sorted({leaf_id for body in going_on for leaf_id in _leaf_ids(body)})

    def carried(self, cursor: Mapping[str, Any]) -> LeafHistory:
        """Return what the cursor of the stages says was done to leaves before an edit.

        Raises StateError if it is damaged.
        """
        fields = {name: as_tuples(cursor.get(name, ())) for name in ("carried", "returned")}
        ids = self.leaf_ids

        def faults() -> Iterator[Problem]:
            yield from (wrong := list(wrong_kinds(StagedCursor, fields)))
            if not wrong:
                yield from wrong_carried(StagedCursor(**fields), ids)

        raise_if(self.path, faults)
        return carried_by(StagedCursor(**fields), ids)

    def row_of(self, path: str) -> Row | None:
        """Return the stage whose node, or a node below it, is at a path; None: of no stage."""
        below = [row for row in self.rows if f"{path}/".startswith(f"{self.path}/{row.name}/")]
        # Names may have slashes: `a/b` is not below a stage `a`.
        return max(below, key=lambda row: len(row.name), default=None)

    def alone(self, row: Row) -> TreeRecord:
        """Return the record of one stage; leaves are told by their fingerprints."""
        leaves: dict[str, tuple[int | None, str]] = {
            leaf_id: (None, self.leaves[leaf_id][1]) for leaf_id in _leaf_ids(row.body)
        }
        return TreeRecord(row.body, leaves)

    def at(self, clock: int) -> Row | None:
        """Return the stage of micro-batch, or step, `clock`; None after the end."""
        return next((row for row in self.rows if not row.is_over(clock)), None)


def _leaf_ids(said: list[Any]) -> set[str]:
    return {inner[1] for _, inner in _walk(said, "") if inner[0] == "leaf"}


def _walk(said: list[Any], path: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the described nodes of a tree with their paths."""
    yield path, said
    if said[0] == "leaf":
        return
    below = said[-1]
    children = below if isinstance(below, dict) else dict(enumerate(below))
    for name, child in children.items():
        yield from _walk(child, f"{path}/{name}")


def _without(said: list[Any]) -> list[Any]:
    """Return a description down to its stages."""
    if said[0] == "staged":
        return ["staged"]
    if not isinstance(said[-1], dict):
        return said
    return [*said[:-1], {name: _without(child) for name, child in said[-1].items()}]


def _taken_out(said: list[Any], names: Sequence[str]) -> tuple[list[Any], list[Any]] | None:
    """Return a described node below, and the rest with stages in its place; None: no such node."""
    if not names:
        return said, ["staged"]
    below = said[-1] if isinstance(said[-1], dict) else {}
    if names[0] not in below or (found := _taken_out(below[names[0]], names[1:])) is None:
        return None
    body, rest = found
    return body, [*said[:-1], {**below, names[0]: rest}]


def edits(before: Plan, now: Plan) -> Iterator[str]:
    """Yield in sentences how the stages of two trees differ, but for their nodes."""
    was, is_ = ([row.name for row in plan.rows] for plan in (before, now))
    for name in was:
        if name not in is_:
            yield f"stage {name!r} is gone"
    for number, name in enumerate(is_):
        if name not in was:
            yield f"stage {name!r} is new, as number {number}"
            continue
        old, new = before.rows[was.index(name)], now.rows[number]
        if was.index(name) != number:
            yield f"stage {name!r} was number {was.index(name)}, is number {number}"
        for key in ("begin", "end", "on_enter", "seed", "microbatches_per_step"):
            if getattr(old, key) != getattr(new, key):
                yield f"stage {name!r}: its {key} was {getattr(old, key)}, is {getattr(new, key)}"
        for key in sorted(old.params.keys() | new.params.keys()):
            pair = [row.params.get(key) for row in (old, new)]
            if pair[0] != pair[1] and key != "microbatches_per_step":
                yield f"stage {name!r}: its {key} was {pair[0]}, is {pair[1]}"
