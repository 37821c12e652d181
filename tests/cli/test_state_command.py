"""`energy-data state`: looking into states, comparing them, going on some batches later."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from loading.runs import loader_of, loaders_of, run
from trees import KINDS, A, B, batches, finite, leaf, packs, samples

from energy_data.cli.main import main
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec

BLEND = batches(samples(BlendSpec((Part(A, 2), Part(B)))), 3)
OTHER = batches(samples(BlendSpec((Part(A, 2), Part(leaf("new", 8))))), 3)


def state(*arguments):
    return CliRunner().invoke(main, ["state", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path):
    """Files of states: `of(loader)` saves one."""

    def of(loader, name="state.json"):
        path = tmp_path / name
        path.write_text(json.dumps(loader.state_dict()))
        return path

    return of


def test_a_state_says_where_the_run_is_and_what_was_drawn(saved):
    loader = loader_of(BLEND, lanes=4)
    run([loader], 8)
    said = state("show", saved(loader)).output.splitlines()
    assert "next micro-batch: 8" in said
    assert "  a: 16 samples drawn, 1.6 epochs of 10" in said
    assert "  b: 8 samples drawn, 2 epochs of 4" in said


def test_states_of_all_ranks_are_one_run(saved):
    loaders = loaders_of(BLEND, 2, lanes=4)
    run(loaders, 4)
    files = [saved(loader, f"{rank}.json") for rank, loader in enumerate(loaders)]
    assert "next micro-batch: 8" in state("show", *files).output
    assert "saved by: rank 1 of 2" in state("show", files[1]).output


def test_a_state_of_torch_is_read_too(tmp_path):
    torch.save(loader_of(BLEND, lanes=4).state_dict(), tmp_path / "state.pt")
    assert "next micro-batch: 0" in state("show", tmp_path / "state.pt").output


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("batches", [2, 6, 10, 2_000_000])
def test_a_run_goes_on_some_batches_later_without_reading(saved, tmp_path, ranks, batches):
    loaders = loaders_of(BLEND, ranks, lanes=4)
    run(loaders, 6 // ranks)
    for rank, loader in enumerate(loaders):
        out = tmp_path / f"later-{rank}.json"
        assert not state("skip", saved(loader), out, "--batches", batches).exception
        loader.load_state_dict(json.loads(out.read_text()))
    later = run(loaders, 8 // ranks)
    assert later.keys() == set(range(6 + batches, 14 + batches))
    if batches < 100:
        whole = run([loader_of(BLEND, lanes=4)], 14 + batches)
        assert later == {number: whole[number] for number in later}


REFUSED = {
    "packs": (batches(packs(samples(A)), 2), "there is a pack in its tree"),
    "filter": (
        batches(FilterSpec(of=samples(A), predicate=bool), 2),
        "there is a filter in its tree",
    ),
    "finite": (finite(A, 2), "finite stream"),
    "staged": (KINDS["staged"][0], "made by a staged"),
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_where_only_drawing_tells_how_far_it_is_nothing_is_skipped(saved, tmp_path, kind):
    spec, problem = REFUSED[kind]
    refused = state("skip", saved(loader_of(spec, lanes=4)), tmp_path / "out", "--batches", 4)
    assert refused.exit_code == 1
    assert problem in refused.output
    assert "restore it, and draw them" in refused.output


def test_ranks_skip_the_same_number_each(saved, tmp_path):
    rank = saved(loaders_of(BLEND, 2, lanes=4)[1])
    refused = state("skip", rank, tmp_path / "out", "--batches", 3)
    assert "Skip a multiple of 2" in refused.output


@pytest.mark.parametrize("text", [b"", b"nothing", b"\x80\x02nothing", b"{}", b"[]"])
def test_a_file_that_is_no_state_is_an_error_that_says_so(tmp_path, text):
    (tmp_path / "state").write_bytes(text)
    refused = state("show", tmp_path / "state")
    assert refused.exit_code == 1
    assert "Pass what" in refused.output or "there is none" in refused.output
