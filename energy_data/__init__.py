"""One exact, resumable stream of training batches from many datasets.

    from energy_data import get_loader, get_train_dataset

    loader = get_loader(get_train_dataset("meta.yaml", batch_size=32))
    for batch in loader: ...
    state = loader.state_dict()

The order of samples is arithmetic, state belongs to lanes, hardware only hosts lanes: see
docs/architecture.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from energy_data.public import *  # noqa: F403 - it lists them
    from energy_data.public import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Return a public name. They are imported with the first, so that commands start fast."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("energy_data.public"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *import_module("energy_data.public").__all__])
