"""Runs of mixes: every batch has its exact part of each child."""

from __future__ import annotations

from collections import Counter

import pytest
from trees import batches, leaf, samples

from energy_data.config.compile import compile_split, compile_stream
from energy_data.config.load import load
from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Mixed, MixSpec, Part
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.order.schedule import Clock
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import NumberSource
from loading.runs import loaders_of, run

A, B, C = leaf("a", 500), leaf("b", 90), leaf("c", 40)


def tree(order, batch_size=8):
    clock = Clock(samples_per_microbatch=batch_size)
    return batches(ReadSpec(of=ReferencesSpec(of=order, clock=clock)), batch_size)


def parts(batch):
    return Counter(key[0] for key in batch)


def test_every_batch_of_every_rank_has_its_parts():
    spec = tree(MixSpec((Mixed(A, 5), Mixed(B, 2), Mixed(C, 1))))
    for batch in run(loaders_of(spec, 3), 30).values():
        assert parts(batch) == {"a": 5, "b": 2, "c": 1}


def test_leaves_of_a_mix_are_drawn_once_per_epoch():
    spec = tree(MixSpec((Mixed(A, 5), Mixed(B, 2), Mixed(BlendSpec((Part(C), Part(A))), 1))))
    keys = [key for batch in run(loaders_of(spec, 2, lanes=4), 44).values() for key in batch]
    for name, size in (("b", 90), ("c", 40)):
        drawn = [key for key in keys if key[0] == name][: size - 4]
        assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: MixSpec((Mixed(A, 0),)), "no child has weight > 0"),
        (lambda: MixSpec((Mixed(A),), "sample"), "by must be 'samples' or 'batches'"),
        (lambda: MixSpec((Mixed(samples(A)),)), "is for children below reading"),
        (
            lambda: MixSpec((Mixed(samples(A)), Mixed(B))),
            "different kinds of items",
        ),
        (lambda: Mixed(A, -1), "finite number >= 0, got -1"),
        (lambda: tree(BlendSpec((Part(MixSpec((Mixed(A),))),))), "only be the root"),
        (lambda: ReferencesSpec(of=MixSpec((Mixed(A),)), deal=3), "no finite stream"),
    ],
)
def test_a_mix_that_cannot_be_is_refused(make, problem):
    with pytest.raises(SpecError, match=problem):
        make()


def opened(path, *, split_part, subset, subflavors):
    return NumberSource(100, path.rsplit("/", 1)[-1])


def metadataset(node):
    return load({"splits": {"train": node}})


def test_a_mix_of_a_metadataset_takes_the_batch_size_of_the_run():
    mix = {"mix": {"parts": [{"path": "a", "weight": 3}, {"path": "b"}]}}
    builder = StreamBuilder(batch_size=8, task_encoder=DefaultTaskEncoder())
    spec = compile_stream(metadataset(mix), "train", open_source=opened, builder=builder).spec
    for batch in run(loaders_of(spec, 2), 10).values():
        assert parts(batch["__key__"]) == {"a": 6, "b": 2}


def test_a_mix_is_the_outermost_node():
    node = {"blend": [{"mix": {"parts": [{"path": "a"}]}}]}
    with pytest.raises(
        SpecError, match=r"splits.train.blend\[0\]: mix determines .* Write a blend here"
    ):
        compile_split(metadataset(node), "train", open_source=opened)
    compile_split(metadataset(node), "train", open_source=opened, mode="val")
