"""Optimizer steps by number of documents: the rule, and the arithmetic behind it.

Pure: what draws micro-batches and asks other ranks is in `energy_data.loading`.
"""
