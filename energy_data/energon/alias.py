"""`install`: programs that import `megatron.energon` get `energy_data.energon`.

import energy_data.energon

energy_data.energon.install()  # before the first import of megatron.energon
from megatron.energon.task_encoder.base import DefaultTaskEncoder  # of energy_data
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from energy_data.errors import EnergyDataError

__all__ = ["install"]

_PATHS = """
cache cache.base cache.file_cache_pool cache.file_store cache.no_cache checkpoint
checkpoint.rank_state dataloader dataloader.dataloader edataclass epathlib epathlib.epath errors
flavors flavors.base_dataset flavors.binidx flavors.binidx.binidx_dataset flavors.captioning
flavors.common flavors.common.filter_index flavors.crude flavors.dataset_factory_resolver
flavors.dataset_type flavors.image
flavors.image_classification flavors.interleaved flavors.jsonl flavors.jsonl.crude_jsonl_dataset
flavors.multichoice_vqa flavors.ocr flavors.similarity_interleaved flavors.text flavors.vid_qa
flavors.vqa flavors.vqa_and_ocr flavors.webdataset flavors.webdataset.base_webdataset
flavors.webdataset.default_decoder_webdataset flavors.webdataset.default_generic_webdataset
flavors.webdataset.joined_webdataset flavors.webdataset.sample_decoder
flavors.webdataset.standard_webdataset loader logical_worker metadataset metadataset.dataset_loader
metadataset.loader metadataset.loader_interface metadataset.metadataset metadataset.metadataset_v2
recipe recipe.dataset_loader recipe.loader recipe.loader_interface recipe.recipe savable_loader
source_info task_encoder task_encoder.base task_encoder.cooking task_encoder.loader
typed_converter worker wrappers wrappers.base wrappers.batch_dataset wrappers.blend_dataset
wrappers.concat_dataset
wrappers.epochize_dataset wrappers.filter_dataset wrappers.gc_dataset wrappers.group_batch_dataset
wrappers.iter_map_dataset wrappers.limit_dataset wrappers.log_sample_dataset wrappers.map_dataset
wrappers.mix_batch_dataset wrappers.packing_dataset wrappers.repeat_dataset
wrappers.shuffle_buffer_dataset wrappers.skip wrappers.streaming_packing_dataset
"""
MODULES = tuple(_PATHS.split())
"""The modules of Energon 7.4.1 and 8 from which their public names are imported."""

_PACKAGE = "megatron"
_ALIAS, _TARGET = "megatron.energon", "energy_data.energon"
_OWN = ("av", "media", "transforms")  # modules with names that the package does not have


class AliasModule(ModuleType):
    """A module of Energon: names and submodules are those of a module of energy_data."""

    def __init__(self, name: str, target: ModuleType) -> None:
        super().__init__(name, target.__doc__)
        self.__dict__["_target"] = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_target"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing `megatron.energon.edataclass` must not hide the function of that name.
        if not (isinstance(value, AliasModule) and hasattr(self.__dict__["_target"], name)):
            super().__setattr__(name, value)


class AliasFinder(MetaPathFinder, Loader):
    """Finds `megatron.energon` and the modules below it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of Energon; None for any other module."""
        if fullname == _ALIAS:
            return ModuleSpec(fullname, self, is_package=True)
        name = fullname.removeprefix(f"{_ALIAS}.")
        is_ours = name != fullname and name in (*MODULES, *_OWN)
        return ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module with the names of ours."""
        name = spec.name.removeprefix(f"{_ALIAS}.")
        own = f"{_TARGET}.{name}" if name in _OWN else _TARGET
        return AliasModule(spec.name, import_module(own))

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""


class PackageFinder(MetaPathFinder, Loader):
    """Finds `megatron` as an empty package. It comes last, for machines without Megatron."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec of `megatron`; None for any other module."""
        return ModuleSpec(fullname, self, is_package=True) if fullname == _PACKAGE else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the import system creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""


_FINDERS: Sequence[MetaPathFinder] = (AliasFinder(), PackageFinder())


def install() -> None:
    """Make imports of `megatron.energon`, at any module path, return `energy_data.energon`.

    It holds for this process and the processes that it forks, also where Energon is installed.
    Other modules of `megatron` are not affected. Call it again at no cost.

    Raises EnergyDataError if the program has imported Energon itself before.
    """
    imported = sys.modules.get(_ALIAS)
    if imported is not None and not isinstance(imported, AliasModule):
        raise EnergyDataError(
            f"install: {_ALIAS} is imported already, from {imported.__file__}. Call install() "
            f"before it, or run the program by `python -m {_TARGET} program.py`."
        )
    first, last = _FINDERS
    if first not in sys.meta_path:
        sys.meta_path.insert(0, first)
        sys.meta_path.append(last)
