"""Errors of batches that cannot be sent to the trainer: which sample it is, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from energy_data.core.sample import describe_source, first_of, sample_field
from energy_data.errors import FatalSampleError, add_note
from energy_data.loading.transport.codec import encode


def explain(error: Exception, batch: Any) -> None:
    """Add to the error of encoding a batch which sample and field it is of.

    Raises FatalSampleError instead of a RecursionError, which does not say what is wrong.
    """
    number, name = _culprit(batch)
    where = describe_source(_sample(batch, number or 0))
    if number is None:
        where = f"the batch that begins with {where}"
    what = f"its field {name!r}" if name else "it"
    if isinstance(error, RecursionError):
        raise FatalSampleError(
            f"{where}: {what} is nested too deep to be sent from the worker to the trainer. "
            "Return it less nested from the task encoder."
        ) from error
    add_note(error, f"{where}: while sending {what} to the trainer: it must be picklable")


def _culprit(batch: Any) -> tuple[int | None, str | None]:
    """Return the sample that cannot be encoded, and its field, as far as they are known.

    The sample is its number in the batch. It is known if the field is a list over samples.
    """
    keys = sample_field(batch, "__key__")
    for name in batch if isinstance(batch, dict) else getattr(batch, "__dataclass_fields__", ()):
        values = sample_field(batch, name)
        if _fails(values):
            if isinstance(values, list) and isinstance(keys, list) and len(values) == len(keys):
                return next((n for n, value in enumerate(values) if _fails(value)), None), name
            return None, name
    return None, None


def _fails(value: Any) -> bool:
    try:
        encode(value)
    except Exception:  # noqa: BLE001 - pickling can raise any error
        return True
    return False


def _sample(batch: Any, number: int) -> Any:
    """Return the fields that name a sample of a batch; without them, the batch or its first."""
    keys, sources = sample_field(batch, "__key__"), sample_field(batch, "__sources__")
    if not (isinstance(keys, list) and isinstance(sources, Sequence) and number < len(keys)):
        return first_of(batch)
    of_sample = sources[number] if len(sources) == len(keys) else sources
    is_one = hasattr(of_sample, "shard")
    return {"__key__": keys[number], "__sources__": (of_sample,) if is_one else of_sample}
