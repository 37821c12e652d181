"""Every batch that pickles arrives in the trainer as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.core.batch_memory import allocate_in, new_batch_tensor
from energy_data.core.sample import SampleSource
from energy_data.data.typed.samples import SourceInfo
from energy_data.loading.transport import codec
from energy_data.loading.transport.arena import ArenaReader, ArenaWriter

MIB = 1 << 20
LARGE = 2000  # numbers

DTYPES = [torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex64, torch.float16]
SOURCES = [(SampleSource("/data/a", f"{n}.tar", n),) for n in range(3)]


def crossed(batch):
    """The batch after its way through an arena."""
    return sent(batch)[0]


def sent(batch):
    """The batch after its way through an arena, and the number of buffers beside the pickle."""
    writer = ArenaWriter(16 * MIB)
    handle = writer.write(batch)
    return ArenaReader(writer.fd).read(handle), len(handle.spans) - (handle.pickled is None)


def facts(value):
    """What must be the same on both sides."""
    if isinstance(value, torch.Tensor):
        grown = value.detach().to_dense() if value.is_sparse else value.detach()
        same = value.requires_grad, value.is_conj(), grown.resolve_conj().tolist()
        return "tensor", str(value.dtype), tuple(value.shape), *same
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return [(repr(name), facts(one)) for name, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [facts(one) for one in value]
    return type(value).__name__, repr(value)  # nan is not equal to itself


def tensors():
    dtypes = st.sampled_from(DTYPES)
    shapes = st.sampled_from([(), (1,), (3, 5), (LARGE,), (2, LARGE), (0,), (3, 0)])
    kinds = [
        lambda tensor: tensor,
        lambda tensor: tensor.T if tensor.dim() == 2 else tensor,
        lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
        lambda tensor: tensor[:1].expand(4, *tensor.shape[1:]) if tensor.numel() > 1 else tensor,
        lambda tensor: tensor.conj(),
        lambda tensor: tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor,
    ]

    def made(dtype, shape, kind):
        return kind((torch.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).to(dtype))

    return st.builds(made, dtypes, shapes, st.sampled_from(kinds))


SCALARS = [0, 1.5, True, None, "text", b"bytes", "ü" * 3000, b"b" * 40_000]
scalars = st.sampled_from(range(len(SCALARS))).map(lambda n: SCALARS[n])
lists = st.lists(scalars, max_size=4) | st.just(SOURCES) | st.lists(tensors(), max_size=2)
flavors = st.lists(st.dictionaries(st.sampled_from("ab"), tensors() | scalars), max_size=3)
others = st.sampled_from([(1, 2), {"a": 1}, np.arange(5), SOURCES[0], [{}, {"b": 2}], [("x",)]])
fields = tensors() | scalars | lists | flavors | others
names = st.sampled_from(["a", "b", "__key__", "__sources__", "__subflavors__", 7])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(names, fields))
def test_any_batch_arrives_as_it_was(batch):
    before = facts(batch)
    arrived = crossed(batch)
    assert facts(arrived) == before
    assert facts(batch) == before, "the batch itself is left alone"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_arrive_as_the_trainers_own(dtype):
    batch = {
        "image": torch.ones((2, LARGE), dtype=dtype),
        "label": torch.ones((2,), dtype=dtype),
        "images": [torch.ones((n, LARGE), dtype=dtype) for n in range(1, 4)],
        "labels": [torch.ones((n,), dtype=dtype) for n in range(1, 4)],
        "text": ["one", None],
        "__sources__": SOURCES,
        "__subflavors__": [{"a": [1]}, {}],
    }
    arrived = crossed(batch)
    assert list(arrived) == list(batch)
    for tensor in (arrived["image"], arrived["label"], *arrived["images"], *arrived["labels"]):
        assert bool(tensor.all())
        tensor.zero_()  # the trainer may
    assert bool(batch["image"].all())
    assert [tensor.shape[0] for tensor in arrived["images"] + arrived["labels"]] == [1, 2, 3] * 2


@pytest.mark.parametrize("size", [1, LARGE])
def test_one_tensor_in_two_fields_stays_one(size):
    tensor = torch.ones(size)
    arrived = crossed({"a": tensor, "b": tensor})
    assert arrived["a"] is arrived["b"]
    arrived = crossed({"a": tensor, "b": [tensor]})
    assert arrived["a"] is arrived["b"][0]
    arrived = crossed({"a": [tensor, tensor]})
    assert arrived["a"][0] is arrived["a"][1]
    values = [tensor]
    arrived = crossed({"a": values, "b": values})
    assert arrived["a"] is arrived["b"]
    arrived = crossed({"a": tensor, "__subflavors__": [{"b": tensor}]})
    assert arrived["a"] is arrived["__subflavors__"][0]["b"]


def test_a_view_that_is_not_contiguous_in_its_slot_is_copied():
    writer = ArenaWriter(16 * MIB)
    writer.write({"first": torch.zeros(MIB)})
    allocator = writer.allocator()
    with allocate_in(allocator):
        made = new_batch_tensor((4, LARGE), torch.int64)
    made.copy_(torch.arange(4 * LARGE).reshape(4, LARGE))
    batch = {"made": made, "across": made.T, "first": made[:1], "other": torch.arange(LARGE)}
    handle = writer.write(batch, allocator)
    assert handle.spans[0] == (0, made.nbytes)
    assert handle.spans[2] == (0, made.nbytes // 4)
    assert min(handle.spans[1][0], handle.spans[3][0]) >= made.nbytes
    assert facts(ArenaReader(writer.fd).read(handle)) == facts(batch)


@pytest.mark.parametrize(("numbers", "in_slot"), [(10, 1), (10_000, 2)], ids=["small", "large"])
def test_only_what_is_large_is_in_the_slot(numbers, in_slot):
    writer = ArenaWriter(16 * MIB)
    batch = {"tensor": torch.arange(LARGE), "numbers": list(range(numbers))}
    handle = writer.write(batch)
    assert len(handle.spans) == in_slot
    assert (handle.pickled is None) == (in_slot == 2)
    assert facts(ArenaReader(writer.fd).read(handle)) == facts(batch)
    assert facts(writer.read(handle)) == facts(batch)
    assert writer.write(batch).slot == handle.slot


ONE, TWO = SampleSource("/data/a", "0.tar", 3), SampleSource("/data/b", "1.tar", "key")
TYPED = SourceInfo(dataset_path="/data/a", index=3, shard_name="0.tar", file_names=("k.txt",))


@pytest.mark.parametrize(
    "sources",
    [
        [(ONE,), (TWO,), (ONE,)],
        [(ONE,)],
        [(ONE, TWO), (TWO,)],
        [(TYPED,), (ONE,)],
        [(), (ONE,)],
        [],
        [[ONE]],
        [None, (ONE,)],
        [("other",)],
        ((ONE,),),
        None,
    ],
    ids=repr,
)
def test_sources_arrive_as_they_were(sources):
    batch = {"__sources__": sources, "other": 1}
    arrived = crossed(batch)
    assert facts(arrived) == facts(batch)
    assert batch["__sources__"] is sources, "the batch itself is left alone"


def test_many_sources_of_few_shards_take_few_bytes():
    shards = [f"{n}.tar" for n in range(4)]
    sources = [(SampleSource("/data/a", shards[n % 4], n),) for n in range(256)]
    assert len(codec.encode({"__sources__": sources})[0]) < 256 * 8


BLOB = b"a" * 50_000


@pytest.mark.parametrize(
    ("values", "beside"),
    [
        ([bytes([n]) * (50_000 + n) for n in range(8)], 8),
        ([BLOB, b"small"], 0),
        ([BLOB, "text"], 0),
        ([BLOB, bytearray(50_000)], 0),
        ([BLOB] * 3, 0),
        ([b""], 0),
    ],
    ids=["all large", "one small", "one text", "a bytearray", "the same thrice", "empty"],
)
def test_large_bytes_travel_beside_the_pickle(values, beside):
    arrived, found = sent({"data": values})
    assert facts(arrived["data"]) == facts(values)
    assert found == beside


def test_one_list_in_two_fields_stays_one():
    for values in ([BLOB, BLOB + b"b"], [(ONE,), (TWO,)]):
        arrived = crossed({"a": values, "b": values, "c": list(values)})
        assert arrived["a"] is arrived["b"] is not arrived["c"]
        assert arrived["a"] == arrived["c"] == values


def test_one_object_many_times_stays_one():
    arrived = crossed({"data": [BLOB] * 3, "more": BLOB})
    assert len(set(map(id, [*arrived["data"], arrived["more"]]))) == 1


def test_small_arrays_and_tensors_need_no_slot():
    small = [np.arange(100), torch.arange(100), np.arange(10)[::2], np.float32(3)]
    arrived, found = sent({"small": small})
    assert facts(arrived) == facts({"small": small})
    assert found == 0
