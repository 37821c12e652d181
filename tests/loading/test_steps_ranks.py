"""Steps over real ranks: processes with a gloo group."""

from __future__ import annotations

import json

import pytest
import torch

from loading.steps import STREAM, ranks_of, stream, take
from loading.test_steps_ends import one_pass
from loading.test_steps_gradients import EXACT, documents, gradients
from loading.test_steps_stages import CUT, RULES, SPEC
from loading.test_steps_stages import EXACT as STAGES
from loading.test_steps_stages import ranks_of as staged_ranks

RANK = """
import json, os, signal, sys, time
from itertools import islice, takewhile
from pathlib import Path
from types import SimpleNamespace
from torch import distributed
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.steps.counts import Counts
from energy_data.loading.steps.exchange import Exchange, StepsError
from energy_data.loading.loader import Loader
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.steps.planner import Round
from energy_data.order.step_rules import DocsPerStep
from contextlib import nullcontext
import torch
from attrs import evolve
from torch.nn.parallel import DistributedDataParallel
from loading.steps import STREAM, plain, stream, varying
from loading.test_steps_gradients import EXACT, documents, tiny_model
from loading.test_steps_ends import one_pass
from loading.test_steps_recipes import losses_of, recipe
from loading.test_steps_stages import EXACT as STAGES, CUT, RULES, SPEC
from energy_data.loading.steps.grouper import for_steps

def failing(batch):
    failing.calls += 1
    if failing.calls == 9:
        raise ZeroDivisionError("what now")
    return varying(batch)

failing.calls = 0
folder, scenario = Path(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo")
config = evolve(WorkerConfig.default_worker_config(0), lanes=12)

OWN = [Round(Counts(10 ** config.rank))] * 2

def loader_of(spec, **rules):
    dataset = SavableDataset(spec=spec, worker_config=config)
    return StepGrouper(Loader(dataset, in_steps=True), DocsPerStep(**{"timeout_s": 60, **rules}))

def steps():
    loader = loader_of(STREAM, target=25, lookahead=3)
    given = plain(islice(loader, 20))
    state = loader.state_dict()
    rest = plain(islice(loader, 10))
    again = loader_of(STREAM, target=25, lookahead=3)
    again.load_state_dict(state)
    assert plain(islice(again, 10)) == rest
    loader.load_state_dict(state)  # all ranks go back, with messages on their way
    assert plain(islice(loader, 10)) == rest
    ends = {}
    for way in ("stop", "pad"):
        short = loader_of(one_pass(19), target=7, on_rank_end=way, last="short", lookahead=2)
        ends[way] = [plain(short), plain(short)]
    return given + rest, ends

class Losses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = tiny_model()

    def forward(self, batch):
        return losses_of(self.layers, batch)

def trained():
    model, found = DistributedDataParallel(Losses()), []
    dataset = SavableDataset(spec=stream(documents), worker_config=config)
    rules = DocsPerStep(**EXACT)
    loader = StepGrouper(Loader(for_steps(dataset, rules), in_steps=True), rules)
    def note():
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).tolist())
    exec(recipe("DDP"), {
        "loader": takewhile(lambda batch: batch["__step__"].step < 3, loader),
        "model": model,
        "optimizer": SimpleNamespace(step=note, zero_grad=model.zero_grad),
        "nullcontext": nullcontext,
    })
    return found

def in_more_groups():
    for ranks in ([0], [0], [1]):
        distributed.new_group(ranks)
    return plain(islice(loader_of(STREAM, target=25), 9))

def in_stages():
    found = []
    for spec, rules in ((CUT, STAGES), (SPEC, RULES)):
        run = for_steps(SavableDataset(spec=spec, worker_config=config), rules)
        loader = StepGrouper(Loader(run, in_steps=True), rules)
        given = plain(islice(loader, 7))
        state = loader.state_dict()
        rest = plain(islice(loader, 30))
        loader.load_state_dict(state)  # back over the boundaries
        assert plain(islice(loader, 30)) == rest
        found.append(given + rest)
    return found

def restored(breaks):
    # Rank 0 fails, or is silent until the others give up; then all restart, twice.
    exchange = Exchange(config, 1.5 if breaks else 30)
    said = []
    def say():
        exchange.send(OWN, {})
        said.append(exchange.receive()[0].counts.documents)
    exchange.restart(1)
    say()
    try:
        if breaks and config.rank:
            say()
        elif not breaks and config.rank == 0:
            exchange.fail("KeyError: a bad sample")
            exchange.receive()
    except StepsError as error:
        said.append("failed")
    distributed.barrier()
    for generation in (2, 3):
        exchange.restart(generation)
        say()
    return said

def late():
    time.sleep(3 * config.rank)
    exchange, begin = Exchange(config, 30), time.monotonic()
    exchange.send(OWN, {})
    sent_s = time.monotonic() - begin
    found = exchange.receive()[0].counts.documents
    waited_s = time.monotonic() - begin
    if config.rank == 1:
        told = folder / "found-0.json"
        while not told.exists():  # it never comes to the next
            time.sleep(0.05)
        return found
    exchange = Exchange(config, 1.5)
    exchange.send(OWN, {})
    try:
        exchange.receive()
    except StepsError as error:
        return found, sent_s, waited_s, str(error)

def told(**rules):
    try:
        next(iter(loader_of(STREAM, target=25, **rules)))
    except Exception as error:
        return type(error).__name__, str(error)

def broken(how, timeout_s, at=(1, 6), fails=False):
    bad = fails and config.rank == 1
    spec = stream(failing, size=1000) if bad else STREAM
    loader = loader_of(spec, target=25, lookahead=2, timeout_s=timeout_s)
    begin = time.monotonic()
    try:
        for count, _ in enumerate(loader):
            if how and (config.rank, count) == at:
                how()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - begin

def half_told():
    # Rank 2 asks when rank 0, which keeps the store, has long heard why, and may end.
    return broken(lambda: time.sleep(1.5), 60, at=(2, 3), fails=True)

if scenario == "steps":
    found = *steps(), trained()
elif scenario == "killed":
    found = broken(lambda: os.kill(os.getpid(), signal.SIGKILL), 2)
elif scenario == "failing":
    found = broken(None, 60, fails=True)
elif scenario == "half told":
    found = half_told()
elif scenario == "stages":
    found = in_stages()
elif scenario == "more groups":
    found = in_more_groups()
elif scenario == "other rules":
    found = told(lookahead=2 + config.rank // 2)
elif scenario == "late":
    found = late()
elif scenario == "told":
    found = restored(breaks=False)
elif scenario == "given up":
    found = restored(breaks=True)
elif scenario == "silent":
    found = broken(lambda: time.sleep(8), 2)
(folder / f"found-{config.rank}.json").write_text(json.dumps(found))
if scenario in ("steps", "stages", "told", "given up"):
    distributed.barrier()
    distributed.destroy_process_group()
os._exit(0)
"""


