"""The state of a run: format, merging, restoring."""
