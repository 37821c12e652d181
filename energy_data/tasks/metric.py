"""Sample size metrics: what weights by tokens measure samples with, where no index counts them.

The mean is measured before the order is made, over the same samples of a dataset on every rank. So
the order is a function of the data and of the task encoder alone, and is exact for these means.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from energy_data.core.sample import set_field
from energy_data.core.user_call import CALL, RESTORE_KEY, FunctionInfo, name_of
from energy_data.errors import SampleError, SkipSample, SpecError
from energy_data.nodes.leaf import Leaf
from energy_data.tasks.functions import is_crude, leaf_recipe

if TYPE_CHECKING:  # it uses these functions
    from energy_data.tasks.encoder import TaskEncoder

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

MEASURED = 256  # samples of a dataset, at equal distances
_UNIT = "__sample_size_unit__"


@overload
def sample_size_metric(unit: F) -> F: ...
@overload
def sample_size_metric(unit: str) -> Callable[[F], F]: ...
def sample_size_metric(unit: str | F) -> F | Callable[[F], F]:
    """Declare that a method of a task encoder measures samples: `@sample_size_metric("tokens")`.

    It takes a sample as cookers make it, and returns its size, a number >= 0. Without a unit, that
    is the name of the method. In blends with `weight_unit: tokens`, datasets whose tokens are not
    declared or counted get the mean of the metric over up to 256 of their samples. It is measured
    when the dataset is made, on every rank; `tokens_per_sample` in the metadataset takes its place.
    """

    def marked(function: F, name: str) -> F:
        setattr(function, _UNIT, name)
        return function

    if isinstance(unit, str):
        return lambda function: marked(function, unit)
    return marked(unit, unit.__name__)


def mean_size(
    leaf: Leaf, encoder: TaskEncoder[Any, Any, Any, Any], unit: str, seed: int
) -> Fraction | None:
    """Return the mean size of the samples of a leaf; None if there is no metric of the unit.

    Reads up to 256 samples. Samples that cannot be read, cooked or measured do not count. Raises
    SpecError if that are all, or if the metric returns no number.
    """
    metric = _metric(encoder, unit)
    if metric is None:
        return None
    numbers = np.unique(np.linspace(0, leaf.num_samples - 1, MEASURED).astype(np.int64))
    cook = leaf_recipe(encoder, leaf) if encoder.cookers and is_crude(leaf) else _as_it_is
    info = FunctionInfo(seed, name_of(metric))
    sizes, problem = list[Fraction](), "all are bad"
    for number, sample in zip(numbers.tolist(), leaf.source.read(numbers), strict=True):
        if isinstance(sample, SampleError):
            continue
        set_field(RESTORE_KEY, [sample], [(leaf.id, 0, number)])  # for random numbers
        outer = CALL.enter(info, [sample])
        try:
            size = metric(cook(sample))
        except SkipSample:
            continue
        except Exception as error:  # noqa: BLE001 - the run skips such samples too
            problem = f"the last raised {type(error).__name__}: {error}"
            continue
        finally:
            CALL.leave(outer)
        sizes.append(_checked(size, info.name))
    if not sum(sizes):
        raise SpecError(
            f"leaf {leaf.id!r}: {info.name} measured 0 {unit} in {len(sizes)} of {len(numbers)} "
            f"samples ({problem}). Correct it, or declare `tokens_per_sample`."
        )
    mean = sum(sizes, Fraction(0)) / len(sizes)
    log.info("leaf %r: %s measured %.6g %s per sample", leaf.id, info.name, mean, unit)
    return mean


def _metric(encoder: TaskEncoder[Any, Any, Any, Any], unit: str) -> Callable[[Any], Any] | None:
    names = (name for name in dir(type(encoder)) if not name.startswith("__"))
    found = (name for name in names if getattr(getattr(type(encoder), name), _UNIT, None) == unit)
    name = next(found, None)
    return None if name is None else getattr(encoder, name)


def _as_it_is(sample: Any) -> Any:
    return sample


def _checked(size: Any, name: str) -> Fraction:
    try:
        number = float(size)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise SpecError(f"{name}: a size is a number >= 0, got {size!r}. Return one.")
    return Fraction(number)
