"""Joins: samples of several datasets with the same key, as one sample."""
