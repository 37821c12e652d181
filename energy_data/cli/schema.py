"""`energy-data schema`: the grammar of metadatasets, for editors."""

from __future__ import annotations

import json

import click

from energy_data.config.schema import metadataset_schema


@click.command("schema")
def command() -> None:
    r"""Print the JSON Schema of metadatasets.

    An editor that uses it completes keys and marks errors as you type:

    \b
      energy-data schema > metadataset.schema.json
      # first line of the YAML, for the YAML language server:
      # yaml-language-server: $schema=metadataset.schema.json
    """
    click.echo(json.dumps(metadataset_schema(), indent=2))
