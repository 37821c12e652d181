"""Stages in a run: exact on any number of ranks and workers, saved and restored anywhere."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.runs import in_order, loader_of, loaders_of, run
from trees import A, B, C, batches, leaf, references, samples, staged

from energy_data.core.context import Context
from energy_data.errors import DataError, SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.testing import NumberSource, next_item

X, Y = leaf("x", 100), leaf("y", 60)


def saved(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def told(item):
    """A batch of samples as a dict, which can say its stage."""
    return {"keys": [sample["__key__"] for sample in item]}


def dicts(of, batch_size=3):
    return BatchSpec(of=of, batch_size=batch_size, collate=told)


def three(every=1):
    return staged(dicts(samples(A)), dicts(samples(B), 2), dicts(samples(A), 4), every=every)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_stages_of_5_5_and_5_steps_run_5_5_and_5(ranks, accumulation):
    loaders = loaders_of(three(every=ranks * accumulation), ranks, lanes=6)
    given = run(loaders, 15 * accumulation)
    per_step = ranks * accumulation
    assert len(given) == 15 * per_step
    for g, batch in given.items():
        number = g // per_step // 5
        assert batch["__stage__"] == (number, f"s{number}")
        assert len(batch["keys"]) == (3, 2, 4)[number]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 1)])
def test_saved_at_every_micro_batch_around_a_boundary_it_goes_on_on_other_ranks(before, after):
    spec = staged(batches(samples(A)), batches(samples(B), 2), batches(samples(A), 4), every=4)
    expected = run(loaders_of(spec, 1, lanes=8), 64)
    for rounds in range(64 // before):
        if rounds * before not in {0, *range(16, 25), *range(36, 45)}:
            continue
        first = loaders_of(spec, before, lanes=8)
        done = run(first, rounds)
        second = loaders_of(spec, after, lanes=8)
        for loader in second:
            loader.restore_state_global(saved(first))
        rest = run(second, (64 - rounds * before) // after)
        assert {**done, **rest} == {g: expected[g] for g in {**done, **rest}}
        assert list(rest) == list(range(len(done), len(done) + len(rest)))


def test_a_leaf_of_several_stages_goes_on_and_gives_every_sample_once_per_epoch():
    bodies = batches(samples(X)), batches(samples(Y), 2), batches(samples(X), 4)
    given = run([loader_of(staged(*bodies, steps=(11, 9)), lanes=4)], 11 + 9 + 40)
    of_lane = [[k for g, keys in given.items() if g % 4 == n for k in keys] for n in range(4)]
    # 100 samples in 4 lanes: an epoch is the first 25 draws of each.
    epoch = [key for keys in of_lane for key in [k for k in keys if k.startswith("x")][:25]]
    assert sorted(epoch) == sorted(f"x/{n}" for n in range(100))


def test_every_order_of_visits_draws_from_a_leaf_as_if_it_were_alone():
    alone = in_order([loader_of(batches(samples(X), 2), lanes=1)], 40)
    mixed = BlendSpec((Part(X), Part(Y, 2)))
    spec = staged(
        batches(samples(X), 2), batches(samples(mixed), 3), batches(samples(Y)), batches(samples(X))
    )
    given = in_order([loader_of(spec, lanes=1)], 30)
    of_x = [key for batch in given for key in batch if key.startswith("x")]
    assert of_x == [key for batch in alone for key in batch][: len(of_x)]


def stages_of(*stages, **facts):
    return StagedSpec(stages=stages, **facts)


def test_a_stage_that_restarts_has_an_order_of_its_own_equal_for_equal_seeds():
    body = batches(samples(X), 5)
    stage = {"of": body, "on_enter": "restart"}
    spec = stages_of(
        Stage(name="a", begin=0, end=6, seed=7, **stage),
        Stage(name="b", begin=6, end=12, seed=7, **stage),
        Stage(name="c", begin=12, end=18, seed=8, **stage),
        Stage(name="d", begin=18, end=24, **stage),
        Stage(name="e", begin=24, of=body),
    )
    given = in_order([loader_of(spec, lanes=1)], 30)
    first, second, third, fourth, fifth = (given[n : n + 6] for n in range(0, 30, 6))
    assert first == second
    orders = [first, third, fourth, fifth]
    assert all(one != other for n, one in enumerate(orders) for other in orders[:n])
    assert fifth == in_order([loader_of(body, lanes=1)], 6)  # nothing had gone on before


def test_a_stage_that_is_added_leaves_the_others_as_they_are():
    def order_of_c(*names):
        stages = [
            Stage(name=n, of=batches(samples(Y)), begin=9 * i, end=9 * (i + 1))
            for i, n in enumerate(names)
        ]
        mixed = batches(samples(BlendSpec((Part(X, 2), Part(A)))))
        last = Stage(name="c", of=mixed, begin=9 * len(names))
        return in_order([loader_of(stages_of(*stages, last), lanes=3)], 9 * len(names) + 12)[-12:]

    assert order_of_c("a") == order_of_c("a", "b") == order_of_c("z", "b", "a")


def test_a_stage_that_draws_a_leaf_through_two_order_trees_changes_no_other():
    one, first = batches(samples(X)), Stage(name="a", of=batches(samples(X)), begin=0, end=20)
    two = batches(BlendSpec((Part(samples(X)), Part(samples(X)))))
    last = Stage(name="c", of=two, begin=40, on_enter="restart")
    plain = stages_of(first, Stage(name="b", of=one, begin=20))
    crossed = stages_of(first, Stage(name="b", of=one, begin=20, end=40), last)
    expected = in_order([loader_of(plain, lanes=4)], 40)
    assert in_order([loader_of(crossed, lanes=4)], 40) == expected
    before = loader_of(plain, lanes=4)
    in_order([before], 12)
    after = loader_of(crossed, lanes=4)
    after.load_state_dict(before.state_dict())
    assert in_order([after], 28) == expected[12:]


def test_the_stage_default_draws_as_a_run_without_stages():
    body = batches(samples(BlendSpec((Part(X, 2), Part(Y)))))
    spec = stages_of(Stage(name="default", of=body, begin=0))
    assert in_order([loader_of(spec)], 30) == in_order([loader_of(body)], 30)
    other = stages_of(Stage(name="other", of=body, begin=0))
    assert in_order([loader_of(other)], 30) != in_order([loader_of(body)], 30)


def test_after_the_end_of_the_last_stage_nothing_comes_and_nothing_begins_again():
    spec = stages_of(Stage(name="a", of=batches(samples(A)), begin=0, end=7))
    loader = loader_of(spec, lanes=2)
    assert len(in_order([loader])) == 7
    assert in_order([loader]) == []
    again = loader_of(spec, lanes=2)
    again.load_state_dict(loader.state_dict())
    assert in_order([again]) == []


def test_a_stage_opens_nothing_before_it_is_entered_and_holds_nothing_after():
    first, second = leaf("x", 100), leaf("y", 60)
    node = staged(batches(samples(first)), batches(samples(second))).build(Context())
    for _ in range(5):
        next_item(node)
    assert second.leaf.source.num_read == 0
    assert planned(node.children["s0"])
    next_item(node)
    assert second.leaf.source.num_read > 0
    assert not planned(node.children["s0"])


def planned(node):
    """Whether an order tree under a node holds what it has computed."""
    return any("plan" in vars(inner) for _, inner in node.walk())


def test_a_pipeline_that_ends_is_played_again_or_is_an_error():
    once = BatchSpec(of=LimitSpec(of=samples(A), length=4), batch_size=2, collate=tuple)
    stages = (Stage(name="a", of=once, begin=0, end=6), Stage(name="b", of=once, begin=6))
    again = StagedSpec(stages=stages).build(Context())
    assert len([next_item(again) for _ in range(12)]) == 12
    empty = BatchSpec(
        of=LimitSpec(of=samples(A), length=1), batch_size=2, collate=tuple, drop_last=True
    )
    node = StagedSpec(stages=(evolve(stages[0], of=empty), stages[1])).build(Context())
    with pytest.raises(DataError, match="stage 'a' has no batch at micro-batch 0 of the run"):
        next_item(node)


def test_ranks_that_could_not_switch_together_are_refused():
    spec = staged(batches(samples(A)), batches(samples(B)))
    loaders_of(spec, 1)
    with pytest.raises(SpecError, match="micro-batches 0 to 5, which 2 ranks cannot share evenly"):
        loaders_of(spec, 2)


@pytest.mark.parametrize("above", [lambda s: BlendSpec((Part(s),)), lambda s: staged(s)])
def test_nothing_that_mixes_stands_over_stages(above):
    spec = above(staged(batches(samples(A)), batches(samples(B))))
    with pytest.raises(SpecError, match="it counts the micro-batches of the run"):
        SavableDataset(spec=spec)


def test_stages_that_do_not_fit_together_are_refused_all_at_once():
    body = batches(samples(A))
    with pytest.raises(SpecError) as caught:
        stages_of(
            Stage(name="a", of=body, begin=0, end=5),
            Stage(name="a", of=body, begin=5, end=5),
            Stage(name="b", of=body, begin=7, end=9),
            Stage(name=" ", of=samples(A), begin=8),
            resume="ignore",
        )
    faults = str(caught.value)
    for problem in (
        "two stages are named 'a'",
        "'a' would never run",
        "'b' begins at micro-batch 7, where the one before ends at 5",
        "' ' begins at micro-batch 8, where the one before ends at 9",
        "a stage has no name",
        "returns samples, not batches",
        "resume must be 'strict' or 'ablation', got 'ignore'",
    ):
        assert problem in faults


def test_a_leaf_cannot_go_on_in_another_shuffle():
    other = ReadSpec(of=ReferencesSpec(of=A, shuffle=Shuffle(buffer_size=7)))
    with pytest.raises(SpecError, match="leaf 'a' is shuffled differently in the stages 's0' and"):
        staged(batches(samples(A)), batches(other))
    anew = Stage(name="b", of=batches(other), begin=5, on_enter="restart")
    stages_of(Stage(name="a", of=batches(samples(A)), begin=0, end=5), anew)


@pytest.mark.parametrize("on_enter", ["continue", "restart"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epochs": 3}, "has shuffle_over_epochs_multiplier 1 and 3 in the stages 's0' and 's1'"),
        ({"source": NumberSource(11, "a")}, "is two different datasets in the stages 's0' and"),
    ],
)
def test_a_leaf_is_the_same_in_all_stages(changed, said, on_enter):
    first = staged(batches(samples(A))).stages[0]
    other = batches(samples(evolve(A, leaf=evolve(A.leaf, **changed))))
    second = evolve(first, name="s1", of=other, begin=5, end=None, on_enter=on_enter)
    with pytest.raises(SpecError, match=f"leaf 'a' {said}"):
        stages_of(evolve(first, end=5), second)
    stages_of(evolve(first, end=5), evolve(second, of=batches(samples(leaf("a")))))


def test_a_leaf_of_two_pipelines_of_one_stage_cannot_go_on():
    body = batches(BlendSpec((Part(samples(A)), Part(ReadSpec(of=references(A))))))
    with pytest.raises(SpecError, match="'a' is drawn from by several pipelines of stage 's0'"):
        staged(body, batches(samples(B)))


def test_shares_of_lanes_stay_complete_over_stages():
    spec = staged(
        batches(samples(X), 1), batches(samples(C), 1), batches(samples(X), 1), steps=(37, 10)
    )
    given = in_order([loader_of(spec, lanes=10)], 37 + 10 + 200)
    counts = Counter(key for batch in given for key in batch if key.startswith("x"))
    assert len(counts) == 100
    assert max(counts.values()) - min(counts.values()) <= 2


@settings(max_examples=30, deadline=None)
@given(data=st.data(), lane=st.integers(0, 2))
def test_whatever_the_stages_each_leaf_is_drawn_from_as_if_it_were_alone(data, lane):
    known = {leaf.leaf.id: leaf for leaf in (leaf("a", 10), leaf("b", 4), leaf("d", 23))}
    mixtures = st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4).map(
        lambda ids: BlendSpec(tuple(Part(known[name], n + 1) for n, name in enumerate(ids)))
    )
    bodies = data.draw(st.lists(st.tuples(mixtures, st.integers(1, 4)), min_size=1, max_size=5))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=5, max_size=5))
    pipelines = [batches(samples(order), size) for order, size in bodies]
    spec = staged(*pipelines, steps=lengths)
    node = spec.build(Context(lane=lane, lanes=3))
    keys = [key for _ in range(15) for key in next_item(node)]
    for name, one in known.items():
        of_leaf = [key for key in keys if key.startswith(name)]
        dealt_alike = Context(lane=lane, lanes=3, grains=spec.grains)
        alone = batches(samples(one), 1).build(dealt_alike)
        assert of_leaf == [key for _ in of_leaf for key in next_item(alone)]
