"""A cache of an object store in which only those bytes are there that are held."""

from __future__ import annotations

import shutil
from pathlib import Path

from energy_data.core.profiler import Fetched
from energy_data.remote.client import FetchClient
from energy_data.remote.mirror_paths import FOLDER, has_samples


class HostileCache(FetchClient):
    """Fetches what is waited for, and drops it when its owner wants other ranges.

    What is read without being waited for is zeros. `wants` and `waits` are the calls, in order.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.wants: list[tuple] = []
        self.waits: list[tuple] = []
        self._held: dict[str, list] = {}
        self._data: dict[str, bytes] = {}

    def add(self, dataset: Path) -> Path:
        """Return the path in the cache of a file or a folder."""
        found = Path(f"{self.root}{FOLDER}s3/data", dataset.name)
        copy = shutil.copytree if dataset.is_dir() else shutil.copy
        found.parent.mkdir(parents=True, exist_ok=True)
        copy(dataset, found)
        index = dataset.with_name(f"{dataset.name}.idx")
        if index.is_file():
            shutil.copy(index, found.parent)
        for file in found.rglob("*") if found.is_dir() else [found]:
            if file.is_file() and has_samples(str(file)):
                self._data[str(file)] = file.read_bytes()
                self._set(str(file), 0, bytes(file.stat().st_size))
        return found

    def _tell(self, message):
        owner, ranges = message["owner"], message["ranges"]
        self.wants.append((owner, list(ranges), list(message["when"])))
        before, kept = self._held.get(owner, []), set(ranges)
        self._held[owner] = [one for one in before if one in kept]
        dropped = [one for one in before if one not in kept]
        for path, begin, end in dropped:
            self._set(path, begin, bytes(end - begin))
            self._fill(
                one
                for held in self._held.values()
                for one in held
                if overlap(one, (path, begin, end))
            )

    def _ask(self, message):
        assert message["kind"] == "wait", "a test reaches for a store"
        owner, ranges = message["owner"], message["ranges"]
        mine = [one for one in ranges if one[0] in self._data]
        self.waits.append((owner, mine))
        self._held.setdefault(owner, []).extend(mine)
        self._fill(mine)
        return [Fetched()] * len(ranges)

    def of_lanes(self):
        """The waits of lanes; others are those of indices, and of what was not known before."""
        return [(owner, ranges) for owner, ranges in self.waits if "lane" in owner]

    def unplanned(self):
        """The waits outside of lanes since their first one; those before are to open files."""
        first = next(n for n, (owner, _) in enumerate(self.waits) if "lane" in owner)
        return [(owner, ranges) for owner, ranges in self.waits[first:] if "lane" not in owner]

    def _fill(self, ranges):
        for path, begin, end in ranges:
            self._set(path, begin, self._data[path][begin:end])

    def _set(self, path, begin, data):
        with Path(path).open("r+b") as file:
            file.seek(begin)
            file.write(data)


def overlap(one, other):
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
