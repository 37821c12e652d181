"""Runs trees: hosts lanes, hands out batches, saves and restores."""
