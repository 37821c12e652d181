"""Long lists of texts or of bytes cross to the trainer beside the pickle, and nobody can tell."""

from __future__ import annotations

import contextlib
import pickle
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.data.tar.native import COPY
from energy_data.loading import strings
from energy_data.loading.transport.arena import ArenaReader, ArenaWriter

MIB = 1 << 20

where_compiled = pytest.mark.skipif(COPY is None, reason="installed without a compiler")


def crossed(batch):
    """The batch after its way through an arena, and the bytes of its pickle."""
    writer = ArenaWriter(16 * MIB)
    parcel = writer.write(batch)
    if parcel.pickled is None:
        begin, end = parcel.spans[-1]
        return ArenaReader(writer.fd).read(parcel), end - begin
    return ArenaReader(writer.fd).read(parcel), len(parcel.pickled)


texts = st.text(st.characters(codec="utf-8"), max_size=50) | st.just("x" * 3000)
long_lists = st.lists(texts, min_size=4) | st.lists(st.binary(max_size=50) | st.just(b"y" * 3000))


@settings(max_examples=200, deadline=None)
@given(long_lists, st.booleans())
def test_any_list_arrives_as_it_was(values, large):
    values = [value + value[:0].join([value] * 200) for value in values] if large else values
    assert crossed({"a": values, "b": [1]})[0] == {"a": values, "b": [1]}


@where_compiled
@pytest.mark.parametrize(
    "one",
    ["x" * 1000, "ü" * 1000, "€\0" * 300, "😀" * 300, b"x" * 1000],
    ids=["ascii", "latin", "zeros", "emoji", "bytes"],
)
def test_a_long_list_is_not_in_the_pickle(one):
    values = [one[n:] for n in range(100)]
    arrived, in_pickle = crossed({"a": values, "b": 1})
    assert arrived == {"a": values, "b": 1}
    assert in_pickle < 1000
    assert list(map(type, arrived["a"])) == [type(one)] * 100


@pytest.mark.parametrize(
    "values",
    [
        ["x" * 10_000] * 3,  # one object: a pickle has it once
        ["x" * 10_000, "a lone \ud800, which has no UTF-8"],
        ["x" * 10_000, b"y" * 10_000],
        ["x" * 10_000, None],
        ["short", "texts"],
        [type("Name", (str,), {"__reduce__": lambda self: (str, (str(self),))})("x" * 10_000)],
    ],
    ids=["twice", "surrogate", "both", "none", "short", "subclass"],
)
def test_other_lists_stay_in_the_pickle(values):
    arrived, in_pickle = crossed({"a": values})
    assert arrived == {"a": values}
    assert in_pickle < 25_000
    assert strings.strings_in(values) is None


def test_one_list_in_two_fields_stays_one():
    values = ["x" * 10_000, "y" * 10_000]
    arrived, _ = crossed({"a": values, "b": values})
    assert arrived["a"] is arrived["b"]


def test_without_the_compiled_part_it_is_the_same(monkeypatch):
    batch = {"a": ["x" * 10_000, "ü" * 10_000], "b": [b"x" * 10_000], "c": 1}
    compiled, _ = crossed(batch)
    monkeypatch.setattr(strings, "COPY", None)
    plain, in_pickle = crossed(batch)
    assert plain == compiled == batch
    assert in_pickle > 30_000


@where_compiled
def test_the_buffer_must_be_of_the_size_of_all():
    values = ["four", "five!"]
    sizes, num_bytes = COPY.sizes_of(values)
    assert num_bytes == 9
    for wrong in (8, 10):
        with pytest.raises(ValueError, match="not of the strings"):
            COPY.write_strings(bytearray(wrong), values, sizes)
    data = bytearray(9)
    COPY.write_strings(data, values, sizes)
    assert data == b"fourfive!"
    for wrong in (data[:8], data + b"!"):
        with pytest.raises(ValueError, match="sizes are not of the strings"):
            COPY.strings_of(wrong, sizes, True)
    with pytest.raises(ValueError, match="sizes are not of the strings"):
        COPY.strings_of(data, sizes + b"\0", True)
    with pytest.raises(UnicodeDecodeError):
        COPY.strings_of(b"\xff" * 9, sizes, True)
    assert COPY.strings_of(b"\xff" * 9, sizes, False) == [b"\xff" * 4, b"\xff" * 5]


@where_compiled
@pytest.mark.parametrize(
    ("sizes", "num_bytes"),
    [([1], 0), ([4, 5], 4), ([8, 8], 8), ([5, 5], 8), ([4, 2**32 - 1], 8), ([4], 8), ([], 1)],
)
@pytest.mark.parametrize("is_text", [True, False])
def test_sizes_of_other_strings_are_refused(sizes, num_bytes, is_text):
    with pytest.raises(ValueError, match="sizes are not of the strings"):
        COPY.strings_of(b"x" * num_bytes, np.array(sizes, np.uint32).tobytes(), is_text)


