"""One exact, resumable stream of training batches from many datasets."""
