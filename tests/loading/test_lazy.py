"""Properties that are computed once, in threads and in forked processes."""

from __future__ import annotations

import os
import threading
from multiprocessing import get_context

from energy_data.core.lazy import cached_property

PARENT = os.getpid()
STARTED, RELEASED = threading.Event(), threading.Event()


class Slow:
    """Its value takes a while in this process."""

    @cached_property
    def value(self):
        """The value."""
        if os.getpid() == PARENT:
            STARTED.set()
            RELEASED.wait(60)
        return object()


def test_a_process_forked_while_a_thread_computes_a_property_can_compute_it():
    slow = Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert STARTED.wait(60)
    process = get_context("fork").Process(target=lambda: Slow().value)
    process.start()
    process.join(60)
    try:
        assert process.exitcode == 0
    finally:
        process.kill()
        RELEASED.set()
        thread.join()
    assert slow.value is slow.value
    assert Slow.value.__doc__ == "The value."
