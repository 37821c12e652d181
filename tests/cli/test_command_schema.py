import json
import runpy
from pathlib import Path

import jsonschema
import yaml

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_lines_for_an_editor_are_shown_as_they_are_to_be_written(energy_data):
    lines = energy_data("schema", "--help").stdout.splitlines()
    assert "  energy-data schema > metadataset.schema.json" in lines
    assert "  # yaml-language-server: $schema=metadataset.schema.json" in lines


def test_the_schema_accepts_the_metadataset_of_the_demo(energy_data):
    schema = json.loads(energy_data("schema").stdout)
    metadataset = runpy.run_path(str(DEMO), run_name="demo")["METADATASET"]
    jsonschema.validate(yaml.safe_load(metadataset), schema)
