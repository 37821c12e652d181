"""Samples of declared types, and the dataset.yaml that declares them."""
