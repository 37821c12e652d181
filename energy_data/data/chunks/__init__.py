"""Chunks: files of samples behind a table of their offsets, listed in an index.json."""
