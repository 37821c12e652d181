"""States in files, as commands take them."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState, merge
from energy_data.loading.checkpoint.saved_run import SavedRun


def saved_states(path: Path) -> list[Any]:
    """Return the states in a file: one, or a list of those of several ranks; JSON or torch.save.

    Raises StateError if it is neither.
    """
    try:
        found = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError):
        try:
            found = torch.load(path, weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise StateError(
                f"{path}: it is neither JSON nor of torch.save. Pass what was saved of "
                f"`state_dict()` or `save_state_rank()`, by itself."
            ) from error
    return found if isinstance(found, list) else [found]


def saved_run(paths: Sequence[Path]) -> RunState:
    """Return the state of a whole run, or of a single rank. Raises a StateError."""
    states = [RunState.from_dict(state) for path in paths for state in saved_states(path)]
    if not states:
        raise StateError(f"{paths[0]}: there is none in it. Look at what was saved.")
    return states[0] if len(states) == 1 else merge(states)


def drawn_by(state: RunState) -> Counter[str] | None:
    """Return how often each leaf was drawn in the lanes of a state; None: a finite stream."""
    try:
        run = SavedRun(state)
    except StateMismatchError:
        return None
    drawn: Counter[str] = Counter()
    for lane in state.places:
        drawn.update(run.past(lane).drawn)
    return drawn
