"""The pieces of objects in a cache: what counts, and what goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from energy_data.remote import cached_ranges
from energy_data.remote.cache_space import CacheSpace, OwnerKey
from energy_data.remote.cached_ranges import CachedObject, ObjectFacts
from energy_data.remote.mirror_paths import FOLDER

SIZE = 10  # bytes of a piece


@pytest.fixture
def cached(tmp_path):
    """An object of 100 pieces of zeros, none of them there."""
    facts = ObjectFacts(url="s3://data/x.tar", size=100 * SIZE, modified=1.0, tag='"1"')
    return CachedObject.create(f"{tmp_path}{FOLDER}s3/data/x.tar", facts)


def fetch(space, cached, number, *, urgent=False, in_use=lambda _: True):
    """Put a piece into the cache. False if there is no room."""
    if not space.make_room(SIZE, in_use, urgent=urgent):
        return False
    cached.add(number * SIZE, bytes([number]) * SIZE)
    space.added(cached.path, (number * SIZE, (number + 1) * SIZE))
    return True


def there(cached):
    return [begin // SIZE for begin, _ in cached.pieces]


def test_pieces_are_found_again_until_the_machine_restarts(cached, monkeypatch):
    for number in (3, 1):
        cached.add(number * SIZE, bytes(SIZE))
    cached.drop((1 * SIZE, 2 * SIZE))
    found = CachedObject.load(cached.path)
    assert found is not None
    assert there(found) == [3]
    monkeypatch.setattr(cached_ranges, "boot_id", lambda: "another")
    found = CachedObject.load(cached.path)
    assert found is not None
    assert there(found) == []


def test_a_line_that_was_cut_by_a_kill_does_not_count(cached):
    cached.add(0, bytes(SIZE))
    with Path(cached_ranges.ranges_of(cached.path)).open("a") as journal:
        journal.write("+ 50")
    found = CachedObject.load(cached.path)
    assert found is not None
    assert there(found) == [0]


def test_what_was_used_last_goes_first_and_what_is_held_stays(cached):
    space = CacheSpace(4 * SIZE)
    space.load(cached)
    space.hold(OwnerKey(0, "lane"), [(cached.path, 2 * SIZE, 3 * SIZE)])
    assert [fetch(space, cached, number) for number in range(5)] == [True] * 5
    assert there(cached) == [0, 1, 2, 4]


def test_what_is_wanted_goes_only_for_what_is_waited_for(cached):
    space = CacheSpace(2 * SIZE)
    space.load(cached)
    space.want(OwnerKey(0, "lane"), [(cached.path, 0, 2 * SIZE)])
    assert fetch(space, cached, 0)
    assert fetch(space, cached, 1)
    assert not fetch(space, cached, 2)
    assert fetch(space, cached, 2, urgent=True)


def test_what_an_owner_wanted_that_is_gone_is_kept_longer_than_what_was_used(cached):
    space, gone = CacheSpace(3 * SIZE), OwnerKey(0, "lane")
    space.load(cached)
    for number in range(3):
        assert fetch(space, cached, number)
    space.want(gone, [(cached.path, 2 * SIZE, 3 * SIZE)])
    space.want(gone, [])
    assert fetch(space, cached, 3)
    assert there(cached) == [0, 2, 3]


def test_a_full_cache_is_looked_through_rarely(cached):
    space, asked = CacheSpace(50 * SIZE), []
    space.load(cached)

    def in_use(path):
        asked.append(path)
        return True

    for number in range(100):
        assert fetch(space, cached, number, in_use=in_use)
    assert len(asked) < 50 * 50 * 0.6  # of the pieces at each of 50 drops, were one dropped each
