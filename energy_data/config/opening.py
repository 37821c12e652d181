"""Opening leaves: the source of their samples, the files for their cookers, and their joins."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from attrs import field, frozen

from energy_data.config.keys import JoinSpec, PathSpec
from energy_data.config.leaves import DatasetPart, LeafUse, is_remote, leaf_uses
from energy_data.config.load import LoadedMetadataset
from energy_data.config.rules import Aux
from energy_data.config.yaml_nodes import Diagnostics
from energy_data.core.spec import Spec
from energy_data.data.files.stores import ByteRangeStore, FileStore, SystemFileStore
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.join import Joiner, open_join
from energy_data.data.join_table import PREFIX, SUFFIX, JoinMember, Kept, open_table
from energy_data.data.registry import located, open_store
from energy_data.data.source import Source
from energy_data.errors import SpecError
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import OrderSpec
from energy_data.remote.mirror_paths import is_url
from energy_data.remote.mirrors import looked_at

log = logging.getLogger(__name__)

Range = tuple[int, int | None]

OpenSource: TypeAlias = Callable[..., Source]
"""Opens one dataset; `energy_data.data.registry.open_source` is one.

Called with the path, and by name `split_part`, `subset` (samples [start, end), end None: the last;
or None), `subflavors`, and, only where the metadataset gives them, `dataset_config` and
`split_config`: names of files in `.nv-meta` to read in place of `dataset.yaml` and `split.yaml`.
SpecError if there is no such dataset or part.
"""


@frozen(kw_only=True)
class Options:
    """Options of a run for all its datasets."""

    shuffle_over_epochs_multiplier: int | None = 1  # at the root of the tree
    trust: ImportPolicy = field(factory=ImportPolicy.of)  # code that files may name
    # Opens datasets that are joined to a declared type, typed by dataset.yaml; None: `open_source`.
    open_typed: OpenSource | None = None
    # Returns the mean tokens of the samples of a leaf, where weights are of tokens and no index has
    # them; None: not known.
    measure: Callable[[Leaf], Fraction | None] = lambda _: None


class Built(Protocol):
    """A dataset of batches."""

    @property
    def spec(self) -> Spec:
        """Its tree."""


B_co = TypeVar("B_co", bound=Built, covariant=True)


class Builder(Protocol[B_co]):
    """Builds the batches of a mixture: those of a run, or of one of its stages.

    `energy_data.tasks.mixture.StreamBuilder` is one.
    """

    @property
    def finite(self) -> bool:
        """Whether the stream is one pass."""

    @property
    def samples_per_batch(self) -> int:
        """Samples, or packs, in a micro-batch."""

    @property
    def samples_per_microbatch(self) -> int | None:
        """Samples drawn for a micro-batch, on average; None: as many as it has."""

    @property
    def microbatches_per_step(self) -> int | None:
        """Micro-batches of all ranks in an optimizer step."""

    @property
    def params(self) -> Mapping[str, Any]:
        """What a stage may change, with the values it has here."""

    def with_params(self, params: Mapping[str, Any]) -> Self:
        """Return the builder with some of its `params` changed. SpecError for an invalid value."""

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> B_co:
        """Return the batches of a mixture, from a micro-batch of the run on."""

    def of(self, spec: Spec) -> B_co:
        """Return a tree of batches as a dataset."""


@frozen(eq=False)
class Opener:
    """Opens leaves; equal parts of datasets are opened once."""

    _open_source: OpenSource
    _options: Options
    _sources: dict[tuple[object, ...], Source] = field(factory=dict)
    _stores: dict[Aux, FileStore[bytes]] = field(factory=dict)

    def samples(self, leaf: LeafUse, subset: Range | None = None) -> Source:
        """Return the samples of a leaf, or a range of them."""
        if isinstance(leaf.recipe, PathSpec):
            return self._dataset(leaf.parts[0], subset)
        names = leaf.recipe.names
        joiner, code = self._joiner(leaf.recipe), leaf.recipe.joiner
        subflavors = json.dumps([part.subflavors for part in leaf.parts], default=str)
        key = (leaf.parts, subflavors, names, code, subset)
        if key not in self._sources:
            typed = self._options.open_typed if isinstance(joiner, type) else None
            members = self.members(leaf, typed)
            self._sources[key] = open_join(
                dict(zip(names, members, strict=True)) if names else members,
                joiner=joiner,
                subset=subset,
                folder=leaf.cache,
            )
        return self._sources[key]

    def members(self, leaf: LeafUse, typed: OpenSource | None = None) -> list[JoinMember]:
        """Return the datasets of a join. typed: opens them, in place of `open_source`."""
        return [JoinMember(self._dataset(part, None, typed), part.nonmatch) for part in leaf.parts]

    def stores(self, leaf: LeafUse) -> dict[str, FileStore[bytes]]:
        """Return the files for cookers, by name. Raises SpecError if a path has none."""
        for name, aux in leaf.aux.items():
            if aux in self._stores:
                continue
            if aux.kind == "path":
                self._stores[aux] = open_store(located(aux.path, aux.storage))
            elif is_remote(aux.path) or Path(aux.path).is_dir():
                store = SystemFileStore if aux.kind == "fs_path" else ByteRangeStore
                self._stores[aux] = store(aux.path, aux.storage)
            else:
                raise SpecError(f"{name!r}: there is no folder {aux.path}. Check the path.")
        return {name: self._stores[aux] for name, aux in leaf.aux.items()}

    def _dataset(
        self, part: DatasetPart, subset: Range | None, typed: OpenSource | None = None
    ) -> Source:
        subflavors = json.dumps(part.subflavors, sort_keys=True, default=str)
        key = (part, part.windows, subset, subflavors, typed)
        if key not in self._sources:
            source = self._sources[key] = (typed or self._open_source)(
                located(part.path, part.storage),
                split_part=part.split_part,
                subset=subset,
                subflavors=part.subflavors,
                **dict(part.config),
                **dict(part.windows),
            )
            if source.warning:
                log.warning("%s", source.warning)
        return self._sources[key]

    def _joiner(self, recipe: JoinSpec) -> Joiner | None:
        code = recipe.joiner
        if code is None:
            return None
        from energy_data.data.typed.sample_types import SAMPLE_TYPES

        joiner = self._options.trust.find(code.module, code.name, SAMPLE_TYPES)
        if not callable(joiner) or isinstance(joiner, type) != code.is_class:
            what = "class" if code.is_class else "function"
            raise SpecError(f"{code} is not a {what}, found {joiner!r}. Name one.")
        if code.is_class and not hasattr(joiner, "from_joined"):
            raise SpecError(
                f"{code} cannot be created from joined samples: it has no class method "
                "`from_joined`. Derive it from Sample, or name a function by `__function__`."
            )
        found: Joiner = joiner
        return found


def looked_at_together(leaves: Iterable[LeafUse]) -> AbstractContextManager[None]:
    """Look at all datasets of leaves that are in stores at once, for openers in the block."""
    parts = (part for leaf in leaves for part in leaf.parts if is_url(part.path))
    return looked_at((part.path, part.storage) for part in parts)


@frozen(kw_only=True)
class PreparedJoin:
    """A join of one split, computed."""

    split: str
    id: str  # of the leaf
    table: Kept


def prepare_joins(metadataset: LoadedMetadataset, *, open_source: OpenSource) -> list[PreparedJoin]:
    """Compute the joins of all splits, and of the files they name; keep those that are computed.

    Tables next to the outermost file that are no longer needed are removed. Code that files name is
    not run. Raises SpecError with every problem, StructureError for damage.
    """
    opener, diagnostics = Opener(open_source, Options()), Diagnostics()
    prepared: list[PreparedJoin] = []
    for split in metadataset.splits:
        for leaf in leaf_uses(metadataset.tree(split)):
            if leaf.recipe.kind != "join":
                continue
            try:
                table = open_table(opener.members(leaf), leaf.cache)
                prepared.append(PreparedJoin(split=split, id=leaf.id, table=table))
            except SpecError as error:
                origin = metadataset.origins.of(leaf.recipe)
                for problem in error.faults:
                    text = f"leaf {leaf.id!r}: {problem}"
                    diagnostics.report(origin.locate("join")[0], origin.where, text)
    diagnostics.raise_if_any()
    if metadataset.root.key and not is_remote(metadataset.root.key):
        _remove_others(Path(f"{metadataset.root.key}.cache"), {one.table.path for one in prepared})
    return prepared


def _remove_others(folder: Path, needed: set[str]) -> None:
    for file in folder.glob(f"{PREFIX}*{SUFFIX}"):
        if str(file) not in needed:
            file.unlink()
