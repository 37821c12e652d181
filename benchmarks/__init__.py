"""Compares `energy_data` with other loaders; see README.md."""
