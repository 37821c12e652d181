"""The examples of Energon's documentation, each on small data. A program: prints what they return.

Only the imports below are other than they would be there. `snippets_7.4.1.json` has what the real
Energon prints.
"""

import json
import shutil
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from megatron.energon import (
    AugmentTaskEncoder,
    Batch,
    BlendDataset,
    CachePool,
    CaptioningSample,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    EpochizeDataset,
    FileStore,
    FileStoreCachePool,
    Lazy,
    Sample,
    SampleDecoder,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    cooker,
    edataclass,
    generic_batch,
    generic_concat,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    homogeneous_concat_mix,
    load_dataset,
    prepare_metadataset,
    stateless,
    traverse_metadataset,
)  # fmt: skip
from megatron.energon.epathlib import EPath
from megatron.energon.errors import FatalSampleError
from megatron.energon.flavors import BaseWebdatasetFactory

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)
SHUFFLE = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 10, "worker_config": CONFIG}


def train(path, **options):
    return get_loader(get_train_dataset(path, **{"batch_size": 4, **SHUFFLE, **options}))


def fields(value):
    """Return what a value is, in plain JSON."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), round(value.double().sum().item(), 3)]
    if isinstance(value, Sample | Batch):
        names = [name for name in value.__dataclass_fields__ if not name.startswith("__")]
        return {type(value).__name__: {name: fields(getattr(value, name)) for name in names}}
    if isinstance(value, dict):
        return {str(name): fields(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(fields, value)]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def quickstart():
    one = next(iter(train("captions", batch_size=None)))
    several = next(iter(train("captions", batch_size=2)))
    texts = [text for batch in train("captions", repeat=False) for text in batch.caption]
    return type(one).__name__, list(one.image.shape), list(several.image.shape), sorted(texts)


def decoding():
    class Pillow(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="pilrgb")

    class Raw(DefaultTaskEncoder):
        decoder = None

    own = train("captions", batch_size=None, task_encoder=Pillow())
    raw = train("captions", batch_size=None, task_encoder=Raw())
    older = train(
        "captions", batch_size=None, image_decode="pil", task_encoder=DefaultTaskEncoder()
    )
    images = [type(next(iter(loader)).image).__name__ for loader in (own, older)]
    return images, type(next(iter(raw)).caption).__name__


def metadataset():
    loader = train("blend.yaml", batch_size=1)
    drawn = [batch.text[0].split()[0] for batch in islice(loader, 400)]
    held = get_val_dataset("blend.yaml", batch_size=3, worker_config=CONFIG)
    parts = get_val_datasets("blend.yaml", batch_size=3, worker_config=CONFIG)
    return (
        round(drawn.count("ones") / 400, 1),
        [batch.text for batch in get_loader(held)],
        [[len(batch.text) for batch in get_loader(one)] for one, _ in parts],
        [len(factory) for _, factory in parts],
    )


def loading():
    found = []
    for training in (True, False):
        loaded = load_dataset("blend.yaml").get_datasets(
            training=training, split_part="train", worker_config=CONFIG
        )
        found.append([loaded.blend_mode.value])
        found[-1] += [[len(one.dataset), one.weight, one.repetitions] for one in loaded.datasets]
    traversed = traverse_metadataset("aux.yaml", split_part="train")
    here = str(Path.cwd())
    return found, [
        [str(one.path).removeprefix(here), one.split_part, one.subflavors]
        + [f"{name} {str(path).removeprefix(here)}" for name, path in one.aux.items()]
        + [[(path / "x").name for path in one.aux.values()]]
        for one in traversed
    ]


def epochized_blending():
    loader = train("times.yaml", repeat=False)
    return [sorted(text for batch in loader for text in batch.text) for _ in range(2)]


def saving():
    def start():
        return get_savable_loader(get_train_dataset("blend.yaml", batch_size=4, **SHUFFLE))

    loader, found = start(), []
    for _ in zip(range(10), loader, strict=False):
        pass
    state = loader.save_state_rank()
    expected = [batch.text for batch in islice(loader, 3)]
    again = start()
    again.restore_state_rank(state)
    found.append([batch.text for batch in islice(again, 3)] == expected)
    return found


@dataclass
class CaptioningRawBatch(Batch):
    image: torch.Tensor
    caption: list[str]


@dataclass
class CaptioningBatch(Batch):
    images: torch.Tensor
    text_tokens: torch.Tensor


class CaptioningTaskEncoder(
    DefaultTaskEncoder[CaptioningSample, CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    decoder = SampleDecoder(image_decode="torchrgb")

    def __init__(self):
        super().__init__(batch_type=CaptioningRawBatch)

    def encode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        sample.image = sample.image[:, :4, :5]
        return sample

    def batch(self, samples: list[CaptioningSample]) -> CaptioningRawBatch:
        return CaptioningRawBatch.from_samples(samples)

    def encode_batch(self, batch_data: CaptioningRawBatch) -> CaptioningBatch:
        tokens = torch.tensor([len(one) for one in batch_data.caption])
        return CaptioningBatch.derive_from(batch_data, images=batch_data.image, text_tokens=tokens)


def task_encoder():
    class Twice(AugmentTaskEncoder):
        def encode_sample(self, sample):
            sample = super().encode_sample(sample)
            sample.image = sample.image.repeat(1, 1, 2)
            return sample

    found = []
    for encoder in (CaptioningTaskEncoder(), Twice(CaptioningTaskEncoder())):
        batch = next(iter(train("captions", task_encoder=encoder)))
        found.append([type(batch).__name__, len(batch.images), list(batch.images[0].shape)])
    return found


def custom_blending():
    class Blending(DefaultTaskEncoder):
        def build_train_datasets(
            self, *, datasets, worker_config, batch_size, virtual_epoch_length=0, **_
        ):
            parts = [(one.dataset.build(), one.weight) for one in datasets]
            blend = BlendDataset(*parts, worker_config=worker_config)
            batches = self.build_batch(blend, batch_size=batch_size, worker_config=worker_config)
            return EpochizeDataset(
                batches, length=virtual_epoch_length, worker_config=worker_config
            )

    loader = train("blend.yaml", task_encoder=Blending(), virtual_epoch_length=3)
    return [[len(batch.text) for batch in loader] for _ in range(2)]


def grouping():
    class Grouping(DefaultTaskEncoder):
        def batch_group_criterion(self, sample) -> tuple[Hashable, int | None]:
            number = int(sample.text.split()[1])
            return ("even", 3) if number % 2 == 0 else ("odd", 2)

    batches = islice(train("ones", batch_size=None, task_encoder=Grouping()), 20)
    found = {(len({int(one.split()[1]) % 2 for one in b.text}), len(b.text)) for b in batches}
    return sorted(found)


def packing():
    class Packing(DefaultTaskEncoder):
        @stateless(restore_seeds=True)
        def encode_sample(self, sample):
            return sample

        def select_samples_to_pack(self, samples):
            samples.sort(key=lambda sample: sample.text)
            return [samples[:2], samples[2:]]

        @stateless
        def pack_selected_samples(self, samples):
            text = "|".join(sample.text for sample in samples)
            return TextSample(
                __key__=",".join(sample.__key__ for sample in samples),
                __restore_key__=(),
                __subflavors__=None,
                text=text,
            )

    options = {"batch_size": 1, "packing_buffer_size": 5, "repeat": False}
    packs = [batch.text[0] for batch in train("ones", **options, task_encoder=Packing())]
    return sorted(one for pack in packs for one in pack.split("|"))


def errors():
    found = []

    def my_error_handler(exception, sample, sources):
        found.append([type(exception).__name__, str(exception), type(sample).__name__])
        found[-1] += [len(sources), type(sources[0]).__name__]

    class Failing(DefaultTaskEncoder):
        @stateless(failure_tolerance=50)
        def encode_sample(self, sample):
            number = int(sample.text.split()[1])
            if number == 3:
                raise ValueError(f"bad {number}")
            if number % 2:
                raise SkipSample
            return sample

    class Fatal(DefaultTaskEncoder):
        def encode_sample(self, sample):
            raise FatalSampleError.from_sample(sample, "Critical corruption detected")

    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=my_error_handler
    )
    loader = train("ones", task_encoder=Failing(), worker_config=config, repeat=False)
    texts = sorted(text for batch in loader for text in batch.text)
    try:
        next(iter(train("ones", task_encoder=Fatal(), worker_config=config)))
    except FatalSampleError as error:
        found.append(["fatal", "Critical corruption detected" in f"{error}{error.__cause__}"])
    return texts, found


@stateless
def cook_text(sample: dict, extra: FileStore) -> TextSample:
    number = sample["__key__"].split("-")[1]
    additional = extra.get(f"twos-{number}.txt", sample)
    return TextSample(**basic_sample_keys(sample), text=f">{sample['txt']}+{additional}<")


@edataclass
class LazySample(Sample):
    text: Lazy


@stateless
@cooker(need_cache=True, need_primary=True)
def cook_lazy(sample: dict, primary: FileStore, cache: CachePool, extra: FileStore) -> LazySample:
    assert primary.get(".txt") == sample["txt"]
    kept = cache.to_cache(sample["txt"], sample["__key__"] + ".txt")
    assert kept.get() == sample["txt"]
    number = sample["__key__"].split("-")[1]
    return LazySample(**basic_sample_keys(sample), text=cache.get_lazy(extra, f"twos-{number}.txt"))


def crude_data():
    class Cooking(DefaultTaskEncoder):
        cookers = (
            Cooker(cook_text, has_subflavors={"kind": "text"}),
            Cooker(cook_lazy, has_subflavors={"kind": "lazy"}),
        )

        @stateless
        def encode_sample(self, sample):
            if isinstance(sample, LazySample):
                text = sample.text.get(sample)
                return TextSample.derive_from(sample, text=text)
            return sample

    pool = FileStoreCachePool(parent_cache_dir=Path("not/there/yet"), num_workers=1)
    dataset = get_val_dataset(
        "aux.yaml",
        split_part="train",
        batch_size=2,
        worker_config=CONFIG,
        task_encoder=Cooking(),
    )
    batches = list(get_savable_loader(dataset, cache_pool=pool))
    return [batch.text for batch in batches], [
        [source.index for source in batch.__sources__[0]] for batch in batches[:1]
    ]


def joining():
    prepare_metadataset(EPath("join.yaml"))
    dataset = get_val_dataset("join.yaml", split_part="train", batch_size=3, worker_config=CONFIG)
    return [fields(batch) for batch in islice(get_loader(dataset), 2)]


def subsets():
    found = []
    for split in ("train", "val", "test"):
        options = {"split_part": split, "batch_size": 9, "worker_config": CONFIG}
        dataset = get_val_dataset("subsets.yaml", **options)
        found.append([batch.text for batch in get_loader(dataset)])
    return found


def preparing():
    def progress_fn(elements, length=None):
        yield from elements

    shutil.copytree("ones", "again")
    shutil.rmtree("again/.nv-meta")
    tars = sorted(str(path.relative_to("again")) for path in Path("again").glob("**/*.tar"))
    BaseWebdatasetFactory.prepare_dataset(  # 7.4.1 does not return the two values of its page
        Path("again"),
        tars,
        split_parts_ratio=[("train", 1), ("val", 1), ("test", 0)],
        split_parts_patterns=None,
        progress_fn=progress_fn,
        tar_index_only=False,
        shuffle_seed=None,
        workers=1,
    )
    made = sorted(path.name for path in Path("again/.nv-meta").iterdir())
    shutil.copy("ones/.nv-meta/dataset.yaml", "again/.nv-meta/dataset.yaml")
    options = {"worker_config": CONFIG, "batch_size": 40}
    texts = [
        [batch.text for batch in get_loader(get_val_dataset("again", split_part=part, **options))]
        for part in ("train", "val")
    ]
    return made, texts


def arguments():
    """Keys of the path and the type of its samples, given by the program."""

    class Cooking(DefaultTaskEncoder):
        cookers = (Cooker(stateless(lambda sample: type(sample).__name__)),)

    keys = {"dataset_config": "crude.yaml", "sample_type": CrudeSample}
    crude = train("ones", batch_size=None, task_encoder=Cooking(), **keys)
    own = train("ones", batch_size=None, subflavors={"a": 1}, sample_type=TextSample)
    return next(iter(crude)), next(iter(own)).__subflavors__, CONFIG.config()


def batching():
    numbers, rows = [torch.arange(3), torch.ones(3)], [torch.ones(2, 3), torch.ones(4, 1)]
    texts = [TextSample(__key__="a", __restore_key__=(), text="x") for _ in range(2)]
    found = [
        fields(batch_list(numbers)),
        fields(batch_stack([torch.ones(2), torch.zeros(2)])),
        fields(batch_pad_stack(rows)),
        fields(concat_pad(rows)),
    ]
    values = [numbers, rows, [1, 2], ["a", "b"], [{"a": 1}, {"a": 2}], [None, None], [[1], [2]]]
    values += [[{"a": torch.ones(2)}, {"a": torch.ones(3)}], [True, False], [1.5, 2.5]]
    found += [fields(generic_batch(one)) for one in values]
    values = [rows, [[1], [2, 3]], [{"a": [1]}, {"a": [2]}]]
    found += [fields(generic_concat(one)) for one in values]
    found.append(fields(homogeneous_concat_mix(rows)))
    found.append(fields(DefaultTaskEncoder().batch(texts)))
    base = {"image": torch.ones(2), "caption": "d"}
    return [*found, fields(CaptioningSample.derive_from(texts[0], **base))]


SNIPPETS = (
    *(quickstart, decoding, metadataset, loading, epochized_blending, saving, task_encoder),
    *(custom_blending, grouping, packing, errors, crude_data, joining, subsets, preparing),
    *(arguments, batching),
)

if __name__ == "__main__":
    for snippet in SNIPPETS:
        try:
            found = snippet()
        except Exception as error:  # noqa: BLE001 - it is a result, too
            found = f"{type(error).__name__}: {error}"
        print(json.dumps([snippet.__name__, found]))  # noqa: T201 - a program tells its result
