"""Cooking: samples of declared types from crude ones, by functions of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from energy_data.data.typed.samples import BASIC_FIELDS
from energy_data.errors import SpecError

T_sample = TypeVar("T_sample")
F = TypeVar("F", bound=Callable[..., Any])


@overload
def cooker(fn: F) -> F: ...
@overload
def cooker(
    fn: None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Callable[[F], F]: ...
def cooker(
    fn: F | None = None, *, need_cache: bool = False, need_primary: bool = False
) -> F | Callable[[F], F]:
    """Say what a cooking function needs besides the sample.

    need_cache: the cache pool of the run, as the argument `cache`. need_primary: the dataset the
    sample is from, as a file store in the argument `primary`. The file stores of `aux:` come by
    their names in any case.
    """

    def marked(cook: F) -> F:
        cook.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]  # functions take any
        cook.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]  # functions take any
        return cook

    return marked if fn is None else marked(fn)


@dataclass
class Cooker(Generic[T_sample]):
    """Makes a sample of a declared type from a crude one, which is a dict of parts.

    `cook(sample)`, with file stores and the cache as it needs them by keyword. It is used for the
    samples whose subflavors have all entries of `has_subflavors`; None: for all.
    """

    cook: Callable[..., T_sample]
    has_subflavors: dict[str, Any] | None = None

    @property
    def need_primary(self) -> bool:
        """Whether `cook` takes the dataset of the sample, as `primary`."""
        return getattr(self.cook, "__cooker_need_primary__", False)

    @property
    def need_cache(self) -> bool:
        """Whether `cook` takes the cache pool, as `cache`."""
        return getattr(self.cook, "__cooker_need_cache__", False)

    def is_match(self, subflavors: Mapping[str, Any]) -> bool:
        """Return whether the cooker is for samples with these subflavors."""
        wanted = self.has_subflavors or {}
        return all(name in subflavors and subflavors[name] == wanted[name] for name in wanted)


def matching_cooker(
    cookers: Sequence[Cooker[Any]], subflavors: Mapping[str, Any], where: str
) -> Cooker[Any]:
    """Return the first cooker for these subflavors. SpecError that names them if there is none."""
    for one in cookers:
        if one.is_match(subflavors):
            return one
    known = ", ".join(str(one.has_subflavors or "all samples") for one in cookers) or "none"
    raise SpecError(
        f"{where}: no cooker is for its subflavors {dict(subflavors)}, found cookers for {known}. "
        f"Add one to `cookers` of the task encoder: Cooker(cook=..., has_subflavors=...)."
    )


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """Return the `__` fields that every sample has, to hand on to the cooked sample.

    additional_source_info: where more of the sample came from.
    """
    found = {name: crude_sample[name] for name in BASIC_FIELDS if name in crude_sample}
    if additional_source_info:
        sources = tuple(crude_sample.get("__sources__") or ())
        found["__sources__"] = (*sources, *additional_source_info)
    return found
