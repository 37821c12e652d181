"""Samples of declared types, made from the parts of a sample as dataset.yaml declares.

source = open_typed("/data/coco", split_part="train")
source.read(np.arange(4))  # -> [CaptioningSample(image=..., caption=...), ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import astuple, define, evolve

from energy_data.core.arrays import Int64s
from energy_data.core.cut import Cut
from energy_data.core.lazy import cached_property
from energy_data.core.sample import SampleSource
from energy_data.data.decode.parts import UNWANTED, Decoding, SampleDecoder
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.registry import format_of, located, open_format
from energy_data.data.runs import RunOrder
from energy_data.data.source import OpenOptions, Source, Unit
from energy_data.data.typed.dataset_yaml import Typing, read_dataset_yaml
from energy_data.data.typed.field_map import FieldMap
from energy_data.data.typed.samples import CrudeSample, make_source_info
from energy_data.errors import ExcludedError, SampleError, SkipSample
from energy_data.remote.cache_space import Range

SampleCallable = Callable[[dict[str, Any]], Mapping[str, Any]]
"""A user's decoder: takes a sample whose parts are bytes, returns it decoded."""

DEFAULT_DECODER = SampleDecoder()

_BASIC = ("__key__", "__subflavors__", "__sources__")


def open_typed(
    path: str | Path,
    *,
    split_part: str = "train",
    subset: tuple[int, int | None] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    filter: str | None = None,  # noqa: A002 - the key of a metadataset
    decoder: SampleDecoder | SampleCallable | None = DEFAULT_DECODER,
    policy: ImportPolicy | None = None,
    typing: Typing | None = None,
    **keys: Any,
) -> TypedSource:
    """Return the samples of one part of a dataset as its dataset.yaml declares them.

    Without a dataset.yaml they are `CrudeSample`: dicts of parts by extension.

    Args:
        path: As for `energy_data.data.registry.open_source`.
        split_part: The part to read, unless dataset.yaml names one.
        subset: Samples [start, end) of the part; end None means to its end.
        subflavors: Added to `__subflavors__`; takes precedence over those of dataset.yaml.
        dataset_config: Name of another file in `.nv-meta` to use as dataset.yaml.
        split_config: Name of another file in `.nv-meta` to use as split.yaml.
        filter: Name of the filter index whose samples are read; None: all are.
        decoder: Decodes parts, unless dataset.yaml declares a decoder; None: they stay bytes.
        policy: The code that dataset.yaml may name; None: what the environment allows.
        typing: What dataset.yaml declares; None: it is read.
        keys: Keys that only datasets of one format have, such as `seq_len`.

    Raises SpecError for what does not exist, and for an error in dataset.yaml; StructureError
    for damaged files.
    """
    path = located(path)
    if typing is None:
        typing = read_dataset_yaml(Path(path), config=dataset_config, policy=policy)
    options = OpenOptions(
        split_part=typing.split_part or split_part,
        subset=subset,
        subflavors={**typing.subflavors, **(subflavors or {})},
        split_config=typing.split_config or split_config,
        filter=filter,
        keys=keys,
    )
    return _open(path, typing, decoder if typing.decoder == "unset" else typing.decoder, options)


def _open(path: str | Path, typing: Typing, decoder: Any, options: OpenOptions) -> TypedSource:
    found = format_of(path)
    if type(decoder) is SampleDecoder:
        options = evolve(options, decoding=decoder.decoding(typing.part_filter))
    elif not found.decodes_parts:
        decoder = DEFAULT_DECODER
    else:
        raw = Decoding(mode="bytes", part_filter=typing.part_filter)
        options = evolve(options, decoding=raw)
    function = None if type(decoder) is SampleDecoder else decoder
    return TypedSource(open_format(found, path, options), str(path), options, typing, function)


