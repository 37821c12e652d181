"""What docs/metadataset.md shows is true."""

import re
from pathlib import Path

import pytest
from tars import write_tar

from energy_data.config.compile import compile_split
from energy_data.config.keys import LeafKeys, NodeKeys
from energy_data.config.load import load
from energy_data.config.schema import GROUPS, KINDS, PARTS, FileKeys, keys_next_to
from energy_data.core.recipe import keys_of
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of

PAGE = (Path(__file__).parents[2] / "docs" / "metadataset.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE, re.DOTALL)


def name_of(number):
    found = re.match(r"# (\w+\.yaml)\n", BLOCKS[number][0])
    return found[1] if found else f"block{number}.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Enter a folder with every YAML block of the page as a file."""
    for number, (text, _) in enumerate(BLOCKS):
        (tmp_path / name_of(number)).write_text(text)
    for name in ("coco", "coyo", "images"):
        write_tar(tmp_path / "data" / name / "0.tar", [(f"{n}.{name}", b"") for n in range(5)])
        prepare(tmp_path / "data" / name, sqlite=True, workers=1)
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("number", range(len(BLOCKS)))
@pytest.mark.usefixtures("folder")
def test_a_block_loads_and_compiles_or_has_the_faults_shown(number, datasets):
    datasets.num_samples = {"coyo": 5000}
    _, faults = BLOCKS[number]
    if faults:
        with pytest.raises(SpecError) as caught:
            load(name_of(number))
        there = f"{Path.cwd().resolve()}"
        assert str(caught.value).replace(there, "/home/me") + "\n" == faults
        return
    metadataset = load(name_of(number))
    opened = open_source if name_of(number) == "pairs.yaml" else datasets
    for split in metadataset.splits:
        compile_split(metadataset, split, open_source=opened)


def test_there_are_blocks_and_one_shows_faults():
    assert len(BLOCKS) >= 6
    assert sum(bool(faults) for _, faults in BLOCKS) == 1


@pytest.mark.usefixtures("folder")
def test_the_ids_are_as_the_page_says(datasets):
    spec = compile_split(load("twice.yaml"), "train", open_source=datasets)
    assert [leaf.id for leaf in leaves_of(spec)] == ["coco", "coco", "coco_again"]


@pytest.mark.parametrize(
    "keys",
    [keys_of(cls) for cls in (FileKeys, NodeKeys, LeafKeys, *PARTS, *GROUPS)]
    + [keys_next_to(cls) for cls in KINDS.values()],
)
def test_the_tables_have_every_key_with_its_meaning(keys):
    for name, one in keys.items():
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        assert any(one.about in row for row in rows), name
