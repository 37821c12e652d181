"""The command line `energy-data`; one file, or one folder, per command."""
