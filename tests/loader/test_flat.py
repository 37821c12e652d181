"""Batches of the usual form cross taken apart, and nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.core.memory import MakingIn, empty
from energy_data.core.sample import SampleSource
from energy_data.loading.flat import flattened
from energy_data.loading.transport.arena import ArenaReader, ArenaWriter

MIB = 1 << 20
LARGE = 2000  # numbers

DTYPES = [torch.uint8, torch.int64, torch.bfloat16, torch.bool, torch.complex64, torch.float16]
SOURCES = [(SampleSource("/data/a", f"{n}.tar", n),) for n in range(3)]


def crossed(batch):
    """The batch after its way through an arena, and whether it was taken apart for it."""
    writer = ArenaWriter(16 * MIB)
    parcel = writer.write(batch)
    return ArenaReader(writer.fd).read(parcel), parcel.is_flat


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
    arrived, _ = crossed(batch)
    assert facts(arrived) == before
    assert facts(batch) == before, "the batch itself is left alone"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_usual_batches_are_taken_apart(dtype):
    batch = {
        "image": torch.ones((2, LARGE), dtype=dtype),
        "label": torch.ones((2,), dtype=dtype),
        "images": [torch.ones((n, LARGE), dtype=dtype) for n in range(1, 4)],
        "labels": [torch.ones((n,), dtype=dtype) for n in range(1, 4)],
        "text": ["one", None],
        "__sources__": SOURCES,
        "__subflavors__": [{"a": [1]}, {}],
    }
    arrived, is_flat = crossed(batch)
    assert is_flat
    assert list(arrived) == list(batch)
    for tensor in (arrived["image"], arrived["label"], *arrived["images"], *arrived["labels"]):
        assert bool(tensor.all())
        tensor.zero_()  # which is allowed, and the trainer's alone
    assert bool(batch["image"].all())
    assert [tensor.shape[0] for tensor in arrived["images"] + arrived["labels"]] == [1, 2, 3] * 2


@pytest.mark.parametrize("size", [1, LARGE])
def test_one_tensor_in_two_fields_stays_one(size):
    tensor = torch.ones(size)
    arrived, _ = crossed({"a": tensor, "b": tensor})
    assert arrived["a"] is arrived["b"]
    arrived, _ = crossed({"a": tensor, "b": [tensor]})
    assert arrived["a"] is arrived["b"][0]
    arrived, _ = crossed({"a": [tensor, tensor]})
    assert arrived["a"][0] is arrived["a"][1]
    values = [tensor]
    arrived, _ = crossed({"a": values, "b": values})
    assert arrived["a"] is arrived["b"]
    arrived, _ = crossed({"a": tensor, "__subflavors__": [{"b": tensor}]})
    assert arrived["a"] is arrived["__subflavors__"][0]["b"]


def test_what_is_not_usual_is_left_to_pickle():
    kept = torch.ones(LARGE)
    for value in ([kept, None], {"kept": kept}, (kept,), kept.numpy(), kept.to_sparse(), object):
        assert flattened({"kept": kept, "value": value}) is None
    assert flattened([kept]) is None
    assert flattened({float("nan"): kept}) is None
    assert flattened({"__subflavors__": [{"a": {"b": [kept]}}]}) is None


def test_a_tensor_of_which_only_a_part_is_in_the_draft_is_copied():
    writer = ArenaWriter(16 * MIB)
    writer.write({"first": torch.zeros(MIB)})
    draft = writer.draft()
    with MakingIn(draft):
        made = empty((4, LARGE), torch.int64)
    made.copy_(torch.arange(4 * LARGE).reshape(4, LARGE))
    batch = {"made": made, "across": made.T, "first": made[:1], "other": torch.arange(LARGE)}
    parcel = writer.write(batch, draft)
    assert parcel.is_flat
    assert parcel.spans[0] == (0, made.nbytes)
    assert parcel.spans[2] == (0, made.nbytes // 4)
    assert min(parcel.spans[1][0], parcel.spans[3][0]) >= made.nbytes
    assert facts(ArenaReader(writer.fd).read(parcel)) == facts(batch)


@pytest.mark.parametrize("nested", [{}, {"nested": {}}], ids=["flat", "pickled"])
@pytest.mark.parametrize(("numbers", "in_slot"), [(10, 1), (10_000, 2)], ids=["small", "large"])
def test_only_what_is_large_is_in_the_slot(nested, numbers, in_slot):
    writer = ArenaWriter(16 * MIB)
    batch = {"tensor": torch.arange(LARGE), "numbers": list(range(numbers)), **nested}
    parcel = writer.write(batch)
    assert len(parcel.spans) == in_slot
    assert (parcel.pickled is None) == (in_slot == 2)
    assert facts(ArenaReader(writer.fd).read(parcel)) == facts(batch)
    assert facts(writer.read(parcel)) == facts(batch)
    assert writer.write(batch).slot == parcel.slot
