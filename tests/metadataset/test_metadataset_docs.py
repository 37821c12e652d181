"""What docs/metadataset.md shows is true."""

import re
from pathlib import Path

import pytest

from energy_data.errors import SpecError
from energy_data.metadataset.compile import compile_split
from energy_data.metadataset.definitions import KNOWN_TO_ENERGON, FileDefinition, keys_of
from energy_data.metadataset.kinds import GROUPS, KINDS, PARTS
from energy_data.metadataset.load import load
from energy_data.references import leaf_entries

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
    for split in metadataset.splits:
        compile_split(metadataset, split, open_source=datasets)


def test_there_are_blocks_and_one_shows_faults():
    assert len(BLOCKS) >= 6
    assert sum(bool(faults) for _, faults in BLOCKS) == 1


@pytest.mark.usefixtures("folder")
def test_the_ids_are_as_the_page_says(datasets):
    spec = compile_split(load("twice.yaml"), "train", open_source=datasets)
    assert [leaf.id for _, leaf in leaf_entries(spec)] == ["coco", "coco", "coco@2"]


@pytest.mark.parametrize("cls", [FileDefinition, *KINDS.values(), *PARTS, *GROUPS])
def test_the_tables_have_every_key_with_its_meaning(cls):
    for name, attribute in keys_of(cls).items():
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
        assert any(attribute.metadata["about"] in row for row in rows), name


@pytest.mark.parametrize("name", sorted(KNOWN_TO_ENERGON))
def test_what_is_not_supported_yet_is_listed(name):
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line]
    assert KNOWN_TO_ENERGON[name] in rows[-1]