@where_compiled
@pytest.mark.parametrize(("empty", "long"), [("", "x" * 10_000), (b"", b"x" * 10_000)])
def test_empty_strings_may_be_in_a_list_often(empty, long):
    arrived, in_pickle = crossed({"a": [empty, long, empty]})
    assert arrived == {"a": [empty, long, empty]}
    assert in_pickle < 1000


@where_compiled
def test_a_list_that_another_thread_has_changed_is_refused():
    for changed in (["five!", "four"], ["four", "five!", ""], ["fourfive!"]):
        with pytest.raises(ValueError, match="not of the strings"):
            COPY.write_strings(bytearray(9), changed, COPY.sizes_of(["four", "five!"])[0])
    with pytest.raises(TypeError):
        COPY.sizes_of(("four", "five!"))


def test_a_list_that_is_in_subflavors_too_stays_one():
    values = ["x" * 10_000, "y" * 10_000]
    arrived, _ = crossed({"a": values, "__subflavors__": [{"b": values}]})
    assert arrived["a"] is arrived["__subflavors__"][0]["b"]


@pytest.mark.parametrize("size", [1023, 1024, 1025, 50_000])
def test_texts_and_tensors_cross_together(size):
    texts, blobs = ["x" * 9000, "ü"], [b"x" * 9000, b""]
    tensors = {"x": torch.ones(size, dtype=torch.uint8), "y": torch.arange(5000)}
    arrived, _ = crossed({"a": texts, **tensors, "b": blobs})
    assert list(arrived) == ["a", "x", "y", "b"]
    assert (arrived["a"], arrived["b"]) == (texts, blobs)
    assert all(torch.equal(arrived[name], tensor) for name, tensor in tensors.items())


@where_compiled
def test_a_slot_of_texts_alone_is_free_as_soon_as_they_are_read():
    writer = ArenaWriter(MIB)
    reader = ArenaReader(writer.fd)
    parcel = writer.write({"a": ["x" * 9000, "y"]})
    reader.expect(parcel)
    batch = reader.read(parcel)
    assert reader.freed() == [parcel.slot.number]
    assert batch == {"a": ["x" * 9000, "y"]}


@where_compiled
def test_only_what_is_copied_in_one_of_the_ways_is_a_measure_of_them(monkeypatch):
    writer, seen = ArenaWriter(MIB), []
    monkeypatch.setattr(writer._copier, "copy", lambda _, __, size, **___: seen.append(size))
    writer.write({"x": torch.zeros(5000, dtype=torch.uint8), "a": ["x" * 9000]})
    assert seen == [5000]


def attempt(function, *args):
    with contextlib.suppress(ValueError, TypeError, UnicodeError):
        function(*args)


@where_compiled
def test_no_buffer_is_held():
    sizes, data = bytearray(COPY.sizes_of(["four", "five!"])[0]), bytearray(9)
    for values in (["four", "five!"], ["four"], ["\ud800"], [None]):
        attempt(COPY.write_strings, data, values, sizes)
        data.append(0)  # an error if anybody looks at it
        del data[-1]
    for content in (b"fourfive!", b"\xff" * 9, b"four"):
        data[:] = content
        attempt(COPY.strings_of, data, sizes, True)
        for buffer in (data, sizes):
            buffer.append(0)
            del buffer[-1]


@where_compiled
@pytest.mark.parametrize("last", [None, "\ud800"])
def test_a_list_that_is_refused_leaves_no_memory(last):
    values = ["x"] * 10_000 + [last]
    tracemalloc.start()
    for _ in range(20):
        assert COPY.sizes_of(values) is None
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 40_000


@where_compiled
def test_nothing_is_kept():
    values = [chr(0x100 + n) * 3000 for n in range(10)]
    batch = {"a": values}
    crossed(batch)
    counts = [sys.getrefcount(value) for value in values]
    for _ in range(20):
        crossed(batch)
    assert [sys.getrefcount(value) for value in values] == counts


@where_compiled
def test_a_slot_is_not_lost_when_strings_cannot_be_written(monkeypatch):
    writer = ArenaWriter(MIB)
    batch = {"a": ["x" * 10_000, "y" * 10_000]}
    writer.write(batch)
    before = len(writer._free)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(strings.Strings, "write", interrupted)
    for _ in range(100):  # more than there is room for
        with pytest.raises(KeyboardInterrupt):
            writer.write(batch)
    monkeypatch.undo()
    assert len(writer._free) == before + 1
    parcel = writer.write(batch)
    assert ArenaReader(writer.fd).read(parcel) == batch == pickle.loads(pickle.dumps(batch))
