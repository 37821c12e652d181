"""One file per loader: `open_loader(case, url, cache, num_workers)` returns one with a state."""