@define(eq=False, slots=False)
class TypedSource(Source):
    """Samples of a declared type; made by `open_typed`."""

    inner: Source
    path: str
    options: OpenOptions
    typing: Typing
    decoder: SampleCallable | None

    @property
    def part(self) -> Any:
        """The part of a dataset of tars; None for other formats."""
        return getattr(self.inner, "part", None)

    @property
    def bytes_read(self) -> int | None:  # type: ignore[override]  # counted by the inner source
        """What the inner source has read so far."""
        return self.inner.bytes_read

    @property
    def cut(self) -> Cut:
        """That of the dataset."""
        return self.inner.cut

    @property
    def run_length(self) -> int | None:
        """That of the dataset."""
        return self.inner.run_length

    @property
    def piece_length(self) -> int | None:
        """That of the dataset."""
        return self.inner.piece_length

    @property
    def run_order(self) -> RunOrder | None:
        """That of the dataset."""
        return self.inner.run_order

    @property
    def is_remote(self) -> bool:
        """That of the dataset."""
        return self.inner.is_remote

    def ranges(self, first: int, count: int) -> Sequence[Range] | None:
        """Return those of the dataset."""
        return self.inner.ranges(first, count)

    def fingerprint_ranges(self) -> Sequence[Range]:
        """Return those of the dataset."""
        return self.inner.fingerprint_ranges()

    def index_ranges(self, indices: Sequence[int]) -> Sequence[Range]:
        """Return those of the dataset."""
        return self.inner.index_ranges(indices)

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return those of the dataset."""
        return self.inner.costs(indices, unit)

    def total_cost(self, unit: Unit) -> int | None:
        """Return that of the dataset."""
        return self.inner.total_cost(unit)

    @property
    def warning(self) -> str | None:
        """That of the dataset."""
        return self.inner.warning

    def check_files(self) -> None:
        """Check the files of the dataset."""
        self.inner.check_files()

    def find(self, name: str) -> int | None:
        """Return the index of a sample in the dataset."""
        return self.inner.find(name)

    def __len__(self) -> int:
        return len(self.inner)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return type(self), astuple(self, recurse=False)

    @property
    def fingerprint(self) -> str:
        """Return that of the dataset: the type of a sample does not change which one it is."""
        return self.inner.fingerprint

    def read(self, indices: Int64s) -> list[Any]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        return self.read_together([self], np.zeros_like(wanted), wanted)

    @classmethod
    def read_together(
        cls, sources: Sequence[TypedSource], numbers: Int64s, indices: Int64s, *, rows: bool = False
    ) -> list[Any]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n."""
        inner = [source.inner for source in sources]
        if len(kinds := {type(one) for one in inner}) > 1:
            return super().read_together(sources, numbers, indices)
        if not len(indices):
            return []
        found: list[Any] = kinds.pop().read_together(inner, numbers, indices)
        wanted = indices.tolist()
        for (number, names), places in _alike(numbers.tolist(), found).items():
            if names:  # else they are errors
                sources[number]._type(found, places, [wanted[place] for place in places], names)
        return found

    @cached_property
    def _make(self) -> Callable[[dict[str, Any]], Any]:
        """The function that makes a sample from parts and `__` fields."""
        kind, fields, decoder = self.typing.sample_type, self.typing.fields, self.decoder
        if kind is None or fields is None:
            return CrudeSample if decoder is None else lambda raw: CrudeSample(**decoder(raw))

        def make(raw: dict[str, Any]) -> Any:
            made = {
                "__key__": raw["__key__"],
                **fields(raw if decoder is None else dict(decoder(raw))),
                "__restore_key__": raw["__restore_key__"],
                "__subflavors__": raw["__subflavors__"],
                "__sources__": raw["__sources__"],
            }
            return kind(**made)

        return make

    def _type(
        self, found: list[Any], places: Sequence[int], indices: list[int], names: tuple[str, ...]
    ) -> None:
        """Replace samples that have the same names by samples of the type, made of their parts."""
        make = self._make
        unwanted = [name for name in names if found[places[0]][name] is UNWANTED]
        parts = [name for name in names if name not in (*_BASIC, *unwanted)]
        keys = [found[place]["__key__"] for place in places]
        columns = [[f"{key}.{name}" for key in keys] for name in parts]
        files = list(zip(*columns, strict=True)) or [()] * len(places)
        rows = self.inner.rows_of(indices)
        for place, row, of_sample in zip(places, rows, files, strict=True):
            sample = found[place]
            for name in unwanted:
                del sample[name]
            source = sample["__sources__"][0]
            sample["__shard__"] = source.shard
            sample["__restore_key__"] = "Webdataset", row
            info = make_source_info((source.dataset, row, source.shard, of_sample))
            sample["__sources__"] = (info,)
            try:
                found[place] = make(sample)
            except (MemoryError, RecursionError, ImportError):
                raise
            except Exception as error:  # noqa: BLE001 - code and data of users: reported with the sample
                found[place] = self._fault(error, sample["__key__"], source)

    def _fault(self, error: Exception, key: str, source: SampleSource) -> SampleError:
        """Return the error that takes the place of a sample that could not be made."""
        if isinstance(error, SkipSample):
            return _error(ExcludedError, "excluded by its sample_loader.", key, source)
        by_map = isinstance(error, KeyError) and isinstance(self.typing.fields, FieldMap)
        what = str(error.args[0]) if by_map else f"{type(error).__name__}: {error}"
        kind = self.typing.sample_type.__name__ if self.typing.sample_type else "crude sample"
        problem = f"cannot make a {kind} from it: {what}. Check dataset.yaml."
        fault = _error(SampleError, problem, key, source)
        fault.__cause__ = error
        return fault


Alike = tuple[int, tuple[str, ...]]
"""The number of a source, and the names in its samples; none: they are errors."""


def _alike(numbers: list[int], samples: list[Any]) -> Mapping[Alike, Sequence[int]]:
    """Return the places of samples of one source that have the same names, in the same order."""
    names = [tuple(one) if isinstance(one, dict) else () for one in samples]
    count = len(samples)
    if numbers.count(numbers[0]) == names.count(names[0]) == count:
        return {(numbers[0], names[0]): range(count)}
    places: dict[Alike, list[int]] = {}
    for place, kind in enumerate(zip(numbers, names, strict=True)):
        places.setdefault(kind, []).append(place)
    return places


def _error(kind: type[SampleError], problem: str, key: str, source: SampleSource) -> SampleError:
    return kind(
        problem,
        dataset=source.dataset,
        shard=source.shard,
        key=key,
        index=source.index if isinstance(source.index, int) else None,
    )
