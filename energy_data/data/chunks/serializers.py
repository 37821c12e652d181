"""The leaves of items of litdata: bytes -> value, and the tree that they are put into.

Both are what config of index.json says: `data_format` has the name of a serializer for each leaf,
and `data_spec` the tree, as JSON that torch writes of a pytree. See `litdata/streaming/
serializers.py`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from energy_data.data.chunks.encodings import Decode, decode_list, picture_decoder, tensor_of
from energy_data.data.decode.parts import Decoders, Decoding, decode_text

if TYPE_CHECKING:
    import torch

# Their numbers are places in tables of litdata, which have some types twice.
_TORCH = {
    0: "float32", 1: "float32", 2: "float64", 3: "float64", 8: "float16", 9: "float16",
    10: "bfloat16", 11: "uint8", 12: "int8", 13: "int16", 14: "int16", 15: "int32", 16: "int32",
    17: "int64", 18: "int64", 19: "bool", 20: "uint16",
}  # fmt: skip
_NUMPY = {
    **dict(enumerate(("i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"))),
    13: "?",
}
_INT, _FLOAT, _BOOL = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<?")
_VALUES: Mapping[str, Decode] = {
    **dict.fromkeys(("str", "text"), decode_text),
    "int": lambda data: _INT.unpack(data)[0],
    "float": lambda data: _FLOAT.unpack(data)[0],
    "bool": lambda data: _BOOL.unpack(data)[0],
    "bytes": bytes,
}
_MEDIA = ("image", "audio", "video", "file")  # with an extension: the bytes of such a file


class TreeLeaf(NamedTuple):
    """The place of a leaf among all of its item, and the names and numbers that lead to it."""

    place: int
    name: str


Tree = Any
"""A dict, list or tuple of trees, or a TreeLeaf."""


def parse_tree(spec: str) -> tuple[Mapping[str, Tree], list[TreeLeaf]]:
    """Return the entries of a sample, and all leaves in order.

    Entries of a list or tuple have their numbers as names; a single leaf is that of a list of one.
    Raises ValueError, or another error, for a spec that is invalid, or has other collections.
    """
    version, schema = json.loads(spec)
    if version != 1:
        raise ValueError(f"it is of version {version!r}, not 1")
    leaves: list[TreeLeaf] = []
    tree = _node(schema, (), leaves) if schema["type"] else [_node(schema, ("0",), leaves)]
    if len({leaf.name for leaf in leaves}) < len(leaves):
        raise ValueError("two of its leaves have one name, with dots between keys")
    if isinstance(tree, Mapping):
        return tree, leaves
    return {str(number): one for number, one in enumerate(tree)}, leaves


def _node(schema: Mapping[str, Any], path: tuple[str, ...], leaves: list[TreeLeaf]) -> Tree:
    kind, children = schema["type"], schema["children_spec"]
    if kind is None and not children:
        leaves.append(TreeLeaf(len(leaves), ".".join(path)))
        return leaves[-1]
    if kind in ("builtins.list", "builtins.tuple"):
        items = [_node(one, (*path, str(n)), leaves) for n, one in enumerate(children)]
        return items if kind == "builtins.list" else tuple(items)
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(schema["context"])
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise ValueError(f"it has a dict whose keys are not different texts, found {keys!r}")
        pairs = zip(keys, children, strict=True)
        return {key: _node(one, (*path, key), leaves) for key, one in pairs}
    raise ValueError(f"it has a {kind!r}; only dicts, lists and tuples are supported")


def filled(tree: Tree, values: Mapping[str, Any]) -> Any:
    """Return a tree with values, by the names of leaves, in their places."""
    if isinstance(tree, TreeLeaf):
        return values[tree.name]
    if isinstance(tree, Mapping):
        return {key: filled(one, values) for key, one in tree.items()}
    return type(tree)(filled(one, values) for one in tree)


def leaf_decoder(name: str, written: str, decoding: Decoding) -> Decode:
    """Return what decodes a leaf. ValueError, which says why, for an unknown serializer.

    written: the name of its serializer in `data_format`. An override of the leaf gets its bytes.
    """
    decode = _leaf_decoder(name, written, decoding)
    return Decoders(decoding).find(name) if name in decoding.overrides else decode


def _leaf_decoder(name: str, written: str, decoding: Decoding) -> Decode:
    kind, _, setting = written.partition(":")
    if kind in ("pickle", "graph"):
        raise ValueError("it is a pickle, which would run code from data")
    if kind in _VALUES and not setting:
        return _VALUES[kind]
    if kind in ("jpeg", "pil"):
        return picture_decoder(name, kind, decoding)
    if kind == "jpeg_array":
        return partial(decode_list, picture_decoder(name, "jpeg", decoding), 0)
    if kind in _MEDIA:
        return Decoders(decoding).find(f"{name}.{setting}") if setting else bytes
    if kind in _ARRAYS:
        return _ARRAYS[kind]
    if kind in _FLAT and setting.isdecimal():
        dtype = int(setting)
        return lambda data: _FLAT[kind](dtype, (-1,), data)
    raise ValueError("there is no such serializer")


def itemsize_of(written: str) -> int | None:
    """Return the bytes of a value of an array without a header; None: the serializer is unknown."""
    kind, _, setting = written.partition(":")
    number = int(setting) if setting.isdecimal() else -1
    if kind == "no_header_numpy":
        return np.dtype(_NUMPY[number]).itemsize if number in _NUMPY else None
    if kind != "no_header_tensor" or number not in _TORCH:
        return None
    import torch

    itemsize: int = getattr(torch, _TORCH[number]).itemsize
    return itemsize


def _array(data: memoryview) -> torch.Tensor:
    dtype, axes = struct.unpack_from("<II", data)
    return _numpy(dtype, struct.unpack_from(f"<{axes}I", data, 8), data[8 + 4 * axes :])


def _tensor(data: memoryview) -> torch.Tensor:
    dtype, axes = struct.unpack_from(">II", data)
    return _torch(dtype, struct.unpack_from(f">{axes}I", data, 8), data[8 + 4 * axes :])


def _numpy(number: int, shape: tuple[int, ...], data: memoryview) -> torch.Tensor:
    if number not in _NUMPY:
        raise ValueError(f"its dtype has the number {number}, which stands for none")
    dtype = np.dtype(_NUMPY[number])
    values = np.frombuffer(data, dtype) if dtype.kind != "b" else np.frombuffer(data, "u1") != 0
    return tensor_of(values.reshape(_checked(shape, len(values))))


def _torch(number: int, shape: tuple[int, ...], data: memoryview) -> torch.Tensor:
    import torch

    if number not in _TORCH:
        raise ValueError(f"its dtype has the number {number}, which stands for none")
    dtype = getattr(torch, _TORCH[number])
    if dtype in (torch.bool, torch.uint16):  # not all bytes are a bool; torch has no operations
        return _numpy(13 if dtype is torch.bool else 5, shape, data)
    if len(data) % dtype.itemsize:
        raise ValueError(f"its {len(data)} bytes are no whole number of {dtype}")
    count = len(data) // dtype.itemsize
    values = (
        torch.frombuffer(bytearray(data), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    )
    return values.reshape(_checked(shape, count))


def _checked(shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return a shape; (-1,) stands for any length. ValueError if it has not so many values."""
    shape = (count,) if shape == (-1,) else shape
    if math.prod(shape) != count:
        raise ValueError(f"its shape is {list(shape)}, but it has {count} values")
    return shape


_ARRAYS: Mapping[str, Decode] = {"numpy": _array, "tensor": _tensor}
_FLAT: Mapping[str, Callable[[int, tuple[int, ...], memoryview], torch.Tensor]] = {
    "no_header_numpy": _numpy,
    "no_header_tensor": _torch,
}
