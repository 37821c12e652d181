"""Functions of users: `stateless` marks them, and cookers make typed samples of crude ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from attrs import evolve, field, frozen

from energy_data.core.recipe import check_whole
from energy_data.core.rng import GlobalSeeds, SampleRng, call_rng, sample_seed
from energy_data.core.user_call import CALL, RESTORE_KEY, Call
from energy_data.data.files.cache import CachePool, NoCachePool
from energy_data.data.files.stores import DecodeFileStore, FileStore
from energy_data.data.join import JoinSource
from energy_data.data.registry import open_store
from energy_data.data.source import OpenOptions
from energy_data.data.typed.samples import BASIC_FIELDS
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf, leaves_of

if TYPE_CHECKING:  # it uses these functions
    from energy_data.tasks.encoder import TaskEncoder

T_sample = TypeVar("T_sample")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TOLERANCE = 100  # failures in a row, in one lane
_END = object()


@overload
def stateless(fn: F) -> F: ...
@overload
def stateless(
    fn: None = None,
    *,
    restore_seeds: bool = False,
    restore_task_encoder_seeds: bool = False,
    skip_safe: bool = False,
    failure_tolerance: int | None = None,
) -> Callable[[F], F]: ...
def stateless(
    fn: F | None = None,
    *,
    restore_seeds: bool = False,
    restore_task_encoder_seeds: bool = False,
    skip_safe: bool = False,
    failure_tolerance: int | None = None,
) -> F | Callable[[F], F]:
    """Declare that a function of a task depends on its arguments alone.

    Every function of a task must, or a restored run continues differently. Without arguments the
    decorator therefore changes nothing.

    Args:
        fn: The function, or method, where the decorator is used without parentheses.
        restore_seeds: The function draws from the global generators of `random`, numpy or torch.
            They are seeded for each call from the seed of the run and the current sample, and
            restored afterwards, so the augmentation of a sample is the same in any process.
            Not possible in worker threads (SpecError), which share these generators with the
            trainer. `energy_data.sample_rng()` needs no global state, and costs less.
        restore_task_encoder_seeds: Accepted and ignored: `TaskEncoder.rng` is seeded for each call.
        skip_safe: Accepted and ignored: no lane makes what another one returns.
        failure_tolerance: The run stops with FatalSampleError after this many failures in a row in
            one lane; 0: never. None: that of the task encoder, 100 by default.
    """
    if failure_tolerance is not None:
        check_whole("stateless: failure_tolerance", failure_tolerance, 0)

    def marked(function: F) -> F:
        made = _seeding(function) if restore_seeds else function
        made.__stateless__ = True  # type: ignore[attr-defined]  # functions take any
        if failure_tolerance is not None:
            made.__failure_tolerance__ = failure_tolerance  # type: ignore[attr-defined]  # as above
        return made

    return marked if fn is None else marked(fn)


def skip_safe(fn: F) -> F:
    """Return the function. Energon 8 may leave it out for batches that are not returned.

    Here each batch is made once, on the lane that returns it.
    """
    return fn


def _seeding(function: F) -> F:
    """Return the function with the global generators seeded for the current sample."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with GlobalSeeds(sample_seed()):
            return function(*args, **kwargs)

    @wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        seeds, items = GlobalSeeds(sample_seed()), function(*args, **kwargs)
        while True:
            with seeds:
                item = next(items, _END)
            if item is _END:
                return
            yield item

    return generate if inspect.isgeneratorfunction(function) else call  # type: ignore[return-value]  # called as `function` is


class RunningCall:
    """What a task encoder knows of its function that runs now, and of the item."""

    @property
    def cache(self) -> CachePool:
        """The cache pool of the loader. Without one, a pool that reads on demand."""
        return (CALL.function and CALL.function.cache) or NoCachePool()

    @property
    def current_batch_index(self) -> int:
        """The number in the run of the micro-batch that is being made."""
        return CALL.batch

    @property
    def current_sample_index(self) -> int:
        """A 63-bit hash of the seed, the running function and its sample; it is not a count."""
        return sample_seed() >> 1

    @property
    def rng(self) -> SampleRng:
        """Generators for the function and its sample: `rng.numpy`, `rng.torch`, `rng.random`.

        They are seeded for each call, as those of `sample_rng()`, and continue within it.
        """
        return call_rng()


