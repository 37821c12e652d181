"""Optimizer steps that hold a number of documents, over all ranks."""
