"""Encodes a batch as a pickle, with its large buffers apart, and decodes it.

Any batch that pickles is encoded, and what is one object in two places stays one. Dense tensors,
large `bytes` and the origins of samples have cheap forms of their own.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from energy_data.core.sample import SampleSource
from energy_data.data.typed.samples import SourceInfo

_OUT_OF_BAND = 1024  # bytes; smaller buffers are cheaper inside the pickle
_LARGE = 32768  # bytes; a longer `bytes` is copied twice instead of three times out of band
_SOURCE = partial(tuple.__new__, SampleSource)  # takes half the time of SampleSource(*fields)


def encode(batch: Any) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle of a batch and the buffers that it refers to, without copying these."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    # `list.append` returns None, which makes pickle leave the buffer out.
    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append)
    # The table costs nothing for other types; `reducer_override` is called for every object.
    pickler.dispatch_table = _REDUCERS
    pickler.dump(_with_cheap_lists(batch))
    return stream.getbuffer(), [buffer.raw() for buffer in buffers]


def decode(pickled: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Return the batch that `encode` was given; its tensors and arrays are views of `buffers`.

    The pickle must come from our own worker: unpickling can run any code.
    """
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301 - see above


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether bytes, dtype and shape describe a tensor completely."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and tensor.dtype in _DTYPE_NAMES
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _reduce_tensor(tensor: torch.Tensor) -> Any:
    if not _is_dense(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]  # torch has no types here
    data = _buffer(tensor.contiguous())
    return _tensor, (
        data if tensor.nbytes >= _OUT_OF_BAND else bytearray(data),
        _DTYPE_NAMES[tensor.dtype],
        tuple(tensor.shape),
    )


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    return array.__reduce_ex__(5 if array.nbytes >= _OUT_OF_BAND else 4)


def _reduce_source(source: SampleSource | SourceInfo) -> Any:
    return type(source), tuple(source)


def _buffer(tensor: torch.Tensor) -> pickle.PickleBuffer:
    """Return the bytes of a contiguous dense tensor."""
    array: Any  # the stubs of numpy make it a buffer from Python 3.12 on
    try:
        array = tensor.numpy()
    except TypeError:  # numpy lacks the dtype
        # Not `reshape`: a dimension of size 1 may have any stride, which `view` refuses.
        flat = tensor.as_strided((tensor.numel(),), (1,))
        array = flat.view(torch.uint8).numpy()
    return pickle.PickleBuffer(array)


_REDUCERS: dict[type, Callable[[Any], Any]] = {
    **copyreg.dispatch_table,
    torch.Tensor: _reduce_tensor,
    np.ndarray: _reduce_array,
    SampleSource: _reduce_source,
    SourceInfo: _reduce_source,
}
# Pickle writes a dtype as a global, which the other side has to import.
_DTYPES = {
    name: dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and str(dtype) == f"torch.{name}"
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _tensor(data: Any, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)


def _with_cheap_lists(batch: Any) -> Any:
    """Return the batch with its lists of origins and of large `bytes` in cheaper forms."""
    if type(batch) is not dict:
        return batch
    lists = {name: value for name, value in batch.items() if type(value) is list and value}
    # By id, so that one list in two fields stays one.
    forms = {id(value): _cheap(value) for value in lists.values()}
    return {**batch, **{name: forms[id(value)] for name, value in lists.items()}}


def _cheap(values: list[Any]) -> Any:
    kinds = set(map(type, values))
    if kinds == {tuple} and set(map(len, values)) == {1}:
        sources = list(chain.from_iterable(values))
        if set(map(type, sources)) == {SampleSource}:
            return _Reduced(_sources, tuple(zip(*sources, strict=True)))
    # What is one object several times stays one only inside the pickle.
    are_distinct = len(set(map(id, values))) == len(values)
    if kinds == {bytes} and min(map(len, values)) >= _LARGE and are_distinct:
        return [_Reduced(bytes, (pickle.PickleBuffer(value),)) for value in values]
    return values


class _Reduced:
    """Becomes what `restore` returns where it is unpickled."""

    def __init__(self, restore: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._how = restore, arguments

    def __reduce__(self) -> Any:
        return self._how


def _sources(*columns: tuple[Any, ...]) -> list[tuple[SampleSource]]:
    return list(zip(map(_SOURCE, zip(*columns, strict=True)), strict=True))
