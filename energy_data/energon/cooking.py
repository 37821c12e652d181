"""Cooking in a tree: the crude samples of each leaf by its cooker, with its file stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.spec import Spec
from energy_data.core.user_call import ErrorPolicy, restore_key
from energy_data.data.files.stores import DecodeFileStore, FileStore
from energy_data.data.registry import open_store
from energy_data.energon.trees import references_of
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaves import Leaf, leaf_entries
from energy_data.tasks.cooking import Cooker, matching_cooker


@frozen
class Recipe:
    """How the samples of one leaf are cooked."""

    cooker: Cooker[Any]
    aux: Mapping[str, FileStore[Any]]


@frozen
class Cooking:
    """The function that cooks the samples of a tree; those of leaves without recipe pass."""

    cook: Callable[..., Any]
    recipes: Mapping[str, Recipe] = field(eq=False)  # leaf id -> recipe

    def __call__(self, sample: Any) -> Any:
        """Return the sample, cooked if it is crude and there is a recipe for it."""
        identity = restore_key(sample)
        recipe = self.recipes.get(identity[0]) if identity else None
        if recipe is None or not isinstance(sample, dict):
            return sample
        return self.cook(sample, recipe.cooker, recipe.aux)


def recipe_of(
    encoder: Any,
    subflavors: Mapping[str, Any],
    get_primary_aux: Callable[[], FileStore[Any]],
    aux: Mapping[str, FileStore[Any]],
    where: str,
) -> Recipe:
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
    return Recipe(cooker, stores)


def cooked(spec: Spec, encoder: Any, recipe: Recipe, policy: ErrorPolicy) -> Spec:
    """Return a tree whose samples are all cooked by one recipe."""
    recipes = dict.fromkeys((leaf.id for leaf in _leaves(spec)), recipe)
    return _cooked(spec, encoder, recipes, policy)


def cooked_by_leaf(spec: Spec, encoder: Any, policy: ErrorPolicy) -> Spec:
    """Return a tree whose samples are cooked as each leaf needs."""
    recipes = {}
    for leaf in _leaves(spec):
        source = getattr(leaf.source, "inner", leaf.source)
        if not is_crude(leaf):
            continue
        path = str(getattr(source, "path", leaf.id))
        recipes[leaf.id] = recipe_of(
            encoder,
            getattr(source, "subflavors", {}),
            lambda path=path: open_store(path),  # type: ignore[misc]  # its type is plain
            leaf.aux,
            f"leaf {leaf.id!r}",
        )
    return _cooked(spec, encoder, recipes, policy)


def cooked_alike(spec: Spec, parts: Sequence[Spec]) -> Spec:
    """Return a tree cooked as its parts are, of which each is cooked or not."""
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


def is_crude(leaf: Leaf) -> bool:
    """Return whether the samples of a leaf are dicts of parts; joined ones never are."""
    typing = getattr(leaf.source, "typing", None)
    return typing is not None and typing.sample_type is None


def _cooked(spec: Spec, encoder: Any, recipes: Mapping[str, Recipe], policy: ErrorPolicy) -> Spec:
    if not recipes:
        return spec
    cooking = Cooking(encoder.cook_crude_sample, recipes)
    return EncodeSpec(of=spec, encode=cooking, on_failure=policy)


def _leaves(spec: Spec) -> list[Leaf]:
    references = references_of(spec)
    assert references is not None
    return [leaf for _, leaf in leaf_entries(references.of)]