@pytest.fixture
def found_by(tmp_path, gloo_ranks):
    """Returns a function that gives what each rank found in a scenario, all ending well."""

    def found_by(ranks: int, scenario: str, imports: tuple[str, ...] = ()) -> list:
        gloo_ranks.run_well(RANK, tmp_path, ranks, str(tmp_path), scenario, imports=imports)
        return [json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in range(ranks)]

    return found_by


@pytest.fixture
def found_by_those_left(tmp_path, gloo_ranks):
    """Returns a function that gives what the ranks that are left found; rank 0 keeps the store."""

    def found_by_those_left(ranks: int, scenario: str) -> dict:
        gloo_ranks.run(RANK, tmp_path, ranks, str(tmp_path), scenario, by_hand=True, limit_s=100)
        files = {rank: tmp_path / f"found-{rank}.json" for rank in range(ranks)}
        return {rank: json.loads(file.read_text()) for rank, file in files.items() if file.exists()}

    return found_by_those_left


@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_give_the_same_steps_the_same_ends_and_the_same_gradients(found_by, ranks):
    # DistributedDataParallel imports it, which takes as long as torch.
    found = found_by(ranks, "steps", imports=("torch._dynamo",))
    expected = listed(take(ranks_of(STREAM, ranks, target=25), 30))
    assert [given for given, _, _ in found] == expected
    for way in ("stop", "pad"):
        loaders = ranks_of(one_pass(19), ranks, target=7, on_rank_end=way, last="short")
        passes = zip(listed(take(loaders)), listed(take(loaders)), strict=True)
        assert [ends[way] for _, ends, _ in found] == [list(both) for both in passes]
    check_gradients(found)


