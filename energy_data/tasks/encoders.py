"""Task encoders that convert to types, or change another task encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energy_data.nodes.packing import Packing
from energy_data.tasks.collate import as_type, fields_of
from energy_data.tasks.encoder import (
    HOOKS,
    T_batch,
    T_encoded_sample,
    T_raw_batch,
    T_sample,
    TaskEncoder,
)
from energy_data.tasks.functions import stateless


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Converts samples and batches to types, field by field.

    A type is a dataclass, a NamedTuple or `dict`. Names of fields must match. A type may lack
    `__key__` and the other fields that describe a sample.
    """

    _encoded_sample_type: type[Any] | None = None
    _raw_batch_type: type[Any] | None = None
    _batch_type: type[Any] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | None = None,
    ) -> None:
        """Set the types that `encode_sample`, `batch` and `encode_batch` convert to."""
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Return the sample as the type of encoded samples."""
        return _converted(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return samples as one batch, of the type of raw batches if there is one."""
        if self._raw_batch_type is None:
            return super().batch(samples)
        return self._batch(samples, self._raw_batch_type, {"__subflavors__": list})

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return the batch as the type of batches."""
        return _converted(batch, self._batch_type)

    def _function(self, name: str) -> Callable[..., Any] | None:
        types = {
            "encode_sample": self._encoded_sample_type,
            "batch": self._raw_batch_type,
            "encode_batch": self._batch_type,
        }
        return getattr(self, name) if types.get(name) else super()._function(name)


def _converted(value: Any, kind: type[Any] | None) -> Any:
    if kind is None or isinstance(value, kind):
        return value
    return as_type(fields_of(value), kind)


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Changes some functions of another task encoder. Override them, and call `super()`."""

    def __init__(self, task_encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        """Wrap the task encoder that does everything not overridden here."""
        self._task_encoder = task_encoder
        self.cookers, self.decoder = task_encoder.cookers, task_encoder.decoder

    @property
    def packing(self) -> Packing | None:
        """The packing of the other task encoder."""
        return self._task_encoder.packing

    def _function(self, name: str) -> Callable[..., Any] | None:
        return super()._function(name) or self._task_encoder._function(name)


def _passed_on(name: str) -> Callable[[Any, Any], Any]:
    def call(self: Any, given: Any) -> Any:
        return getattr(self._task_encoder, name)(given)

    call.__name__ = name  # for messages and random numbers
    call.__doc__ = f"Return what `{name}` of the other task encoder returns."
    return call


for _name in HOOKS:
    setattr(AugmentTaskEncoder, _name, _passed_on(_name))
