"""Adapters for trainers. Each module is for one of them, and imports it."""
