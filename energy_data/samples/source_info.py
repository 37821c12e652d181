"""Where a sample of a declared type was read, in Energon's terms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceInfo:
    """Where a sample, or a file that was added to it, was read.

    The names of `energy_data.core.sample.SampleSource` lead to the same facts.
    """

    dataset_path: str  # as opened
    index: int | str  # of the sample in its split part, before any subset; of a file: its key
    shard_name: str  # path relative to the dataset
    file_names: tuple[str, ...] = ()  # in the shard, of the parts that were used

    @property
    def dataset(self) -> str:
        """The path of the dataset."""
        return self.dataset_path

    @property
    def shard(self) -> str:
        """The path of the shard, relative to the dataset."""
        return self.shard_name
