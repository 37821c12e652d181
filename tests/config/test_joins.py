"""Joins, aux and joiners of metadatasets over real tars."""

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tars import write_tar

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.config.opening import Options
from energy_data.data import join_table
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.typed.sample_types import CaptioningSample
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of

JOIN = "join: [{path: ids}, {path: texts, nonmatch: skip}]"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Enter a folder with two datasets that have some keys in common."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, extension, numbers in (("ids", "id", range(12)), ("texts", "txt", range(4, 16))):
        for shard in range(4):
            files = [(f"k{n}.{extension}", str(n).encode()) for n in numbers[shard::4]]
            write_tar(tmp_path / name / f"{shard}.tar", files)
        split = {"train": ["[012].tar"], "val": ["3.tar"]}
        prepare(tmp_path / name, split=split, workers=1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def computed(monkeypatch):
    """The number of tables computed so far, as a list."""
    found = []
    compute = join_table._compute
    monkeypatch.setattr(join_table, "_compute", lambda of: found.append(1) or compute(of))
    return found


def sources(said, split="train", **options):
    metadataset = load(said)
    spec = compile_split(
        metadataset, split, open_source=open_source, mode="train", options=Options(**options)
    )
    return [leaf.source for leaf in leaves_of(spec)]


def write(name, train, val=None):
    splits = {"train": yaml.safe_load(f"{{{train}}}")}
    if val:
        splits["val"] = yaml.safe_load(f"{{{val}}}")
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(yaml.safe_dump({"splits": splits}))
    return name


def keys(source):
    return sorted(sample["__key__"] for sample in source.read(np.arange(len(source))))


@pytest.mark.usefixtures("folder")
def test_a_join_is_computed_once_and_kept_beside_its_file(computed):
    path = write("m.yaml", JOIN)
    for _ in range(2):
        (source,) = sources(path)
        assert keys(source) == ["k10", "k4", "k5", "k6", "k8", "k9"]
    assert len(computed) == 1
    assert [file.name[:5] for file in Path("m.yaml.cache").iterdir()] == ["join_"]


@pytest.mark.usefixtures("folder")
def test_each_split_has_a_table_of_its_own():
    path = write("m.yaml", JOIN, JOIN)
    assert keys(sources(path)[0]) == ["k10", "k4", "k5", "k6", "k8", "k9"]
    assert keys(sources(path, "val")[0]) == ["k11", "k7"]


@pytest.mark.usefixtures("folder")
def test_the_join_of_a_nested_file_is_kept_beside_that():
    write("below/n.yaml", JOIN.replace("path: ", "path: ../"))
    path = write("m.yaml", "blend: [{path: below/n.yaml}, {path: ids}]")
    assert len(sources(path)[0]) == 6
    assert Path("below/n.yaml.cache").is_dir()
    assert not Path("m.yaml.cache").exists()


@pytest.mark.usefixtures("folder")
def test_parts_subflavors_and_ranges_of_a_join_and_its_datasets():
    ids = "{path: ids, split_part: val, subflavors: {x: 1, y: 2}}"
    join = f"join: [{ids}, {{path: texts, nonmatch: skip}}], split_part: val"
    path = write("m.yaml", f"{join}, subflavors: {{x: 3}}, subset: {{range: [1, 2]}}")
    (source,) = sources(path)
    (sample,) = source.read(np.arange(1))
    assert sample["__key__"] == "k11"
    assert sample["__subflavors__"] == {"x": 3, "y": 2}


@pytest.mark.usefixtures("folder")
def test_what_does_not_match_is_a_fault_with_its_place_and_keys():
    path = write("m.yaml", JOIN.replace(", nonmatch: skip", ""))
    with pytest.raises(SpecError) as caught:
        sources(path)
    (line,) = caught.value.faults
    assert line.startswith("m.yaml:4:5: splits.train: leaf 'join(ids:train,texts:train)': ")
    assert "no match for 3 of 9 samples" in line
    assert "0.tar/k0" in line


@pytest.mark.usefixtures("folder")
def test_the_id_of_a_join_names_its_datasets_and_its_range():
    path = write("m.yaml", f"{JOIN}, subset: {{range: [50%, 100%]}}, subflavors: {{a: 1}}")
    (leaf,) = leaf_uses(load(path).tree("train"))
    assert leaf.id == "join(ids:train,texts:train;nonmatch=skip)[50%:100%]"


# ------------------------------------------------------------------ joiners


@pytest.fixture
def code(folder, monkeypatch):
    """A module that says when it is imported."""
    (folder / "joining.py").write_text(
        "def pair(ids, texts):\n"
        "    return {'__key__': ids['__key__'], 'both': [ids['id'], texts['txt']]}\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    yield "joining"
    sys.modules.pop("joining", None)


PAIR = "{__module__: joining, __function__: pair}"


def test_code_runs_only_if_it_is_allowed(code):
    path = write("m.yaml", f"{JOIN}, joiner: {PAIR}")
    with pytest.raises(SpecError, match=r"is unknown code.* allow_modules=\['joining'\]"):
        sources(path)
    assert code not in sys.modules
    (source,) = sources(path, trust=ImportPolicy.of([code]))
    assert source.read(np.array([0]))[0] in [
        {"__key__": f"k{n}", "both": [n, str(n)]} for n in range(12)
    ]


@pytest.mark.usefixtures("code")
def test_allowed_by_its_argument_it_joins_in_a_loader_with_workers():
    path = write("m.yaml", f"{JOIN}, joiner: {PAIR}")
    dataset = get_train_dataset(
        path, batch_size=2, allow_modules=["joining"], worker_config=WorkerConfig(lanes=2)
    )
    batch = next(iter(get_loader(dataset)))
    assert all([str(number), text] == [text, text] for number, text in batch["both"])


@pytest.mark.usefixtures("code")
def test_a_function_that_is_not_there_is_a_fault_with_its_place():
    path = write("m.yaml", f"{JOIN}, joiner: {PAIR.replace('pair', 'piar')}")
    with pytest.raises(SpecError, match=r"m.yaml:4:5: .*joining\.piar cannot be imported"):
        sources(path, trust=ImportPolicy.of(["joining"]))


def test_a_sample_type_joins_what_dataset_yaml_types(folder):
    maps = {"ids": {"image": "id", "caption": "id"}, "texts": {"image": "txt", "caption": "txt"}}
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    for name, fields in maps.items():
        text = yaml.safe_dump({"sample_type": kind, "field_map": fields})
        (folder / name / ".nv-meta" / "dataset.yaml").write_text(text)
    path = write("m.yaml", f"{JOIN}, joiner: {yaml.safe_dump(kind, default_flow_style=True)}")
    (source,) = sources(path, open_typed=open_typed)
    sample = source.read(np.array([2]))[0]
    assert isinstance(sample, CaptioningSample)
    assert sample.caption == sample.__key__[1:]  # that of the texts
    assert sample.__restore_key__ == ("Webdataset", 2)


# ------------------------------------------------------------------ prepare


def prepared(path):
    return CliRunner().invoke(main, ["prepare", str(path)])


@pytest.mark.usefixtures("folder")
def test_prepare_computes_all_joins_and_removes_those_no_longer_needed(computed):
    path = write("m.yaml", f"{JOIN}, joiner: {PAIR}", JOIN.replace("skip", "none"))
    done = prepared(path)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith(
        "m.yaml: train: join(ids:train,texts:train;nonmatch=skip): 6 samples, "
    )
    assert len(done.stdout.splitlines()) == len(computed) == 2
    tables = set(Path("m.yaml.cache").glob("*.npy"))
    prepare(Path("texts"), split={"train": ["[012].tar"], "val": ["3.tar"]}, force=True, workers=1)
    assert prepared(path).exit_code == 0
    assert len(computed) == 4
    assert len(tables) == len(set(Path("m.yaml.cache").glob("*.npy")) - tables) == 2
    assert not any(table.exists() for table in tables)


@pytest.mark.usefixtures("folder")
def test_prepare_tells_what_is_wrong_and_what_there_is_not():
    done = prepared(write("m.yaml", JOIN.replace(", nonmatch: skip", "")))
    assert done.exit_code == 1
    assert "m.yaml:4:5: splits.train: leaf" in done.stderr
    assert "no joins" in prepared(write("n.yaml", "path: ids")).stdout
