"""Samples by index: sources, file stores and decoders."""
