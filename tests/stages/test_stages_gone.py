"""Leaves that an edit takes out and a later one puts back go on where they were."""

from __future__ import annotations

import json

import pytest
from loader.runs import in_order, loaders_of
from trees import batches, leaf, samples

from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.staged import StagedSpec
from energy_data.stage import Stage

X, Y, Z = leaf("x", 100), leaf("y", 60), leaf("z", 80)


def blend(*leaves):
    return batches(samples(BlendSpec(tuple(map(Part, leaves)))))


def plan(*stages, resume="ignore"):
    begins = [0, *(end for _, end, _ in stages)]
    return StagedSpec(
        resume=resume,
        stages=tuple(
            Stage(name=name, of=of, begin=begin, end=end)
            for (name, end, of), begin in zip(stages, begins, strict=False)
        ),
    )


def saved(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def restored(spec, states, ranks, *, own=False, **facts):
    loaders = loaders_of(spec, ranks, lanes=4)
    for number, loader in enumerate(loaders):
        if own:
            loader.load_state_dict(states[number], **facts)
        else:
            loader.restore_state_global(states, **facts)
    return loaders


def of_x(given):
    return [key for batch in given for key in batch if key.startswith("x")]


PLAIN = (blend(X, Y), blend(Y), blend(Y, Z), blend(X, Z))
STAGED = tuple(plan(("a", None, body)) for body in PLAIN)
LATER = (
    plan(("a", 8, blend(X, Y)), ("b", None, blend(Y))),
    *(plan(("c", None, body)) for body in PLAIN[1:]),
)


@pytest.mark.parametrize("specs", [PLAIN, STAGED, LATER])
@pytest.mark.parametrize(("ranks", "own"), [(1, False), (2, True), (2, False)])
def test_a_leaf_taken_out_in_one_edit_and_put_back_two_later_goes_on(specs, ranks, own):
    loaders = loaders_of(specs[0], ranks, lanes=4)
    before = of_x(in_order(loaders, 8 // ranks))
    assert before
    for spec in specs[1:-1]:
        loaders = restored(spec, saved(loaders), ranks, own=own, on_mismatch="keep_matching")
        loaders = restored(spec, saved(loaders), ranks, own=own)  # saved again as it is
        assert not of_x(in_order(loaders, 4 // ranks))
    loaders = restored(specs[-1], saved(loaders), 3 - ranks, on_mismatch="keep_matching")
    after = of_x(in_order(loaders, 16 // (3 - ranks)))
    assert after
    assert not set(before) & set(after)
    alone = of_x(in_order(loaders_of(blend(X), 1, lanes=4), 32))
    assert set(before) | set(after) <= set(alone)
    state = saved(loaders)
    assert "x" not in str([entry for entry in state[0]["start"] if entry[0] == ""])


def test_another_dataset_under_the_id_begins():
    (loader,) = loaders_of(PLAIN[0], 1, lanes=4)
    in_order([loader], 8)
    (loader,) = restored(PLAIN[1], saved([loader]), 1, on_mismatch="keep_matching")
    other = blend(leaf("x", 101), Y)
    (again,) = restored(other, saved([loader]), 1, on_mismatch="keep_matching")
    assert of_x(in_order([again], 8)) == of_x(in_order(loaders_of(other, 1, lanes=4), 8))


def test_strict_carries_a_leaf_of_a_stage_ahead_that_is_put_back():
    first = plan(("a", None, blend(X, Y)))
    (loader,) = loaders_of(first, 1, lanes=4)
    before = of_x(in_order([loader], 8))
    (loader,) = restored(plan(("b", None, blend(Y))), saved([loader]), 1)
    in_order([loader], 4)
    ahead = plan(("b", 16, blend(Y)), ("c", None, blend(X)), resume="strict")
    (loader,) = restored(ahead, saved([loader]), 1)
    assert not set(before) & set(of_x(in_order([loader], 16)))