def test_real_ranks_switch_stages_at_the_same_step(found_by):
    found = found_by(2, "stages")
    for number, (spec, rules) in enumerate([(CUT, STAGES), (SPEC, RULES)]):
        expected = listed(take(staged_ranks(spec, rules, 2), 37))
        assert [mine[number] for mine in found] == expected


def test_ranks_may_be_in_different_numbers_of_process_groups(found_by):
    found = found_by(2, "more groups")
    assert found == listed(take(ranks_of(STREAM, 2, target=25), 9))


def test_nobody_waits_to_send_for_ranks_that_come_late_and_who_never_comes_is_named(
    found_by_those_left,
):
    found = found_by_those_left(2, "late")
    both, sent_s, waited_s, text = found[0]
    assert both == found[1] == 11
    assert sent_s < 1 < 2 < waited_s
    assert "data-parallel ranks [1] of 2 have sent nothing for 1.5 s while the others" in text


def test_ranks_with_another_lookahead_are_an_error_on_all(found_by_those_left):
    text = (
        "docs_per_step: lookahead is 3 on rank 2, and 2 on rank 0. Restore states that were saved "
        "together, and pass the same docs_per_step on all ranks."
    )
    found = found_by_those_left(3, "other rules")
    assert [found.get(rank) for rank in range(3)] == [["StepsError", text]] * 3


@pytest.mark.parametrize(("scenario", "failed"), [("told", [0]), ("given up", [1])])
def test_ranks_restart_after_a_failure_that_only_some_have_seen(found_by, scenario, failed):
    found = found_by(2, scenario)
    for rank in range(2):
        assert found[rank] == [11, *["failed"] * (rank in failed), 11, 11]


def check_gradients(found):
    expected = gradients(ranks_of(stream(documents, 2), 1, **EXACT), 3)
    for _, _, trained in found:
        torch.testing.assert_close(
            torch.tensor(trained, dtype=torch.float64), expected, rtol=0, atol=1e-6
        )


def listed(given):
    """Micro-batches as the ranks write them down."""
    return [
        [[list(keys), step.step, step.index, step.step_docs, step.is_empty] for keys, step in mine]
        for mine in given
    ]


@pytest.mark.parametrize("scenario", ["killed", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_rank_that_is_gone_or_silent_is_named_by_the_others(found_by_those_left, scenario):
    found = found_by_those_left(3, scenario)
    for rank in (0, 2):
        name, text, seconds = found[rank]
        assert name == "StepsError"
        assert "data-parallel ranks [1] of 3 have sent nothing for 2 s while the others" in text
        assert seconds < 30
    assert (1 in found) == (scenario != "killed")


@pytest.mark.parametrize("scenario", ["half told", pytest.param("failing", marks=pytest.mark.slow)])
def test_all_others_hear_why_a_rank_has_failed(found_by_those_left, scenario):
    found = found_by_those_left(3, scenario)
    for rank in (0, 2):
        name, text, seconds = found[rank]
        assert (name, seconds < 30) == ("StepsError", True)
        assert text.startswith("docs_per_step: rank 1 has failed: ZeroDivisionError: what now")
    assert (found[1][0], "what now" in found[1][1]) == ("ZeroDivisionError", True)
