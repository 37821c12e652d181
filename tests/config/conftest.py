"""Made-up datasets, and metadatasets written into a folder."""

import hashlib
from textwrap import dedent

import pytest

from energy_data.data.source import Source
from energy_data.errors import SpecError

NUM_SAMPLES = 100


class MadeUp(Source):
    """A dataset that has a length only."""

    def __init__(self, path, split_part, subset, subflavors, num_samples):
        self.path, self.split_part, self.subflavors = path, split_part, subflavors
        start, end = subset or (0, None)
        self.subset = (start, num_samples if end is None else end)

    def __len__(self):
        return self.subset[1] - self.subset[0]

    @property
    def fingerprint(self):
        said = repr((self.path, self.split_part, self.subset))
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()

    def read(self, indices):
        raise AssertionError("compiling reads no sample")


class MadeUpDatasets:
    """Opens any path; notes what was opened."""

    def __init__(self):
        self.opened = []
        self.num_samples = {}  # end of a path -> number of samples
        self.missing = ()

    def __call__(self, path, *, split_part, subset, subflavors, **config):
        self.opened.append((path, split_part, subset, *config.items()))
        if path.endswith(tuple(self.missing)):
            raise SpecError(f"{path}: there is no such dataset. Look at the path.")
        sizes = [n for end, n in self.num_samples.items() if path.endswith(end)]
        return MadeUp(path, split_part, subset, subflavors, sizes[0] if sizes else NUM_SAMPLES)


@pytest.fixture
def datasets():
    return MadeUpDatasets()


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file below `tmp_path` and returns its path."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write
