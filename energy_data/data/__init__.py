"""Samples by index: file formats, decoding, joins."""
