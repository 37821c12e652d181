"""A callback for the Trainer of Hugging Face: it saves and restores the position of a loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from energy_data.data.files.local import write_atomically
from energy_data.errors import MissingExtraError, StateError, StateMissingError
from energy_data.loading.savable_loader import SavableDataLoader

try:
    from transformers import TrainerCallback  # type: ignore[import-not-found]  # an extra
except ImportError as error:
    raise MissingExtraError("energy_data.integrations.transformers", "transformers") from error

FILE = "energy_data.json"
"""In the folder of a checkpoint."""


class LoaderCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not there for mypy
    """Writes the position of the run into each checkpoint, and restores it when a run resumes.

    Any number of ranks may resume. The trainer must have `ignore_data_skip=True`, as it would skip
    batches again, and return `loader` from `get_train_dataloader`.

    resume_from: the checkpoint to restore. By default that of the same step in `output_dir`.
    """

    def __init__(
        self, loader: SavableDataLoader[Any], *, resume_from: str | Path | None = None
    ) -> None:
        self.loader, self.resume_from = loader, resume_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the position if the run resumes. StateMissingError if there is none."""
        if not state.global_step:
            return
        if not args.ignore_data_skip:
            raise StateMissingError(
                "LoaderCallback: the trainer would skip batches that the loader does not return "
                "again. Set TrainingArguments(ignore_data_skip=True)."
            )
        file = Path(self.resume_from or _folder(args, state), FILE)
        if not file.is_file():
            raise StateMissingError(
                f"{file}: the position of the loader is not in the checkpoint. Pass "
                f"LoaderCallback(resume_from=...), the folder that the run resumes from."
            )
        try:
            position = json.loads(file.read_text())
        except ValueError as error:
            problem = f"it is damaged: {error}. Resume from another checkpoint."
            raise StateError(f"{file}: {problem}") from error
        self.loader.load_state_dict(position)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the position. A collective over the data-parallel group."""
        position = self.loader.state_dict(scope="run")
        if state.is_world_process_zero:
            path = f"{_folder(args, state)}/{FILE}"
            write_atomically(path, json.dumps(position).encode(), 0o644)


def _folder(args: Any, state: Any) -> str:
    return f"{args.output_dir}/checkpoint-{state.global_step}"
