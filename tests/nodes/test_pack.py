"""Packs: full, within their limits, every document once, and nothing lost without a word."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from trees import cut, finite, leaf, lengths, packs, references, samples

from energy_data.core.context import Context
from energy_data.core.cursor import restore, save
from energy_data.errors import DataError, SpecError
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import CutFields, Joined, Packing
from energy_data.nodes.read import ReadSpec
from energy_data.tasks.collate import collate
from energy_data.tasks.orders import uncounted
from energy_data.testing import next_item, take

LENGTHS = np.random.default_rng(0).lognormal(6, 1, 5000).clip(1, 2048).astype(int).tolist()

LARGE = {"tokens": 8192}


def log_normal(sample):
    return {"tokens": LENGTHS[sample["number"] % 5000], "images": sample["number"] % 4}


def keys(samples):
    return [sample["__key__"] for sample in samples]


def packing(**facts):
    return Packing(**{"limits": {"tokens": 2048}, "lengths": log_normal, "pack": keys, **facts})


def listed(samples):
    return {"keys": keys(samples)}


def taken(spec, count=10**6, **context):
    return take(spec.build(Context(**context)), count)


def one_pass(size=40):
    return samples(leaf("x", size), deal=2)


@pytest.mark.parametrize("limits", [{"tokens": 2048}, {"tokens": 8192, "images": 60}])
def test_packs_of_log_normal_lengths_are_98_percent_full(limits):
    rule = packing(limits=limits, pack=listed)
    given = taken(PackSpec(of=samples(leaf("x", 10**6)), packing=rule), 400)
    assert sum(pack["__tokens__"] for pack in given) >= 0.98 * limits["tokens"] * len(given)
    for name, limit in limits.items():
        assert max(pack[f"__{name}__"] for pack in given) <= limit


@pytest.mark.parametrize(
    ("size", "expected"), [(60, [5, 7, 8, 8]), (200, [15, 16, 23, 25]), (1000, [69, 71, 77, 102])]
)
def test_few_lanes_pack_a_small_finite_set_fuller(size, expected):
    spec = PackSpec(of=uncounted(samples(leaf("x", size), deal=1)), packing=packing(limits=LARGE))
    found = [
        sum(len(taken(spec, lane=lane, lanes=lanes)) for lane in range(lanes))
        for lanes in (1, 4, 16, 64)
    ]
    assert found == expected


@pytest.mark.parametrize("lanes", [1, 3, 50])
@pytest.mark.parametrize(
    "facts",
    [{}, {"limits": {"tokens": 3000, "images": 5}}, {"buffer": 1}],
)
def test_a_pass_packs_every_document_exactly_once(facts, lanes):
    rule = packing(**{name: fact for name, fact in facts.items() if name != "buffer"})
    spec = PackSpec(of=one_pass(), packing=rule, buffer_size=facts.get("buffer", 8))
    given = [
        key for lane in range(lanes) for pack in taken(spec, lane=lane, lanes=lanes) for key in pack
    ]
    assert sorted(given) == sorted(f"x/{n}" for n in range(40))


def test_a_pack_says_how_many_documents_and_tokens_it_has():
    given = taken(PackSpec(of=one_pass(), packing=packing(pack=listed)))
    for pack in given:
        assert pack["__docs__"] == len(pack["keys"])
        numbers = [int(key.split("/")[1]) for key in pack["keys"]]
        assert pack["__tokens__"] == sum(LENGTHS[n] for n in numbers)


def test_a_document_above_a_limit_is_an_error_that_says_what_to_do():
    spec = packs(one_pass(), limits={"tokens": 5})
    with pytest.raises(DataError, match=r"dataset x, .* it has .*, and a pack at most 5 .*'split'"):
        taken(spec)


@pytest.mark.parametrize("over_long", ["error", "split"])
def test_a_document_whose_encoder_drops_its_source_is_named_by_its_leaf(over_long):
    def encode(sample):
        return {"tokens": range(4), "images": 1 + 8 * (sample["number"] == 7)}

    rule = Packing(limits={"tokens": 8, "images": 8}, pack=len, over_long=over_long)
    spec = PackSpec(of=EncodeSpec(of=samples(leaf("x", 40)), encode=encode), packing=rule)
    with pytest.raises(DataError, match=r"^leaf x, sample 7: it does not fit into a pack"):
        taken(spec)


def test_what_is_above_the_limit_in_something_else_cannot_be_cut():
    spec = packs(one_pass(), limits={"tokens": 12, "images": 1}, over_long="truncate")
    with pytest.raises(DataError, match=r"it has .* 2 images, and a pack at most 12 tokens, 1"):
        taken(spec)


@pytest.mark.parametrize("over_long", ["skip", "truncate", "split"])
def test_tokens_in_are_tokens_out_and_what_is_counted_as_lost(over_long):
    node = packs(one_pass(), limits={"tokens": 5}, over_long=over_long).build(Context())
    given = take(node, 100)
    whole = [lengths({"number": n})["tokens"] for n in range(40)]
    at = node.cursor
    assert sum(pack["__tokens__"] for pack in given) + at.cut == sum(whole)
    long = sum(size > 5 for size in whole)
    assert (at.skipped, at.truncated) == {
        "skip": (long, 0),
        "truncate": (0, long),
        "split": (0, 0),
    }[over_long]


def test_a_document_without_tokens_that_is_skipped_is_counted_too():
    rule = packing(
        limits={"tokens": 9, "images": 2},
        lengths=lambda sample: {"tokens": 0, "images": sample["number"] % 4},
        over_long="skip",
    )
    node = PackSpec(of=one_pass(), packing=rule).build(Context())
    take(node, 100)
    assert (node.cursor.skipped, node.cursor.cut) == (10, 0)


@pytest.mark.parametrize(("fragments", "counted"), [("last", 40), ("each", None)])
def test_a_split_document_counts_once_or_with_each_part(fragments, counted):
    given = taken(packs(one_pass(), limits={"tokens": 5}, over_long="split", fragments=fragments))
    parts = sum(len(pack["__key__"]) for pack in given)
    assert sum(pack["__docs__"] for pack in given) == (counted or parts)
    assert parts > 40


def tokens(sample):
    return {"tokens": torch.arange(sample["number"] % 7 + 1) + 100 * sample["number"]}


def test_parts_of_a_split_document_are_the_whole_document():
    rule = Packing(limits={"tokens": 3}, over_long="split")
    spec = PackSpec(of=EncodeSpec(of=one_pass(), encode=tokens), packing=rule)
    given = torch.cat([pack["tokens"][: pack["__tokens__"]] for pack in taken(spec)])
    expected = torch.cat([tokens({"number": n})["tokens"] for n in range(40)])
    assert torch.equal(given.sort().values, expected.sort().values)


def test_joined_documents_are_padded_and_say_where_they_begin():
    documents = [
        {"tokens": torch.tensor([5, 6, 7]), "labels": np.array([6, 7, -1]), "name": "a"},
        {"tokens": torch.tensor([8, 9]), "labels": np.array([9, -1]), "name": "b"},
    ]
    pack = Joined("tokens", 7, {"labels": -100})(documents)
    assert pack["tokens"].tolist() == [5, 6, 7, 8, 9, 0, 0]
    assert pack["labels"].tolist() == [6, 7, -1, 9, -1, -100, -100]
    assert pack["cu_seqlens"].tolist() == [0, 3, 5]
    assert pack["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert pack["name"] == ["a", "b"]


LINE = {"tokens": torch.arange(3), "labels": np.arange(3), "name": "a"}


@pytest.mark.parametrize(
    ("last", "is_copied"),
    [(LINE, False), ({**LINE, "name": None}, False), ({"tokens": torch.arange(1)}, True)],
)
def test_packs_of_a_batch_are_rows_of_its_tensors_if_their_documents_are_alike(last, is_copied):
    joined = Joined("tokens", 7, {"labels": -100})
    packs = [[LINE, LINE], [LINE], [last, last]]
    rows = joined.rows(packs)
    batch, expected = collate(rows), collate(list(map(joined, packs)))
    assert str(batch) == str(expected)
    block = getattr(rows[0]["tokens"], "block", None)
    assert (batch["tokens"] is not block) == is_copied


def test_a_list_has_none_where_a_document_lacks_the_field():
    image = torch.zeros(3, 2, 2)
    pack = Joined()([{"tokens": torch.arange(2), "image": image}, {"tokens": torch.arange(1)}])
    assert pack["image"][0] is image
    assert pack["image"][1] is None


@pytest.mark.parametrize("other", [{}, {"labels": None}, {"labels": [1]}])
def test_a_field_that_is_joined_must_be_in_all_documents(other):
    documents = [{"tokens": torch.arange(2), "labels": torch.arange(2)}]
    with pytest.raises(DataError, match="'labels' is one-dimensional in some documents"):
        Joined()([*documents, {"tokens": torch.arange(1), **other}])


def test_what_is_joined_is_as_long_as_its_document():
    wrong = {**LINE, "labels": torch.arange(2)}
    with pytest.raises(DataError, match="'labels' has 2 values in a document of 3 tokens"):
        Joined()([LINE, wrong])


@pytest.mark.parametrize(
    ("document", "found"), [({"tokens": [1, 2]}, "list"), ({"labels": [1]}, "no such field")]
)
def test_the_field_that_documents_are_measured_by_is_joined(document, found):
    with pytest.raises(DataError, match=f"'tokens' must be a one-dimensional .* found {found}"):
        Joined()([document])


def test_positions_restart_in_each_part_unless_documents_have_their_own():
    document = {"tokens": torch.arange(5)}
    own = {**document, "position_ids": torch.arange(5)}
    for whole, expected in ((document, [0, 1, 2, 0, 1]), (own, [0, 1, 2, 3, 4])):
        parts = [CutFields()(whole, 0, 3), CutFields()(whole, 3, 5)]
        assert Joined()(parts)["position_ids"].tolist() == expected


def test_an_empty_pack_is_padding():
    pack = Joined("tokens", 4)([])
    assert pack["tokens"].tolist() == [0, 0, 0, 0]
    assert pack["cu_seqlens"].tolist() == [0]


def test_a_document_is_cut_in_all_its_fields():
    document = {
        "tokens": torch.arange(5),
        "labels": np.arange(5),
        "image": torch.zeros(5, 2),
        "n": 1,
    }
    part = CutFields()(document, 1, 3)
    assert (part["tokens"].tolist(), part["labels"].tolist()) == ([1, 2], [1, 2])
    assert part["image"] is document["image"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"limits": {}}, "limits must be names"),
        ({"limits": {"tokens": 0}}, "limits must be names"),
        ({"fragments": "first"}, "fragments must be one of"),
        ({"over_long": "cut"}, "over_long must be one of"),
    ],
)
def test_what_cannot_be_packed_is_refused(facts, message):
    with pytest.raises(SpecError, match=message):
        packing(**facts)


def test_only_what_can_be_made_again_can_be_packed():
    with pytest.raises(SpecError, match="'batch' below it cannot replay its items"):
        packs(finite(leaf("x", 5)))


def test_a_document_without_a_length_is_an_error_that_names_its_fields():
    rule = Packing(limits={"tokens": 9})
    with pytest.raises(DataError, match=r"dataset x, .*: it has no 'tokens' to measure, found __k"):
        taken(PackSpec(of=one_pass(), packing=rule))


def test_an_encoder_that_changes_its_mind_is_found_out_after_a_restore():
    spec = PackSpec(
        of=EncodeSpec(of=samples(leaf("x", 40)), encode=Growing()),
        packing=Packing(limits={"tokens": 8}, over_long="split"),
    )
    node = spec.build(Context())
    next_item(node)
    again = spec.build(Context())
    restore(again, json.loads(json.dumps(save(node))))
    with pytest.raises(DataError, match="differs from that before the save"):
        take(again, 200)


class Growing:
    """An encoder that depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, sample):
        self.calls += 1
        return {"tokens": torch.zeros(9 + self.calls)}


def test_restored_it_reads_what_is_pending_and_the_next_block_only():
    source = leaf("x", 10**6)
    spec = PackSpec(of=ReadSpec(of=references(source)), packing=packing(), buffer_size=64)
    node = spec.build(Context())
    for _ in range(300):
        next_item(node)
    state = json.loads(json.dumps(save(node)))
    expected = [next_item(node) for _ in range(20)]
    again = spec.build(Context())
    restore(again, state)
    before = source.leaf.source.num_read
    first = next_item(again)
    assert source.leaf.source.num_read - before <= 64 + 32
    assert [first, *take(again, 19)] == expected


def test_cut_documents_of_the_tests_have_the_length_they_say():
    assert lengths(cut({"__key__": "k", "number": 3}, 0, 5))["tokens"] == 5
