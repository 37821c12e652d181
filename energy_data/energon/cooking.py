"""Cooking in a tree: the crude samples of each leaf by its cooker, with its file stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from energy_data.energon.trees import references_of
from energy_data.nodes.encode import EncodeSpec
from energy_data.references import leaf_entries
from energy_data.running import restore_key
from energy_data.spec import Spec
from energy_data.storage.file_store import DecodeFileStore, FileStore
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

    @classmethod
    def of(
        cls,
        encoder: Any,
        spec: Spec,
        subflavors: Mapping[str, Any],
        get_primary_aux: Callable[[], FileStore[Any]],
        aux: Mapping[str, FileStore[Any]],
    ) -> Cooking:
        """Return what cooks the leaves of `spec`, which have these subflavors and file stores."""
        references = references_of(spec)
        assert references is not None
        ids = [leaf.id for _, leaf in leaf_entries(references.of)]
        cooker = matching_cooker(encoder.cookers, subflavors, ", ".join(ids))
        stores = dict(aux)
        if cooker.need_primary and "primary" not in stores:
            stores["primary"] = get_primary_aux()
        if encoder.decoder is not None:
            stores = {
                name: DecodeFileStore(store, decoder=encoder.decoder)
                for name, store in stores.items()
            }
        return cls(encoder.cook_crude_sample, dict.fromkeys(ids, Recipe(cooker, stores)))

    def __call__(self, sample: Any) -> Any:
        """Return the sample, cooked if there is a recipe for it."""
        identity = restore_key(sample)
        recipe = self.recipes.get(identity[0]) if identity else None
        return sample if recipe is None else self.cook(sample, recipe.cooker, recipe.aux)


def cooked(spec: Spec, cooking: Cooking) -> Spec:
    """Return a tree whose samples are cooked; one that cooks already does so with more recipes."""
    if isinstance(spec, EncodeSpec) and isinstance(spec.encode, Cooking):
        recipes = {**spec.encode.recipes, **cooking.recipes}
        return evolve(spec, encode=evolve(spec.encode, recipes=recipes))
    return EncodeSpec(of=spec, encode=cooking)
