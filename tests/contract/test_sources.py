"""Every source keeps the contract of `Source`, and the law holds over it."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from attrs import evolve
from chunk_files import (
    documents_as_litdata,
    large_mds,
    large_parquet,
    numbers_as_litdata,
    numbers_as_mds,
)
from click.testing import CliRunner
from frame_files import write_numbers
from loading.runs import loaders_of, run
from tars import sample_files, write_tar
from token_files import some_documents, write_datatrove, write_megatron
from trees import batches

from energy_data.api import get_train_dataset
from energy_data.cli.main import main
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.chunks.mds import MdsSource
from energy_data.data.filter_writer import build_filter_index
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError
from energy_data.loading.factory import get_loader
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.testing import NumberSource, assert_resumes_exactly


def tar(folder):
    return write_tar(folder / "x.tar", [part for n in range(40) for part in sample_files(n)])


def write_lines(path, numbers):
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return path


def jsonl_files(folder):
    for shard, size in enumerate((3, 30, 7)):
        first = 40 * shard
        lines = [json.dumps({"n": n}) for n in range(first, first + size)]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines))
    return folder


def rows(folder):
    np.save(folder / "x.npy", np.arange(200).reshape(40, 5))
    return folder / "x.npy"


def write_rows(path, numbers):
    pq.write_table(pa.table({"n": numbers}), path, row_group_size=7)
    return path


def arrow_files(folder):
    """Two files, of which the second has sample 5."""
    for name, numbers in enumerate([range(3), range(3, 40)]):
        table = pa.table({"n": numbers})
        with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return folder


def wids(folder):
    """An index of two tars, of which the second has sample 5."""
    for name, numbers in enumerate([range(3), range(3, 40)]):
        write_tar(folder / f"{name}.tar", [part for n in numbers for part in sample_files(n)])
    shards = [{"url": "0.tar", "nsamples": 3}, {"url": "1.tar", "nsamples": 37}]
    content = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    (folder / "x.json").write_text(json.dumps(content))
    return folder / "x.json"


SOURCES = {
    "tar": (tar, {}),
    "wids": (wids, {}),
    "jsonl": (lambda f: write_lines(f / "x.jsonl", range(40)), {}),
    "folder of jsonl": (jsonl_files, {}),
    "jsonl.zst": (lambda f: write_numbers(f / "x.jsonl.zst", range(40)), {}),
    "jsonl.gz": (lambda f: write_numbers(f / "x.jsonl.gz", range(40)), {}),
    "documents of megatron": (lambda f: write_megatron(f / "x", some_documents(40)), {}),
    "documents of datatrove": (lambda f: write_datatrove(f / "x", some_documents(40)), {}),
    "windows": (
        lambda f: write_megatron(f / "x", some_documents(40, 30, 30)),
        {"seq_len": 32, "stride": 30, "cu_seqlens": True, "add_eos": 1},
    ),
    "windows of stages": (
        lambda f: write_datatrove(f / "x", some_documents(40, 30, 30)),
        {"seq_len": 30, "max_seq_len": 30},
    ),
    "rows": (rows, {}),
    "parquet": (lambda f: write_rows(f / "x.parquet", range(40)), {}),
    "parquet in pieces": (lambda f: large_parquet(f / "x.parquet", 40, per_group=33), {}),
    "folder of arrow": (arrow_files, {"columns": ["n"]}),
    "mds": (lambda f: numbers_as_mds(f, [3, 30, 7]), {}),
    "compressed mds": (lambda f: numbers_as_mds(f, [3, 30, 7], "zstd"), {"columns": ["number"]}),
    "mds in pieces": (lambda f: large_mds(f, [3, 37]), {}),
    "litdata": (lambda f: numbers_as_litdata(f, [3, 30, 7]), {}),
    "documents of litdata": (lambda f: documents_as_litdata(f, some_documents(40)), {}),
    "compressed litdata": (lambda f: numbers_as_litdata(f, [3, 30, 7], compression="zstd"), {}),
}


def filtered(path):
    """A file of 80 samples, of which a filter keeps 40."""
    build_filter_index(path, "some", [n for n in range(80) if n % 4 < 2])
    return path


def tars_without_some(folder):
    """Two prepared tars of 42 samples, of which two are excluded, one of them the first."""
    for name, numbers in enumerate([range(3), range(3, 42)]):
        write_tar(folder / f"{name}.tar", [part for n in numbers for part in sample_files(n)])
    prepare(folder, workers=1, shuffle=False)
    split = folder / ".nv-meta" / "split.yaml"
    names = ["0.tar/d/00000", "1.tar/d/00007"]
    split.write_text(yaml.safe_dump(yaml.safe_load(split.read_text()) | {"exclude": names}))
    return folder


PARTS = {
    "filtered jsonl": (
        lambda f: filtered(write_lines(f / "x.jsonl", range(80))),
        {"filter": "some"},
    ),
    "filtered jsonl.zst": (
        lambda f: filtered(write_numbers(f / "x.jsonl.zst", range(80))),
        {"filter": "some"},
    ),
    "filtered parquet": (
        lambda f: filtered(write_rows(f / "x.parquet", range(80))),
        {"filter": "some"},
    ),
    "filtered documents": (
        lambda f: filtered(write_datatrove(f / "x", some_documents(80))),
        {"filter": "some"},
    ),
    "tars without some": (tars_without_some, {}),
}
"""Sources of some of the samples of their files."""


@pytest.fixture(params=SOURCES | PARTS)
def made(request, tmp_path):
    """A dataset of 40 samples: its path, and its keys."""
    write, keys = (SOURCES | PARTS)[request.param]
    return write(tmp_path), keys


@pytest.fixture(params=SOURCES)
def whole(request, tmp_path):
    """A dataset of 40 samples, which are all of its files."""
    write, keys = SOURCES[request.param]
    return write(tmp_path), keys


@pytest.fixture
def source(made):
    path, keys = made
    return open_source(path, **keys)


def file_of(path):
    """The file of sample 5."""
    if path.suffix == ".json":
        path = path.parent
    return min(path.glob("*1.*"), key=lambda file: file.suffix == ".idx") if path.is_dir() else path


def plain(sample):
    """A sample as plain data, so that samples can be compared."""
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    return sample.tolist() if isinstance(sample, torch.Tensor) else sample


def read(source, indices):
    return [plain(sample) for sample in source.read(np.array(indices, np.int64))]


def test_samples_are_read_in_any_order_with_repeats(source):
    count = len(source)
    assert 38 <= count <= 41
    one_by_one = [read(source, [n])[0] for n in range(count)]
    wanted = [7, 3, 3, count - 1, 0, 7]
    assert read(source, wanted) == [one_by_one[n] for n in wanted]
    assert read(source, []) == []
    assert len({json.dumps(sample, default=str) for sample in one_by_one}) == count


def test_each_sample_is_a_dict_of_its_own(source):
    once, again = source.read(np.array([3, 3]))
    once.clear()
    assert again["__key__"] == source.read(np.array([3]))[0]["__key__"]


def test_a_sample_says_where_it_comes_from(made, source):
    (sample,) = source.read(np.array([5]))
    ((dataset, shard, _),) = sample["__sources__"]
    assert (dataset, shard) == (str(made[0]), file_of(made[0]).name)
    assert isinstance(sample["__key__"], str)
    assert sample["__subflavors__"] == {}


BY_BYTES = [
    *("tar", "wids", "jsonl", "folder of jsonl", "mds", "litdata"),
    *("filtered jsonl", "tars without some"),
]


def test_costs_are_those_of_the_samples_or_no_index_has_them(request, made, source):
    path, keys = made
    name = request.node.callspec.params["made"]
    by_tokens = [
        "windows",
        "windows of stages",
        "rows",
        *(name for name in SOURCES | PARTS if "doc" in name),
    ]
    known = dict.fromkeys(BY_BYTES, ("bytes",)) | dict.fromkeys(by_tokens, ("tokens",))
    known["documents of litdata"] = ("tokens", "bytes")
    for unit in ("tokens", "bytes"):
        costs = source.costs(np.array([7, 3, 3, 30, 0]), unit)
        if unit not in known.get(name, ()):
            assert costs is source.total_cost(unit) is None
            continue
        assert costs.tolist() == [cost(source, n, unit) for n in (7, 3, 3, 30, 0)]
        assert costs.dtype == np.int64
        some = open_source(path, subset=(5, 30), **keys)
        assert (
            some.costs(np.arange(25), unit).tolist()
            == source.costs(np.arange(5, 30), unit).tolist()
        )
        assert some.total_cost(unit) == some.costs(np.arange(25), unit).sum()


def cost(source, index, unit):
    """The cost of a sample, found by reading it."""
    before = source.bytes_read
    (sample,) = source.read(np.array([index]))
    if unit == "tokens":
        return len(sample["tokens"])
    if before is not None:
        return source.bytes_read - before
    if "tokens" in sample:
        return 2 * len(sample["tokens"])
    if "json" in sample:
        return len(json.dumps(sample["json"])) + 1
    # Of chunks: the sizes of columns, in MDS only of the text; the number; the text.
    return (4 if isinstance(source, MdsSource) else 8) + 8 + len(sample["text"])


def run_command(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


def test_the_commands_take_it_and_its_folder(whole, tmp_path):
    path, keys = whole
    source = open_source(path, **keys)
    meta = tmp_path / "meta.yaml"
    for dataset in dict.fromkeys([path, path if path.is_dir() else path.parent]):
        meta.write_text(yaml.safe_dump({"splits": {"train": {"path": str(dataset), **keys}}}))
        for _ in range(2):  # not prepared, and prepared
            assert f"{len(source)} samples" in run_command("check", meta)
            nodes = json.loads(run_command("inspect", meta, "--json"))["nodes"]
            assert nodes[0]["num_samples"] == len(source)
            (info,) = json.loads(run_command("info", meta, "--json"))
            assert info["samples"] == len(source)
            assert f", 5 of {len(source)}: dataset " in run_command("preview", meta, "--index", 5)
            run_command("check", "--samples", "--num-workers", 1, meta)
            run_command("prepare", dataset, "--force", "--non-interactive")
        assert len(open_source(dataset, **keys)) == len(source)


@pytest.mark.parametrize("index", [-1, 1000])
def test_an_index_out_of_range_is_an_error(source, index):
    with pytest.raises(IndexError):
        source.read(np.array([index]))


def test_pickled_it_is_small_and_the_same(source):
    data = pickle.dumps(source)
    again = pickle.loads(data)
    assert len(data) < 2000
    assert again.fingerprint == source.fingerprint
    assert read(again, [4, 2]) == read(source, [4, 2])


def test_a_subset_is_a_range_of_its_samples(made, source):
    path, keys = made
    some = open_source(path, subset=(10, 13), **keys)
    assert read(some, range(len(some))) == read(source, [10, 11, 12])
    (row,) = some.rows_of([1])
    assert [row] == list(source.rows_of([11]))
    assert row >= 11
    assert some.fingerprint != source.fingerprint
    with pytest.raises(SpecError, match="is empty or out of range"):
        open_source(path, subset=(10, 1000), **keys)


def test_parts_that_only_prepared_data_has_are_an_error(whole):
    path, keys = whole
    with pytest.raises(SpecError, match="its one split part is 'train', not 'val'"):
        open_source(path, split_part="val", **keys)


def test_its_fingerprint_changes_with_the_data(made, source):
    path, before = file_of(made[0]), source.fingerprint
    data = path.read_bytes()
    first, end = len(data) // 2, -len(data) // 3
    changed = data[first:end].translate(bytes(byte ^ 1 for byte in range(256)))
    path.write_bytes(data[:first] + changed + data[end:])
    with suppress(StructureError):  # noticed when it is opened
        assert open_source(made[0], **made[1]).fingerprint != before


def test_a_file_that_was_replaced_in_mid_run_is_an_error(made, source):
    path = file_of(made[0])
    read(source, [0])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StructureError):
        read(source, range(len(source)))


def keys_of(batch):
    return tuple(sample["__key__"] for sample in batch)


def tree(source, *, deal=0):
    """Batches of a blend of the source and of numbers."""
    other = LeafSpec(Leaf(id="numbers", source=NumberSource(23)))
    order = BlendSpec((Part(LeafSpec(Leaf(id="x", source=source)), 3), Part(other, 1)))
    shuffle = Shuffle(buffer_size=4, sequence_length=3, parallel_sequences=2)
    spec = batches(ReadSpec(of=ReferencesSpec(of=order, shuffle=shuffle, batch=3)))
    return evolve(spec, collate=keys_of)


def test_restored_at_every_step_it_goes_on_identically(source):
    assert_resumes_exactly(tree(source), lane=1, lanes=3)


def test_micro_batches_are_the_same_on_any_number_of_ranks(source):
    one = run(loaders_of(tree(source), 1), rounds=48)
    assert run(loaders_of(tree(source), 4), rounds=12) == one


def test_a_run_over_it_in_stages_saved_on_one_rank_goes_on_on_two_with_workers(made):
    path, keys = made
    leaf = {"path": str(path), **keys}
    stages = [{"name": "first", "end": 10, **leaf}, {"name": "then", **leaf}]
    meta = {"splits": {"train": {"staged": {"unit": "microbatches", "stages": stages}}}}

    def loader(rank=0, ranks=1, workers=0):
        config = WorkerConfig(rank, ranks, num_workers=workers, lanes=4)
        return get_loader(
            get_train_dataset(meta, worker_config=config, batch_size=2, shuffle_buffer_size=5)
        )

    first = loader()
    stream = iter(first)
    expected = [next(stream)["__key__"] for _ in range(6)]
    state = json.loads(json.dumps(first.state_dict()))
    expected = [next(stream)["__key__"] for _ in range(8)]
    found = {}
    for rank in range(2):
        with loader(rank, 2, workers=2 * rank) as again:
            again.load_state_dict(state)
            for number, batch in zip(range(rank, 8, 2), again, strict=False):
                found[number] = batch["__key__"]
    assert [found[number] for number in range(8)] == expected
