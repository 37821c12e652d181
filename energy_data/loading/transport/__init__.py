"""Batches from workers to the trainer."""
