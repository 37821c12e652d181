"""JSONL files: one JSON object per line."""
