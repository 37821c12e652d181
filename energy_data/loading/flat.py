"""Batches of the usual form, taken apart for the way to the trainer: a third of pickle's time.

Usual is a dict of tensors, numbers, texts, and lists of these. Its tensors need no pickle, only
their memory, and so do long lists of texts; what is left of it has no classes that the other side
would look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from energy_data.core.memory import buffer_of
from energy_data.loading.columns import are_blobs, source_columns, sources_of
from energy_data.loading.strings import Strings, strings_in, strings_of

IN_BAND = 1024  # bytes; smaller buffers are cheaper inside the pickle than beside it

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
_TENSORS, _TUPLES, _DICTS = {torch.Tensor}, {tuple}, {dict}
_STRINGS = ({str}, {bytes})
_SUBFLAVORS = "__subflavors__"  # mostly the same few dicts, of plain data from YAML
_DEEPEST = 4  # levels of them

_NAMES = {
    dtype: name
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and str(dtype) == f"torch.{name}"
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class Flat(NamedTuple):
    """A batch without its tensors. Sent as a tuple."""

    rest: dict[str, Any]  # None in place of what follows
    sources: list[tuple[str, tuple[tuple[Any, ...], ...]]]  # name of a field, its columns
    # Name of a field and place in its list or -1, dtype, shape; and the bytes of a small one.
    tensors: list[tuple[str, int, str, tuple[int, ...], bytearray | None]]
    strings: list[tuple[str, bool, bytes]]  # name of a field, whether it is of texts; their sizes


Part = torch.Tensor | Strings  # what crosses beside the pickle


class _Taken(NamedTuple):
    """What is taken out of a batch."""

    tensors: list[torch.Tensor]
    strings: list[Strings]
    nested: list[str]  # names of fields left whole, in which there may be lists of strings

    def is_anything_twice(self) -> bool:
        if self.strings and self.nested:
            return True  # perhaps
        objects = [*self.tensors, *[strings.values for strings in self.strings]]
        return len(set(map(id, objects))) < len(objects)


def flattened(batch: Any) -> tuple[Flat, list[Part]] | None:
    """Return a batch without its tensors, and what of it is large; None if it has another form.

    Then what is one object in several places is one there too, as pickle sees to it; but a text or
    a `bytes`, which nobody can change, may be two there.
    """
    if type(batch) is not dict or set(map(type, batch)) != {str}:  # nan is no key on the other side
        return None
    flat, taken = Flat(batch.copy(), [], [], []), _Taken([], [], [])
    for name, value in batch.items():
        kind = type(value)
        if kind is torch.Tensor:
            if not _take_tensor(name, -1, value, flat, taken):
                return None
            flat.rest[name] = None
        elif kind is list:
            if not _take_list(name, value, flat, taken):
                return None
        elif kind not in _PLAIN:
            return None
    if taken.is_anything_twice():
        return None
    return flat, [tensor for tensor in taken.tensors if tensor.nbytes >= IN_BAND] + taken.strings


def _take_tensor(name: str, place: int, tensor: torch.Tensor, flat: Flat, taken: _Taken) -> bool:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None or not is_plain(tensor):
        return False
    data = bytearray(bytes_of(tensor)) if tensor.nbytes < IN_BAND else None
    flat.tensors.append((name, place, dtype, tuple(tensor.shape), data))
    taken.tensors.append(tensor)
    return True


def _take_list(name: str, values: list[Any], flat: Flat, taken: _Taken) -> bool:
    kinds = set(map(type, values))
    if kinds == _TENSORS:
        flat.rest[name] = [None] * len(values)
        each = enumerate(values)
        return all([_take_tensor(name, place, one, flat, taken) for place, one in each])  # noqa: C419 - a generator takes longer
    if kinds == _DICTS:
        return name == _SUBFLAVORS and _take_subflavors(name, values, taken)
    if kinds != _TUPLES:
        return _take_plain(name, kinds, values, flat, taken)
    columns = source_columns(values)
    if columns is None:
        return False
    flat.sources.append((name, columns))
    flat.rest[name] = None
    return True


def _take_plain(name: str, kinds: set[type], values: list[Any], flat: Flat, taken: _Taken) -> bool:
    if kinds in _STRINGS and (strings := strings_in(values)) is not None:
        flat.strings.append((name, kinds == {str}, strings.sizes))
        flat.rest[name] = None
        taken.strings.append(strings)
        return True
    return kinds <= _PLAIN and not are_blobs(kinds, values)


def _take_subflavors(name: str, dicts: list[dict[Any, Any]], taken: _Taken) -> bool:
    distinct = dict(zip(map(id, dicts), dicts, strict=True)).values()
    if set(map(type, chain(chain(*distinct), chain(*map(dict.values, distinct))))) <= _PLAIN:
        return True  # the usual case, with no code of Python's for each of them
    taken.nested.append(name)
    return all(map(_is_plain_data, distinct))


def _is_plain_data(value: Any, depth: int = 0) -> bool:
    """Return whether a value is such as is in JSON, and not deep."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == _DEEPEST or kind not in (dict, list):
        return False
    inner = [*value, *value.values()] if kind is dict else value
    return all(_is_plain_data(one, depth + 1) for one in inner)


def whole(flat: Sequence[Any], buffers: Sequence[memoryview]) -> dict[str, Any]:
    """Return the batch again, as views of the memory of its tensors."""
    rest: dict[str, Any]
    rest, sources, tensors, strings = flat
    for name, columns in sources:
        rest[name] = sources_of(*columns)
    large = iter(buffers)
    for name, place, dtype, shape, small in tensors:
        data = next(large) if small is None else small
        tensor = tensor_of(data, _DTYPES[dtype], shape)
        if place < 0:
            rest[name] = tensor
        else:
            rest[name][place] = tensor
    for name, is_text, sizes in strings:
        rest[name] = strings_of(next(large), sizes, is_text=is_text)
    return rest


def tensor_of(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over the memory of `data`; no copy."""
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether its numbers are all there is to a tensor: dense, on the CPU, not empty."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a plain tensor, or of a copy in C order."""
    return buffer_of(tensor.contiguous()).raw()
