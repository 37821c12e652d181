"""Windows of several lengths in a metadataset: one leaf, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest
from yaml_text import parse_metadataset

from energy_data.cli.plan import AnyTask
from energy_data.config.compile import compile_stream
from energy_data.config.leaves import leaf_uses
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of
from energy_data.tasks.mixture import StreamBuilder


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        np.arange(1000, dtype=np.uint32).tofile(f"{name}.bin")


def parsed(*stages, unit="steps"):
    rows = [f"{{name: s{n}, {'for: 8, ' if n == 0 else ''}{of}}}" for n, of in enumerate(stages)]
    lines = "".join(f"\n        - {row}" for row in rows)
    return parse_metadataset(
        f"splits:\n  train:\n    staged:\n      unit: {unit}\n      stages:{lines}\n", name="m.yaml"
    )


def a(seq_len, rest="", name="a"):
    return f"path: {name}.bin, dtype: uint32, seq_len: {seq_len}{rest and ', '}{rest}"


def blend(*children):
    return f"blend: [{', '.join(f'{{{child}}}' for child in children)}]"


def compiled(*stages, **facts):
    builder = StreamBuilder(batch_size=2, task_encoder=AnyTask({}), microbatches_per_step=2)
    metadataset = parsed(*stages, **facts)
    return compile_stream(metadataset, "train", open_source=open_source, builder=builder).spec


def leaves(*stages):
    """Of each place: the id, and the windows of a chunk."""
    found = leaves_of(compiled(*stages))
    return [(leaf.id, leaf.cut.samples) for leaf in found], {leaf.fingerprint for leaf in found}


def test_stages_of_several_lengths_read_one_leaf():
    found, prints = leaves(a(8), a(32))
    assert found == [("a.bin:train;dtype=uint32;max_seq_len=32", samples) for samples in (4, 1)]
    assert len(prints) == 1


def test_the_longest_windows_may_be_declared_in_any_stage():
    found, prints = leaves(a(8), a(32, "max_seq_len: 64"))
    assert found == [("a.bin:train;dtype=uint32;max_seq_len=64", samples) for samples in (8, 2)]
    assert prints == leaves(a(16, "max_seq_len: 64"), a(64))[1]


def test_windows_of_one_length_are_as_they_were():
    found, _ = leaves(a(8), blend(a(8), a(16, name="b")))
    assert found == [
        ("a.bin:train;seq_len=8;dtype=uint32", 1),
        ("a.bin:train;seq_len=8;dtype=uint32", 1),
        ("b.bin:train;seq_len=16;dtype=uint32", 1),
    ]
    (use,) = {str(use.parts[0].windows) for use in leaf_uses(parsed(a(8), a(8)).tree("train"))}
    assert use == "()"


def test_if_some_windows_have_several_lengths_all_samples_have_a_loss_mask():
    found = leaves_of(compiled(a(8), blend(a(16), a(16, name="b"))))
    assert found[-1].id == "b.bin:train;seq_len=16;dtype=uint32"
    for leaf in found:
        assert leaf.source.read(np.arange(1))[0]["loss_mask"].all()


def test_other_ids_are_other_leaves():
    found, _ = leaves(a(8, "id: short"), a(32, "id: long"))
    assert found == [("short", 1), ("long", 1)]
    found, _ = leaves(a(8, "id: one"), a(32))
    assert found == [("one", 4), ("one", 1)]


def test_a_stage_counts_the_tokens_of_its_windows():
    spec = compiled(a(8), a(32), unit="tokens")
    assert [stage.params["seq_len"] for stage in spec.stages] == [8, 32]
    with pytest.raises(SpecError, match="a parameter `seq_len`, read windows of one length"):
        compiled(blend(a(8), a(16, name="b")), a(32), unit="tokens")


WRONG = {
    "no multiple": (
        [a(8), a(20)],
        r"m.yaml:6:\d+: .*leaf 'a.bin:.*': .*a.bin: max_seq_len 20 is no multiple of `seq_len` 8",
    ),
    "shorter": (
        [a(8, "max_seq_len: 4, id: x"), a(8, "id: y")],
        r"seq_len must be at most `max_seq_len`, which is 4, found 8",
    ),
    "overlap": (
        [a(9, "stride: 8"), a(34, "stride: 33")],
        r"m.yaml:6:\d+: .*max_seq_len 34 is no multiple of `seq_len` 9, less the 1 that",
    ),
    "other overlap": (
        [a(9, "stride: 8"), a(25, "stride: 25, max_seq_len: 25")],
        r"m.yaml:7:\d+: .*is two different datasets in the stages 's0' and 's1'",
    ),
    "one mixture": (
        [blend(a(8), a(32)), a(32)],
        r"m.yaml:6:\d+: .*seq_len.*is read in windows of 8 and of 32 tokens in one mixture, and "
        r"would have one order. Make them equal, or give each an `id:`",
    ),
    "ramp": (
        [a(8), f"ramp: {{over: 2}}, {a(32)}"],
        r"m.yaml:7:\d+: .*a ramp blends samples of both stages within a batch, and seq_len differ",
    ),
    "too long": ([a(8), a(2048)], "less than a window of 2,048. Lower `max_seq_len`"),
    "documents": (
        ["path: a.bin, dtype: uint32, max_seq_len: 8", a(8)],
        "max_seq_len and cu_seqlens are for windows. Give their `seq_len`",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_windows_that_do_not_fit_are_errors_at_their_place(what):
    stages, problem = WRONG[what]
    with pytest.raises(SpecError, match=problem):
        compiled(*stages)


def test_a_subset_is_a_range_of_the_longest_windows():
    spec = compiled(
        a(8, 'subset: {range: ["25%", "75%"]}'), a(80, 'subset: {range: ["25%", "75%"]}')
    )
    short, long = leaves_of(spec)
    assert (len(short.source), len(long.source)) == (60, 6)
    assert short.source.read(np.arange(1))[0]["tokens"][0] == 240
    assert long.source.read(np.arange(1))[0]["tokens"][0] == 240
