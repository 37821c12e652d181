"""Cooking: functions of the task encoder turn crude samples into typed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from attrs import evolve, field, frozen

from energy_data.core.spec import Spec
from energy_data.core.user_call import ErrorPolicy, restore_key
from energy_data.data.files.stores import DecodeFileStore, FileStore
from energy_data.data.join import JoinSource
from energy_data.data.registry import open_store
from energy_data.data.source import OpenOptions
from energy_data.data.typed.samples import BASIC_FIELDS
from energy_data.errors import SpecError
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf, leaf_entries
from energy_data.nodes.references import ReferencesSpec

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
    """Declare what a cooking function needs besides the sample.

    need_cache: the cache pool of the run, as the argument `cache`. need_primary: the dataset of the
    sample, as a file store in the argument `primary`. The file stores of `aux:` are always passed,
    by their names.
    """

    def marked(cook: F) -> F:
        cook.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]  # functions take any
        cook.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]  # functions take any
        return cook

    return marked if fn is None else marked(fn)


@dataclass
class Cooker(Generic[T_sample]):
    """Makes a sample of a declared type from a crude one, which is a dict of parts.

    `cook(sample)` is called, with the file stores and the cache it needs by keyword, for samples
    whose subflavors contain all entries of `has_subflavors`. None: for all samples.
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
        f"{where}: no cooker matches its subflavors {dict(subflavors)}, found cookers for {known}. "
        f"Add one to `cookers` of the task encoder: Cooker(cook=..., has_subflavors=...)."
    )


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """Return the `__` fields that every sample has, to pass them on to the cooked sample.

    additional_source_info: further sources that the sample was made from.
    """
    found = {name: crude_sample[name] for name in BASIC_FIELDS if name in crude_sample}
    if additional_source_info:
        sources = tuple(crude_sample.get("__sources__") or ())
        found["__sources__"] = (*sources, *additional_source_info)
    return found


class Cook(Protocol):
    """The part of a task encoder that cooks."""

    cookers: Sequence[Cooker[Any]]
    decoder: Any

    def cook_crude_sample(
        self, sample: Any, cooker: Cooker[Any], aux: Mapping[str, FileStore[Any]]
    ) -> Any:
        """Return a crude sample cooked."""


@frozen
class LeafCooking:
    """How the samples of one leaf are cooked."""

    cooker: Cooker[Any]
    aux: Mapping[str, FileStore[Any]]


@frozen
class Cooking:
    """The function that cooks the samples of a tree. Samples of other leaves are not changed."""

    cook: Callable[..., Any]
    recipes: Mapping[str, LeafCooking] = field(eq=False)  # leaf id -> recipe

    def __call__(self, sample: Any) -> Any:
        """Return the sample, cooked if it is crude and there is a recipe for it."""
        identity = restore_key(sample)
        recipe = self.recipes.get(identity[0]) if identity else None
        if recipe is None or not isinstance(sample, dict):
            return sample
        return self.cook(sample, recipe.cooker, recipe.aux)


def recipe_of(
    encoder: Cook,
    subflavors: Mapping[str, Any],
    get_primary_aux: Callable[[], FileStore[Any]],
    aux: Mapping[str, FileStore[Any]],
    where: str,
) -> LeafCooking:
    """Return how samples with these subflavors and file stores are cooked.

    SpecError if the encoder has no cooker for them.
    """
    cooker = matching_cooker(encoder.cookers, subflavors, where)
    stores = dict(aux)
    if cooker.need_primary and "primary" not in stores:
        stores["primary"] = get_primary_aux()
    if encoder.decoder is not None:
        stores = {
            name: DecodeFileStore(store, decoder=encoder.decoder) for name, store in stores.items()
        }
    return LeafCooking(cooker, stores)


def cooked(spec: Spec, encoder: Cook, recipe: LeafCooking, policy: ErrorPolicy) -> Spec:
    """Return a tree whose samples are all cooked by one recipe."""
    recipes = dict.fromkeys((leaf.id for leaf in _leaves(spec)), recipe)
    return _cooked(spec, encoder, recipes, policy)


def cooked_by_leaf(spec: Spec, encoder: Cook, policy: ErrorPolicy) -> Spec:
    """Return a tree whose samples are cooked as each leaf needs."""
    recipes = {}
    for leaf in _leaves(spec):
        source = getattr(leaf.source, "inner", leaf.source)
        if not is_crude(leaf):
            continue
        path = str(getattr(source, "path", leaf.id))
        recipes[leaf.id] = recipe_of(
            encoder,
            subflavors_of(leaf),
            lambda path=path: open_store(path),  # type: ignore[misc]  # its type is plain
            leaf.aux,
            f"leaf {leaf.id!r}",
        )
    return _cooked(spec, encoder, recipes, policy)


def cooked_alike(spec: Spec, parts: Sequence[Spec]) -> Spec:
    """Return a tree with the cooking of those of its parts that are cooked."""
    for part in parts:
        if isinstance(part, EncodeSpec) and isinstance(part.encode, Cooking):
            if isinstance(spec, EncodeSpec) and isinstance(spec.encode, Cooking):
                recipes = {**spec.encode.recipes, **part.encode.recipes}
                spec = evolve(spec, encode=evolve(spec.encode, recipes=recipes))
            else:
                spec = evolve(part, of=spec)
    return spec


def uncooked(spec: Spec) -> Spec:
    """Return the tree below cooking."""
    return spec.of if isinstance(spec, EncodeSpec) and isinstance(spec.encode, Cooking) else spec


def subflavors_of(leaf: Leaf) -> dict[str, Any]:
    """Return the subflavors of all samples of a leaf. Joined samples have their own."""
    options = getattr(getattr(leaf.source, "inner", leaf.source), "options", None)
    return dict(options.subflavors) if isinstance(options, OpenOptions) else {}


def is_crude(leaf: Leaf) -> bool:
    """Return whether the samples of a leaf are dicts of parts. Joined samples never are."""
    typing = getattr(leaf.source, "typing", None)
    if typing is None:
        return not isinstance(leaf.source, JoinSource)
    crude: bool = typing.sample_type is None
    return crude


def _cooked(
    spec: Spec, encoder: Cook, recipes: Mapping[str, LeafCooking], policy: ErrorPolicy
) -> Spec:
    if not recipes:
        return spec
    cooking = Cooking(encoder.cook_crude_sample, recipes)
    return EncodeSpec(of=spec, encode=cooking, on_failure=policy)


def _leaves(spec: Spec) -> list[Leaf]:
    orders = [inner.of for _, inner in spec.walk() if isinstance(inner, ReferencesSpec)]
    return [leaf for order in orders for _, leaf in leaf_entries(order)]
