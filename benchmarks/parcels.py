"""Batches for `benchmarks/transport`: made once in a worker, handed over again and again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

MIB = 1 << 20
Arrays = Callable[[np.ndarray], Any]  # what a loader wants of an array: itself, or a tensor


@dataclass(frozen=True)
class Kind:
    """One kind of batch."""

    told: str
    shapes: tuple[tuple[int, ...], ...] = ()  # of its uint8 arrays
    num_bytes_objects: int = 0  # of 50,000 bytes each
    is_tiny: bool = False

    @property
    def num_bytes(self) -> int:
        """The size of what is in a batch."""
        if self.is_tiny:
            return 1024
        return sum(int(np.prod(shape)) for shape in self.shapes) + 50_000 * self.num_bytes_objects


KINDS = {
    "16MiB": Kind("one tensor of 16 MiB", ((16, MIB),)),
    "64MiB": Kind("one tensor of 64 MiB", ((64, MIB),)),
    "64x1MiB": Kind("64 tensors of 1 MiB", ((MIB,),) * 64),
    "32x50KB": Kind("32 `bytes` of 50 KB", num_bytes_objects=32),
    "1KB": Kind("5 small tensors, 8 strings", is_tiny=True),
}


class Producer:
    """Makes batches of a kind at no cost but the transport's; pickles small.

    The memory is always the same, the arrays or tensors over it are new each time: torch would
    move a tensor to shared memory once, and find it there from then on.
    """

    def __init__(self, kind: str, arrays: Arrays) -> None:
        self.kind, self.arrays = kind, arrays
        self._made: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        """Return a batch."""
        if self._made is None:
            self._made = expected(self.kind)
        return {name: self._fresh(value) for name, value in self._made.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Producer, (self.kind, self.arrays)

    def _fresh(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self.arrays(value)
        return [self._fresh(one) for one in value] if isinstance(value, list) else value


def expected(kind: str) -> dict[str, Any]:
    """Return what a batch must be, with arrays."""
    asked, random = KINDS[kind], np.random.default_rng(7)
    if asked.is_tiny:
        arrays = {f"array{i}": random.integers(0, 99, 23) for i in range(5)}  # 5 x 184 bytes
        return {**arrays, "keys": [f"sample/{i:06d}" for i in range(8)], "number": 7}
    arrays = [random.integers(0, 256, shape, np.uint8) for shape in asked.shapes]
    return {"data": arrays or [random.bytes(50_000) for _ in range(asked.num_bytes_objects)]}


def check(batch: Any, wanted: dict[str, Any]) -> None:
    """Raise if a batch is not what it must be."""
    for name, value in wanted.items():
        _check(batch[name], value)


def touch(batch: Any) -> int:
    """Read one byte of each page of a batch, and return something that depends on them."""
    return sum(int(array.reshape(-1)[::4096].sum()) for array in _arrays(batch))


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _arrays(one)
    elif isinstance(value, bytes):
        yield np.frombuffer(value, np.uint8)
    elif hasattr(value, "shape"):
        yield np.asarray(value)


def _check(value: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(value) == len(wanted)
        for one, other in zip(value, wanted, strict=True):
            _check(one, other)
    elif isinstance(wanted, np.ndarray):
        found = np.asarray(value)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    else:
        assert value == wanted
