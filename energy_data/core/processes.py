"""Starting processes that need nothing of the user's `__main__`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

_LOCK = threading.Lock()


@contextmanager
def without_main() -> Iterator[None]:
    """Hide `__main__`: processes started in the block do not import it.

    So the script needs no `if __name__ == "__main__":`, and does not run again in each process.
    """
    with _LOCK:
        main_module = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main_module
