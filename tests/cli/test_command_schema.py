import json

import jsonschema
import yaml

from energy_data.cli.demo.command import METADATASET


def test_the_schema_accepts_the_metadataset_of_the_demo(energy_data):
    schema = json.loads(energy_data("schema").stdout)
    jsonschema.validate(yaml.safe_load(METADATASET), schema)
