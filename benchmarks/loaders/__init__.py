"""One file per loader: `batches(case, folder, batch_size, num_workers)` gives batches without end.

Each is written as its own documentation shows for this kind of data, with shuffling.
"""
