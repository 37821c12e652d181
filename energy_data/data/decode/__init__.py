"""Bytes of parts -> values."""
