"""One file per loader: `batches(kind, num_workers)` hands over batches without end."""
