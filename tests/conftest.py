from __future__ import annotations

import gc
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from loading.gloo_ranks import Ranks

# A background job of a shell ignores SIGINT, and so would the tests that interrupt programs.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast a machine is never decides a test. `make test` tries the same examples everywhere;
# `make test-slow` looks for new ones.
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", anywhere, derandomize=True)
settings.register_profile("new", anywhere, derandomize=False, print_blob=True)
settings.load_profile("same")


def pytest_collection_finish():
    """Leave out of every later collection of garbage what all tests have."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def gloo_ranks():
    """Real ranks, started from one process for all tests."""
    ranks = Ranks()
    yield ranks
    ranks.close()
