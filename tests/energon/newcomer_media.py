"""A newcomer's second program: media beside texts, a cache, packs, groups, global states.

Only the imports below are other than they would be there.
"""

import sys
from itertools import islice

import torch
from megatron.energon import (
    CachePool,
    Cooker,
    DefaultTaskEncoder,
    FileStore,
    FileStoreCachePool,
    Lazy,
    Sample,
    SampleDecoder,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    get_val_datasets,
    reraise_exception,
    stateless,
)
from megatron.energon.media import ImageMetadata


@edataclass
class Picture(Sample):
    text: str
    image: Lazy[torch.Tensor]
    size: int


@edataclass
class Pictures(Sample):
    text: list[str]
    pixels: torch.Tensor
    noise: float


@stateless
@cooker(need_primary=True, need_cache=True)
def cook(sample: dict, *, primary: FileStore, media: FileStore, cache: CachePool) -> Picture:
    name = f"pictures/{primary.get('.txt', sample).split()[-1]}.png"
    known = media.get_media_metadata(name)  # nothing is read of the file
    assert isinstance(known, ImageMetadata), known
    return Picture(
        **basic_sample_keys(sample),
        text=sample["txt"],
        image=cache.get_lazy(media, name),
        size=known.width,
    )


class PictureEncoder(DefaultTaskEncoder[Picture, Pictures, Pictures, Pictures]):
    cookers = [Cooker(cook, has_subflavors={"kind": "picture"})]  # noqa: RUF012 - as in its docs
    decoder = SampleDecoder(image_decode="torchrgb8")

    def select_samples_to_pack(self, samples: list[Picture]) -> list[list[Picture]]:
        samples.sort(key=lambda sample: sample.size)
        packs: list[list[Picture]] = [[]]
        for sample in samples:
            if sum(one.size for one in packs[-1]) + sample.size > 16:
                packs.append([])
            packs[-1].append(sample)
        return packs

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Picture]) -> Pictures:
        pixels = [sample.image.get(sample).flatten() for sample in samples]
        return Pictures(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),  # set by the loader
            __subflavors__=samples[0].__subflavors__,
            __sources__=samples[0].__sources__,
            text=[sample.text for sample in samples],
            pixels=torch.cat(pixels),
            noise=float(torch.rand(())),
        )

    def batch_group_criterion(self, sample: Pictures) -> tuple[int, int | None]:
        return len(sample.text) % 2, None


def new_loader(workers: int):
    dataset = get_train_dataset(
        "pictures.yaml",
        batch_size=2,
        packing_buffer_size=10,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        worker_config=WorkerConfig(
            rank=0, world_size=1, num_workers=workers, global_error_handler=reraise_exception
        ),
        task_encoder=PictureEncoder(),
    )
    return get_savable_loader(dataset, cache_pool=FileStoreCachePool(num_workers=1))


def drawn(loader, count: int) -> list[str]:
    found = []
    for batch in islice(loader, count):
        assert len({len(texts) % 2 for texts in batch.text}) == 1, batch.text
        assert batch.__restore_key__
        found.append(f"{batch.__key__} {batch.pixels.sum().item()} {batch.noise}")
    return found


if __name__ == "__main__":
    workers = int(sys.argv[1])
    loader = new_loader(workers)
    drawn(loader, 7)
    torch.save(loader.save_state_global(global_dst_rank=0), "global.pt")
    expected = drawn(loader, 6)

    again = new_loader(workers)
    again.restore_state_global(torch.load("global.pt", weights_only=len(sys.argv) > 2))
    assert drawn(again, 6) == expected, "restored, it goes on differently"

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    sets = get_val_datasets(
        "pictures.yaml",
        batch_size=1,
        packing_buffer_size=40,
        worker_config=config,
        task_encoder=PictureEncoder(),
    )
    for dataset, factory in sets:
        batches = list(get_savable_loader(dataset, cache_pool=FileStoreCachePool(num_workers=1)))
        texts = [text for batch in batches for texts in batch.text for text in texts]
        pixels = sum(int(batch.pixels.sum()) for batch in batches)
        print(len(factory), len(texts), len(set(texts)), pixels)  # noqa: T201 - tells its result
