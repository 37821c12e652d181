"""Parts that are a tensor's numbers: the same batches however they are read, with one copy."""

from __future__ import annotations

import io
import tarfile
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader.runs import loader_of
from tars import write_tar
from trees import samples

from energy_data import (
    DefaultTaskEncoder,
    RawTensor,
    SampleError,
    SpecError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.leaves import Leaf
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import LeafSpec
from energy_data.rows import rows_of_one
from energy_data.sources import tar_raw
from energy_data.sources.decode import Decoding
from energy_data.sources.prepare import prepare
from energy_data.sources.webdataset import WebdatasetSource, open_dataset
from energy_data.tasks.collate import collate, stack_or_list

SHAPE = (8, 16, 16)
RAW = RawTensor("float32", SHAPE)
BEFORE, AFTER = [("txt", b"before")], [("json", b"[1]"), ("txt", b"after")]
LAYOUTS = {"alone": ([], []), "first": ([], AFTER), "last": (BEFORE, [])}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax with times": tarfile.PAX_FORMAT}


def values(number, dtype=torch.float32, shape=SHAPE):
    return torch.full(shape, number).to(dtype)


def payload(number, dtype=torch.float32, shape=SHAPE):
    return values(number, dtype, shape).contiguous().view(torch.uint8).numpy().tobytes()


def parts(number, layout="alone"):
    before, after = LAYOUTS[layout]
    return [(f"{number:04d}.{e}", d) for e, d in (*before, ("bin", payload(number)), *after)]


def tensors(folder, numbers=range(40), layout="alone", kind=tarfile.USTAR_FORMAT):
    with tarfile.open(make(folder) / "a.tar", "w", format=kind) as tar:
        for name, data in (file for number in numbers for file in parts(number, layout)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1  # as webdataset writes them
            tar.addfile(member, io.BytesIO(data))
    prepare(folder, workers=1)
    return folder


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def as_function(data):
    """What `RAW` does, but nobody can know that: such tensors are stacked."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(SHAPE)


def stream(path, decoder=RAW, workers=0, method="fork", **options):
    options = {"batch_size": 4, "repeat": False, **options}
    config = WorkerConfig(num_workers=workers, lanes=2)
    dataset = get_train_dataset(path, worker_config=config, decoders={"bin": decoder}, **options)
    return get_loader(dataset, start_method=method)


def plain(batches):
    return [
        {name: value.tolist() if torch.is_tensor(value) else value for name, value in batch.items()}
        for batch in batches
    ]


@pytest.fixture
def stacked(monkeypatch):
    """The tensors that were copied into their batch."""
    stack, seen = torch.stack, []
    monkeypatch.setattr(torch, "stack", lambda *a, **k: seen.extend(a[0]) or stack(*a, **k))
    return seen


@pytest.fixture
def alone(monkeypatch):
    """The samples that were not what was hoped for."""
    read, seen = tar_raw.read_alone, []
    monkeypatch.setattr(tar_raw, "read_alone", lambda *a: seen.append(a[0].begin) or read(*a))
    return seen


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "fork"), (2, "thread")])
def test_batches_are_those_of_a_function_that_decodes(tmp_path, layout, kind, workers, method):
    path = tensors(tmp_path, layout=layout, kind=FORMATS[kind])
    batches = plain(stream(path, workers=workers, method=method))
    assert len(batches) == 10
    assert batches == plain(stream(path, as_function))
    for batch in batches:
        assert batch["bin"] == [values(int(key)).tolist() for key in batch["__key__"]]


@pytest.mark.parametrize("layout", ["alone", "first"])
def test_tensors_are_read_into_their_batch(tmp_path, stacked, alone, layout):
    assert len(list(stream(tensors(tmp_path, layout=layout)))) == 10
    assert not stacked
    assert not alone


def test_headers_as_webdataset_writes_them_are_learned_from_the_first_samples(tmp_path, alone):
    path = tensors(tmp_path, kind=FORMATS["pax with times"])
    assert len(list(stream(path))) == 10
    assert len(alone) == 12


def test_samples_that_begin_otherwise_are_soon_read_as_before(tmp_path, alone):
    assert len(list(stream(tensors(tmp_path, layout="last")))) == 10
    assert len(alone) == 12


def test_a_dataset_that_begins_otherwise_takes_no_other_with_it(tmp_path, alone):
    tensors(tmp_path / "a", range(40))
    tensors(tmp_path / "b", range(40, 80), "last")
    blend = {"blend": [{"path": str(tmp_path / name), "weight": 1} for name in "ab"]}
    given = iter(stream({"splits": {"train": blend}}, repeat=True, batch_size=8))
    for _ in range(10):
        next(given)
    before = len(alone)
    assert before <= 20
    for _ in range(20):
        next(given)
    assert len(alone) == before


class KeepsSamples(DefaultTaskEncoder):
    def __init__(self):
        self.seen = []

    def encode_sample(self, sample):
        self.seen.append(sample["bin"])
        return sample


class KeepsBatches(DefaultTaskEncoder):
    def __init__(self):
        self.seen = []

    def batch(self, samples):
        self.seen += [sample["bin"] for sample in samples]
        return super().batch(samples)


@pytest.mark.parametrize("encoder", [KeepsSamples(), KeepsBatches()])
def test_tensors_that_code_of_users_sees_have_memory_of_their_own(tmp_path, encoder):
    assert len(list(stream(tensors(tmp_path), task_encoder=encoder))) == 10
    assert len(encoder.seen) == 40
    assert {one.untyped_storage().nbytes() for one in encoder.seen} == {RAW.num_bytes}


class Seeing(WebdatasetSource):
    def read(self, indices):
        samples = super().read(indices)
        assert all(isinstance(sample["bin"], torch.Tensor) for sample in samples)
        return samples


def test_sources_of_users_see_tensors(tmp_path, stacked):
    decoding = Decoding(overrides={"bin": RAW})
    facts = {"split_part": "train", "subset": None, "subflavors": {}, "decoding": decoding}
    source = Seeing(str(tensors(tmp_path)), **facts)
    tree = samples(LeafSpec(Leaf(id="a", source=source)))
    spec = BatchSpec(of=tree, batch_size=4, collate=collate, shows_none=True)
    assert next(iter(loader_of(spec)))["bin"].shape == (4, *SHAPE)
    assert len(stacked) == 4


def test_functions_that_join_samples_see_tensors(tmp_path, monkeypatch, stacked):
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return {'sum': a['bin'] + b['bin']}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    members = [{"path": str(tensors(tmp_path / name))} for name in "ab"]
    join = {"join": members, "joiner": {"__module__": "adding", "__function__": "add"}}
    given = stream({"splits": {"train": join}}, allow_modules=["adding"])
    assert len(list(given)) == 10
    assert len(stacked) == 40


def test_batches_that_are_made_meanwhile_show_no_rows_to_others(tmp_path):
    beside = open_dataset(tensors(tmp_path / "beside", range(4)), decoders={"bin": RAW})

    class LooksBeside(DefaultTaskEncoder):
        def encode_batch(self, batch):
            return {**batch, "beside": [one["bin"] for one in beside.read(np.arange(4))]}

    for batch in stream(tensors(tmp_path / "own"), task_encoder=LooksBeside()):
        assert all(isinstance(one, torch.Tensor) for one in batch["beside"])


def test_a_function_put_in_place_of_batch_sees_tensors(tmp_path):
    encoder, seen = DefaultTaskEncoder(), []
    encoder.batch = lambda samples: seen.extend(one["bin"] for one in samples) or collate(samples)
    assert len(list(stream(tensors(tmp_path), task_encoder=encoder))) == 10
    assert {type(one) for one in seen} == {torch.Tensor}


def test_tensors_that_make_no_batch_have_memory_of_their_own(tmp_path):
    numbers = range(20)
    files = [(f"{n:04d}.{'q.bin' if n % 4 == 0 else 'bin'}", payload(n)) for n in numbers]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    lists = [batch["bin"] for batch in stream(tmp_path, batch_size=10)]
    found = [one for values in lists for one in values if one is not None]
    assert sorted(one[0, 0, 0].item() for one in found) == [n for n in numbers if n % 4]
    assert {one.untyped_storage().nbytes() for one in found} == {RAW.num_bytes}


def test_others_take_the_rows_of_samples_left_out(tmp_path, stacked):
    files = [file for number in range(40) for file in parts(number)]
    files[3::10] = [(name, b"too short") for name, _ in files[3::10]]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    for batch in islice(stream(tmp_path, repeat=True), 30):
        assert batch["bin"][:, 0, 0, 0].tolist() == [int(key) for key in batch["__key__"]]
    assert not stacked


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=8))
def test_rows_in_any_order_are_gathered_as_they_would_be_stacked(places):
    wholes = [rows_of_one(6, SHAPE, torch.float32).rows for _ in range(2)]
    for number, row in enumerate(row for rows in wholes for row in rows):
        row.tensor.fill_(number)
    tensors = [values(number) for number in range(100, 106)]
    picked = [[*wholes, tensors][which][number] for which, number in places]
    wanted = torch.stack([getattr(one, "tensor", one) for one in picked])
    assert torch.equal(stack_or_list(picked), wanted)


def test_a_batch_is_changed_without_changing_another(tmp_path):
    batches = iter(stream(tensors(tmp_path)))
    first = next(batches)["bin"]
    before = next(batches)["bin"]
    kept = before.clone()
    first.fill_(-1)
    assert torch.equal(before, kept)


def test_datasets_of_equal_tensors_share_batches(tmp_path, stacked):
    for name, numbers in (("a", range(20)), ("b", range(20, 40))):
        tensors(tmp_path / name, numbers)
    blend = {"blend": [{"path": str(tmp_path / name), "weight": 1} for name in "ab"]}
    given = stream({"splits": {"train": blend}}, repeat=True, batch_size=8)
    for batch in islice(given, 20):
        assert batch["bin"][:, 0, 0, 0].tolist() == [int(key) for key in batch["__key__"]]
    assert len(stacked) <= 2 * 8  # now and then each is read by itself, to see how long it takes


def test_a_sample_of_another_size_is_a_bad_sample_that_says_so(tmp_path, alone):
    files = [file for number in range(8) for file in parts(number)]
    files[3] = ("0003.bin", b"x" * 100)
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    dataset = get_val_dataset(tmp_path, batch_size=4, split_part="train", decoders={"bin": RAW})
    keys = [batch["__key__"] for batch in get_loader(dataset)]
    assert keys == [["0000", "0001", "0002"], ["0004", "0005", "0006", "0007"]]
    problem = r"has 100 bytes, but torch.float32 \[8, 16, 16\] has 8192"
    with pytest.raises(SampleError, match=problem) as raised:
        list(stream(tmp_path, on_error="raise"))
    assert (raised.value.key, raised.value.index) == ("0003", 3)


def test_a_shape_that_no_sample_has_takes_no_memory(tmp_path):
    path = tensors(tmp_path, range(4))
    with pytest.raises(SampleError, match="has 8192 bytes"):
        list(stream(path, RawTensor("uint8", (1 << 40, 8)), on_error="raise"))


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tensors(tmp_path)
    whole = stream(path, repeat=True)
    given = []
    for _, batch in zip(range(12), whole, strict=False):
        given.append((plain([batch]), whole.state_dict()))
    for place, (_, state) in enumerate(given[:-1]):
        again = stream(path, repeat=True, workers=place % 2)
        again.load_state_dict(state)
        assert plain([next(iter(again))]) == given[place + 1][0]


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"]
)
def test_dtypes(tmp_path, dtype, stacked):
    kind, shape = getattr(torch, dtype), (4096,)
    files = [(f"{n}.x.bin", payload(n, kind, shape)) for n in range(8)]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    given = get_train_dataset(
        tmp_path, batch_size=8, repeat=False, decoders={"x.bin": RawTensor(kind, shape)}
    )
    batch = next(iter(get_loader(given)))
    for key, tensor in zip(batch["__key__"], batch["x.bin"], strict=True):
        assert tensor.dtype == kind
        assert torch.equal(tensor, values(int(key), kind, shape))
    assert not stacked


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tensors(tmp_path_factory.mktemp("mixed"), range(12), "first", tarfile.PAX_FORMAT)
    return folder, (folder / "a.tar").read_bytes()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12 * 11_776 - 1), st.integers(0, 255)), max_size=8))
def test_damaged_bytes_give_the_same_either_way(mixed, flips):
    folder, data = mixed
    damaged = bytearray(data)
    for place, byte in flips:
        damaged[place % len(data)] = byte
    (folder / "a.tar").write_bytes(damaged)
    both = []
    for decoder in (RAW, as_function):
        given, said = stream(folder, decoder), []
        try:
            for batch in given:
                said += [np.asarray(batch["bin"]).tobytes(), batch["__key__"], batch.get("json")]
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
            said.append(f"{type(error).__name__}: {error}")
        both.append(said)
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (partial(RawTensor, "bool", (2,)), "neither bool nor quantized, got 'bool'"),
        (partial(RawTensor, torch.qint8, (2,)), "neither bool nor quantized, got torch.qint8"),
        (partial(RawTensor, "float31", (2,)), "dtype: must be a torch.dtype or its name"),
        (
            partial(RawTensor, "uint8", (2, 0)),
            r"shape: must be a tuple of whole .* \(2, 0\)",
        ),
        (
            partial(stream, "x", RawTensor),
            "'bin' must be a function of a part's bytes",
        ),
        (partial(stream, "x", 3), "'bin' must be a function of a part's bytes"),
        (partial(RawTensor, "uint8", 5), "shape: must be a tuple of whole numbers > 0, got 5"),
        (partial(get_train_dataset, "x", batch_size=1, decoders=["bin"]), "must be a dict by"),
        (partial(stream, "x", samples="typed"), "decoders: they are for samples='dicts'"),
    ],
)
def test_mistakes_are_told(made, problem):
    with pytest.raises(SpecError, match=problem):
        made()


def test_other_parts_are_decoded_as_one_says(tmp_path):
    write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.json", b"{}"), ("a.seg.txt", b"2")])
    prepare(tmp_path, workers=1)
    decoders = {"json": "bytes", "txt": int}
    (batch,) = get_loader(
        get_train_dataset(tmp_path, batch_size=1, repeat=False, decoders=decoders)
    )
    assert (batch["json"], batch["txt"].tolist(), batch["seg.txt"].tolist()) == ([b"{}"], [1], [2])
