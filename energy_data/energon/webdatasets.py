"""One dataset by its path, with the type of its samples declared in Python.

Energon has deprecated these classes: a dataset.yaml with a `sample_type` declares the same for
every program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.source import OpenOptions
from energy_data.data.tar.prepare import prepare
from energy_data.data.typed.samples import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from energy_data.data.typed.wrap import open_as
from energy_data.errors import SpecError
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.references import LeafSpec
from energy_data.tasks.mixture import BaseCoreDatasetFactory, Reading

T = TypeVar("T")
PartFilter = str | Sequence[str] | Callable[[str], bool] | None


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """A prepared dataset of tars."""

    __sample_type__: ClassVar[type[Sample] | None] = None

    def __init__(
        self,
        path: str | Path,
        *,
        split_part: str = "train",
        training: bool = True,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: tuple[int, int | None] | None = None,
        split_config: str | None = None,
        part_filter: PartFilter = None,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        sample_type: type[Sample] | None = None,
        decoder: Any = SampleDecoder(),  # noqa: B008 - it is never changed
    ) -> None:
        """Open a dataset.

        Args:
            path: The dataset.
            split_part: The split to read.
            training: Whether the stream is endless.
            worker_config: Which part of the run this process is.
            shuffle_over_epochs: Ignored: each epoch has each sample once.
            parallel_shard_iters: Sequences that are mixed at a time; None: 16.
            max_samples_per_sequence: Neighbouring samples that are read together; None: all.
            subset: Samples [first, end) of the split; end None: to its end.
            split_config: Another file in `.nv-meta` in place of split.yaml.
            part_filter: The parts to read; None: those in the field map, or all.
            subflavors: Given to each sample.
            field_map: Field of the sample -> part, as in dataset.yaml.
            sample_loader: A function of the parts that returns the fields; instead of `field_map`.
            sample_type: Of the samples; by default that of the class.
            decoder: Decodes parts; None: they stay bytes.
        """
        source = open_as(
            path,
            sample_type or self.__sample_type__,
            field_map=field_map,
            sample_loader=sample_loader,
            part_filter=part_filter,
            decoder=decoder,
            options=OpenOptions(
                split_part=split_part,
                subset=subset,
                subflavors=dict(subflavors or {}),
                split_config=split_config,
            ),
        )
        shuffle = Shuffle(
            sequence_length=max_samples_per_sequence or 0,
            parallel_sequences=parallel_shard_iters or 16,
        )
        read = Reading(
            worker_config=worker_config,
            seed=worker_config.seed_offset,
            shuffle=shuffle,
            deal=0 if training else 1,
        )
        order = LeafSpec(Leaf(id=f"{path}:{split_part}", source=source))
        super().__init__(order=order, read=read)

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | Path,
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        **_: Any,
    ) -> None:
        """Index the tars of a folder, and write its `.nv-meta` folder.

        Args:
            parent_path: The folder.
            paths: Ignored: all tars below the folder are indexed.
            split_parts_ratio: "train", "val" and "test", with their shares of the tars.
            split_parts_patterns: Or names of splits, with patterns of their tars.
        """
        ratios = dict(split_parts_ratio or [("train", 1)])
        split: str | dict[str, list[str]] = ",".join(
            str(ratios.get(part, 0)) for part in ("train", "val", "test")
        )
        if split_parts_patterns:
            split = {}
            for part, pattern in split_parts_patterns:
                split.setdefault(part, []).append(pattern)
        prepare(Path(parent_path), split=split)


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory[T]):
    """A dataset whose samples are made by a field map or a sample loader."""


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory[T]):
    """A dataset whose parts are decoded."""


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory[T]):
    """A dataset whose samples are of the `sample_type` that is given."""


class CrudeWebdataset(DefaultDecoderWebdatasetFactory[Any]):
    """A dataset of crude samples, for cookers."""


class CaptioningWebdataset(DefaultDecoderWebdatasetFactory[CaptioningSample]):
    """A dataset of captioned images."""

    __sample_type__ = CaptioningSample


class ImageWebdataset(DefaultDecoderWebdatasetFactory[ImageSample]):
    """A dataset of images."""

    __sample_type__ = ImageSample


class ImageClassificationWebdataset(DefaultDecoderWebdatasetFactory[ImageClassificationSample]):
    """A dataset of images with classes."""

    __sample_type__ = ImageClassificationSample


class InterleavedWebdataset(DefaultDecoderWebdatasetFactory[InterleavedSample]):
    """A dataset of texts with images."""

    __sample_type__ = InterleavedSample


class SimilarityInterleavedWebdataset(DefaultDecoderWebdatasetFactory[SimilarityInterleavedSample]):
    """A dataset of texts with images, related by similarity."""

    __sample_type__ = SimilarityInterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdatasetFactory[MultiChoiceVQASample]):
    """A dataset of questions with answers to choose from."""

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(DefaultDecoderWebdatasetFactory[OCRSample]):
    """A dataset of images of text."""

    __sample_type__ = OCRSample


class TextWebdataset(DefaultDecoderWebdatasetFactory[TextSample]):
    """A dataset of texts."""

    __sample_type__ = TextSample


class VidQAWebdataset(DefaultDecoderWebdatasetFactory[VidQASample]):
    """A dataset of questions about videos."""

    __sample_type__ = VidQASample


class VQAOCRWebdataset(DefaultDecoderWebdatasetFactory[VQAOCRSample]):
    """A dataset of questions about images with text."""

    __sample_type__ = VQAOCRSample


class VQAWebdataset(DefaultDecoderWebdatasetFactory[VQASample]):
    """A dataset of questions about images."""

    __sample_type__ = VQASample


class CrudeJsonlDatasetFactory(BaseWebdatasetFactory[Any]):
    """A JSONL file of crude samples, for cookers."""


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """A JSONL file of crude samples, for cookers."""


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """Datasets joined by key. Not supported in Python: use `join:` in a metadataset."""

    def __init__(self, inner_datasets: Any, **kwargs: Any) -> None:
        """Raises SpecError: only metadatasets can join."""
        raise SpecError(
            "JoinedWebdatasetFactory: datasets are joined by a metadataset. Write `join:` with the "
            "same datasets in a .yaml or a dict, and pass it to get_train_dataset."
        )