@frozen
class BatchAndEncode:
    """`batch`, followed by `encode_batch`. A batch that the latter skips is made up for, too."""

    __name__ = "batch"  # for messages and random numbers

    batch: Callable[[list[Any]], Any]
    encode: Callable[[Any], Any]

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch. Each function has its own random numbers."""
        raw = self.batch(samples)
        if (function := CALL.function) is not None:
            call, encoding = function.call, evolve(function, name="encode_batch", call=Call())
            CALL.enter(encoding, (call.item,), (call.reference,))
        return self.encode(raw)


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
    has_tags: InitVar[dict[str, Any] | None] = None  # Energon 8's name of it

    def __post_init__(self, has_tags: dict[str, Any] | None) -> None:
        if has_tags is not None and self.has_subflavors is not None:
            raise SpecError("Cooker: has_tags is another name of has_subflavors. Pass one of them.")
        self.has_subflavors = self.has_subflavors if has_tags is None else has_tags

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
        return (self.has_subflavors or {}).items() <= subflavors.items()


def basic_sample_keys(
    crude_sample: Mapping[str, Any], additional_source_info: tuple[Any, ...] = ()
) -> dict[str, Any]:
    """Return the `__` fields that every sample has, to pass them on to the cooked sample.

    additional_source_info: further sources that the sample was made from.
    """
    try:  # written out, which takes half the time: it is called for every sample
        found = {
            "__key__": crude_sample["__key__"],
            "__restore_key__": crude_sample["__restore_key__"],
            "__subflavors__": crude_sample["__subflavors__"],
            "__sources__": crude_sample["__sources__"],
            "__leaf__": crude_sample["__leaf__"],
        }
    except KeyError:
        found = {name: crude_sample[name] for name in BASIC_FIELDS if name in crude_sample}
    if additional_source_info:
        sources = tuple(crude_sample.get("__sources__") or ())
        found["__sources__"] = (*sources, *additional_source_info)
    return found


@frozen
class Cooking:
    """The function that cooks the samples of a tree. Samples of other leaves are not changed."""

    # Leaf id and subflavors -> function: a leaf may stand in a tree under several subflavors.
    recipes: Mapping[tuple[str, str], Callable[[Any], Any]] = field(eq=False)
    _by_leaf: Mapping[str, Callable[[Any], Any] | None] = field(init=False, eq=False, repr=False)

    @_by_leaf.default
    def _only_recipes(self) -> dict[str, Callable[[Any], Any] | None]:
        """Return the function of each leaf; None: it depends on the subflavors."""
        found: dict[str, Callable[[Any], Any] | None] = {}
        for (leaf, _), recipe in self.recipes.items():
            found[leaf] = None if leaf in found else recipe
        return found

    def __call__(self, sample: Any) -> Any:
        """Return the sample, cooked if it is crude and there is a recipe for it."""
        try:
            leaf = sample[RESTORE_KEY][0]
            recipe = self._by_leaf[leaf]
        except (LookupError, TypeError):  # it is no dict, has no identity, or is of another leaf
            return sample
        recipe = recipe or self.recipes.get((leaf, repr(sample["__subflavors__"])))
        return sample if recipe is None else recipe(sample)


def recipe_of(
    encoder: TaskEncoder[Any, Any, Any, Any],
    subflavors: Mapping[str, Any],
    get_primary_aux: Callable[[], FileStore[Any]],
    aux: Mapping[str, FileStore[Any]],
    where: str,
) -> Callable[[Any], Any]:
    """Return what cooks samples with these subflavors and file stores: the first match.

    SpecError that names the cookers if none matches.
    """
    cooker = next((one for one in encoder.cookers if one.is_match(subflavors)), None)
    if cooker is None:
        known = ", ".join(str(one.has_subflavors or "all samples") for one in encoder.cookers)
        raise SpecError(
            f"{where}: no cooker matches its subflavors {dict(subflavors)}, found cookers for "
            f"{known or 'none'}. Add one to `cookers` of the task encoder: Cooker(cook=..., "
            f"has_subflavors=...)."
        )
    stores = dict(aux)
    if cooker.need_primary and "primary" not in stores:
        stores["primary"] = get_primary_aux()
    if encoder.decoder is not None:
        stores = {
            name: DecodeFileStore(store, decoder=encoder.decoder) for name, store in stores.items()
        }
    if cooker.need_cache or cooker.need_primary or encoder._function("cook_crude_sample"):
        return partial(encoder.cook_crude_sample, cooker=cooker, aux=stores)
    return partial(cooker.cook, **stores) if stores else cooker.cook


def cooked(
    dataset: SavableDataset[Any],
    encoder: TaskEncoder[Any, Any, Any, Any],
    recipe: Callable[[Any], Any] | None = None,
) -> SavableDataset[Any]:
    """Return samples, cooked by one recipe. None: crude ones as each leaf needs."""
    leaves: dict[tuple[str, str], Leaf] = {}
    for leaf in leaves_of(dataset.spec):
        same = leaves.setdefault((leaf.id, repr(subflavors_of(leaf))), leaf)
        if same.aux != leaf.aux:
            raise SpecError(
                f"leaf {leaf.id!r}: it has two kinds of `aux`, and equal subflavors. Give one of "
                f"them other subflavors, or another `id`."
            )
    if recipe is None:
        recipes = {
            key: leaf_recipe(encoder, leaf) for key, leaf in leaves.items() if is_crude(leaf)
        }
    else:
        recipes = dict.fromkeys(leaves, recipe)
    if not recipes:
        return dataset
    policy = dataset.worker_config.error_policy(encoder.__default_failure_tolerance__)
    return dataset.replace(
        spec=EncodeSpec(of=dataset.spec, encode=Cooking(recipes), on_failure=policy)
    )


def leaf_recipe(encoder: TaskEncoder[Any, Any, Any, Any], leaf: Leaf) -> Callable[[Any], Any]:
    """Return what cooks the samples of a leaf. SpecError if no cooker is for them."""

    def primary() -> FileStore[Any]:
        return open_store(path_of(leaf))

    return recipe_of(encoder, subflavors_of(leaf), primary, leaf.aux, f"leaf {leaf.id!r}")


def path_of(leaf: Leaf) -> str:
    """Return the path of the dataset of a leaf. Joins have none, and return the id of the leaf."""
    return str(getattr(leaf.source, "path", leaf.id))


def subflavors_of(leaf: Leaf) -> dict[str, Any]:
    """Return the subflavors of all samples of a leaf. Joined samples have their own."""
    options = getattr(leaf.source, "options", None)
    return dict(options.subflavors) if isinstance(options, OpenOptions) else {}


def is_crude(leaf: Leaf) -> bool:
    """Return whether the samples of a leaf are dicts of parts. Joined samples never are."""
    typing = getattr(leaf.source, "typing", None)
    if typing is None:
        return not isinstance(leaf.source, JoinSource)
    crude: bool = typing.sample_type is None
    return crude
