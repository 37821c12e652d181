"""Steps of so many documents above stages that fade into each other step by step."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from trees import leaf, numbers, samples

from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.fade import Fade
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from loader.runs import in_order, loader_of
from loader.steps import numbered, ranks_of, take

LANES = 12
FADE = Fade(kind="linear", steps=11, before=4, now=6)
BEGIN = 16  # of the second stage
SIZES = {0: 2, 1: 5}  # samples in a micro-batch of each


def fading(collate=numbered):
    short, long = (
        BatchSpec(of=samples(leaf("x", 900)), batch_size=size, collate=collate)
        for size in SIZES.values()
    )
    return StagedSpec(
        stages=(
            Stage(name="short", of=short, begin=0, end=BEGIN, microbatches_per_step=4),
            Stage(name="long", of=long, begin=BEGIN, end=None, fade=FADE, microbatches_per_step=6),
        )
    )


def maker(batch):
    return int(batch >= BEGIN and FADE.is_own(batch - BEGIN))


END = BEGIN + FADE.batches + 12
# Where a step of the ramp is made by another stage than the one before.
SWITCHES = [g for g in range(1, END) if maker(g) != maker(g - 1)]


def steps_of(given):
    return [[keys for keys, _ in step] for _, step in groupby(given, lambda one: one[1].step)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("target", [4, 9, 1000])
def test_no_step_is_of_two_stages_and_the_batches_are_those_of_the_ramp(ranks, target):
    assert len(SWITCHES) > 4
    given = take(ranks_of(fading(), ranks, target=target), END // ranks)
    whole = in_order([loader_of(fading(), lanes=LANES)], END)
    in_turn = [keys for each in zip(*given, strict=True) for keys, _ in each]
    assert in_turn == [tuple(batch["__key__"]) for batch in whole]
    for mine in given:
        assert all(len({len(keys) for keys in step}) == 1 for step in steps_of(mine))
        for n, (_, step) in enumerate(mine):
            enough = step.step_docs >= target
            closed = (n + step.num_microbatches - step.index) * ranks in SWITCHES
            assert enough or closed
            assert step.is_short == (not enough)


@pytest.mark.parametrize("ranks", [1, 2])
def test_saved_after_any_micro_batch_of_a_ramp_it_goes_on_identically(ranks):
    expected = take(ranks_of(fading(), ranks, target=17), END // ranks)
    loaders = ranks_of(fading(), ranks, target=17)
    take(loaders, BEGIN // ranks - 2)
    for at in range(BEGIN // ranks - 2, END // ranks - 4):
        again = ranks_of(fading(), ranks, target=17)
        for loader, one in zip(again, loaders, strict=True):
            loader.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert take(again, 4) == [given[at : at + 4] for given in expected]
        take(loaders, 1)


def test_between_the_steps_of_a_ramp_another_number_of_ranks_goes_on():
    loaders = ranks_of(fading(), 2, target=17)
    given = take(loaders, BEGIN // 2 + 3)
    while not given[0][-1][1].is_last:
        given = [mine + more for mine, more in zip(given, take(loaders, 1), strict=True)]
    begun = 2 * len(given[0])
    assert BEGIN < begun < BEGIN + FADE.batches
    (one,) = ranks_of(fading(), target=17)
    one.restore_state_global(json.loads(json.dumps([each.state_dict() for each in loaders])))
    whole = in_order([loader_of(fading(), lanes=LANES)], END)
    (rest,) = take([one], END - begun)
    assert [keys for keys, _ in rest] == [tuple(batch["__key__"]) for batch in whole[begun:]]


@pytest.mark.parametrize("collate", [numbered, numbers])
def test_a_step_is_closed_though_batches_do_not_say_their_stage(collate):
    count = "documents" if collate is numbered else len
    (loader,) = ranks_of(fading(collate), target=17, count=count)
    sizes, steps = [], []
    for batch in loader:
        sizes.append(len(batch["__key__"] if collate is numbered else batch))
        steps.append(loader.last_step.step)
        if len(sizes) == END:
            break
    of_step = {step: {s for s, n in zip(sizes, steps, strict=True) if n == step} for step in steps}
    assert all(len(each) == 1 for each in of_step.values())


def test_exact_steps_above_a_ramp_are_refused_with_what_to_do():
    with pytest.raises(SpecError, match=r"mode 'exact' cuts .* use mode 'at_least'"):
        ranks_of(fading(), target=17, mode="exact")
