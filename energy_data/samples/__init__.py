"""Samples of declared types: dataclasses with the fields that a task works on."""
