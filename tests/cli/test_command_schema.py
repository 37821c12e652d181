import json
import runpy
from pathlib import Path

import jsonschema
import yaml

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_schema_accepts_the_metadataset_of_the_demo(energy_data):
    schema = json.loads(energy_data("schema").stdout)
    metadataset = runpy.run_path(str(DEMO), run_name="demo")["METADATASET"]
    jsonschema.validate(yaml.safe_load(metadataset), schema)
