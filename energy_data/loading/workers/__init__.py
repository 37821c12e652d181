"""Worker processes and threads that make batches ahead of the trainer."""
