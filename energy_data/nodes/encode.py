"""Encode: the task's own view of each sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attrs import frozen

from energy_data.context import Context
from energy_data.errors import SkipSample
from energy_data.meter import ENCODING
from energy_data.node import Cursor, Node
from energy_data.sample import describe_source
from energy_data.spec import Gives, Spec


@frozen(kw_only=True)
class EncodeSpec(Spec):
    """Give `encode(sample)`; a sample for which it raises `SkipSample` is left out and counted.

    Any other error is raised with a note that says which sample it was. `encode=None` passes
    samples on: the node stays, so that states fit whatever a task encoder overrides.
    """

    of: Spec
    encode: Callable[[Any], Any] | None = None

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def gives(self) -> Gives:
        return "samples"

    def num_items(self, context: Context, epoch: int) -> int | None:
        return self.of.num_items(context.under("of"), epoch)

    def build(self, context: Context) -> EncodeNode:
        return EncodeNode(self, context)


@dataclass
class EncodeCursor(Cursor):
    skipped: int = 0  # samples left out


class EncodeNode(Node[Any, EncodeCursor]):
    """Encodes block by block."""

    leaves_out = "SkipSample while encoding samples"

    def __init__(self, spec: EncodeSpec, context: Context) -> None:
        super().__init__(EncodeCursor(), {"of": spec.of.build(context.under("of"))})
        self.encode, self.trace, self.meter = spec.encode, context.trace, context.meter

    def draw(self, count: int) -> list[Any]:
        samples = self.children["of"].draw(count)
        if self.encode is None:
            return list(samples)
        began = time.perf_counter()
        encoded = []
        for sample in samples:
            if self.trace is not None:
                self.trace(sample)
            try:
                encoded.append(self.encode(sample))
            except SkipSample:
                self.cursor.skipped += 1
            except Exception as error:
                error.add_note(f"while encoding {describe_source(sample)}")
                raise
        self.meter.charge(ENCODING, time.perf_counter() - began)
        return encoded
