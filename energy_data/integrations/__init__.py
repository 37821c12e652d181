"""Adapters for trainers. A module that needs a trainer imports it."""
