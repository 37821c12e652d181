"""Tokens of texts are counted once, and then known without reading."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chunk_files import numbers_as_mds
from click.testing import CliRunner
from tars import write_tar
from text_files import MARKED, TALK, TEXT, write_tokenizer

from energy_data import SampleError, SpecError, StructureError, Tokenize, TokenizeChat
from energy_data.cli.main import main
from energy_data.data.jsonl import JSONL
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.text import counting
from energy_data.data.text.counting import count_tokens

TEXTS = [TEXT[: n * 7 % 60] for n in range(50)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("model"), MARKED)


def jsonl(folder, texts=TEXTS):
    """Files of 20, 0 and 30 samples."""
    for shard, part in enumerate((texts[:20], [], texts[20:])):
        lines = (json.dumps({"text": text, "messages": TALK}) + "\n" for text in part)
        (folder / f"{shard}.jsonl").write_text("".join(lines))
    return folder


def parquet(folder):
    table = pa.table({"image": [b"no picture"] * 50, "text": TEXTS, "messages": [TALK] * 50})
    pq.write_table(table, folder / "x.parquet", row_group_size=8)
    return folder / "x.parquet"


def tar(folder):
    files = [(f"{n}.txt", text.encode()) for n, text in enumerate(TEXTS)]
    noise = [(f"{n}.jpg", b"no picture") for n in range(50)]
    write_tar(folder / "x.tar", [one for pair in zip(files, noise, strict=True) for one in pair])
    return folder / "x.tar"


DATASETS = {"jsonl": (jsonl, "json.text"), "parquet": (parquet, "text"), "tar": (tar, "txt")}


def lengths(tokenize, texts=TEXTS):
    field = tokenize.field
    return [len(tokenize({field: text})["tokens"]) for text in texts]


@pytest.mark.parametrize("name", DATASETS)
def test_counted_tokens_are_the_costs_of_samples(name, tmp_path, tokenizer):
    write, field = DATASETS[name]
    path, tokenize = write(tmp_path), Tokenize(tokenizer, field=field)
    before = open_source(path)
    assert before.costs(np.arange(3), "tokens") is before.total_cost("tokens") is None
    found = count_tokens(str(path), tokenize)
    expected = lengths(tokenize)
    assert (found.samples, found.tokens, found.problems) == (50, sum(expected), 0)
    source, some = open_source(path), open_source(path, subset=(15, 31))
    wanted = [49, 3, 3, 20, 0]
    assert source.costs(np.array(wanted), "tokens").tolist() == [expected[n] for n in wanted]
    assert source.total_cost("tokens") == sum(expected)
    assert some.total_cost("tokens") == sum(expected[15:31])
    assert source.fingerprint == before.fingerprint


def test_of_conversations_the_tokens_of_the_template_count(tmp_path, tokenizer):
    tokenize = TokenizeChat(tokenizer, field="json.messages")
    found = count_tokens(str(jsonl(tmp_path)), tokenize)
    assert found.tokens == 50 * len(tokenize({"json": {"messages": TALK}})["tokens"])


def test_parts_of_a_prepared_folder_know_their_tokens_without_what_is_excluded(tmp_path, tokenizer):
    tokenize = Tokenize(tokenizer, field="json.text")
    prepare(jsonl(tmp_path), kind=JSONL, split="1,1,0")
    split = tmp_path / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [2.jsonl/1]"))
    count_tokens(str(tmp_path), tokenize)
    expected = lengths(tokenize)
    assert open_source(tmp_path).total_cost("tokens") == sum(expected[:20])
    val = open_source(tmp_path, split_part="val")
    assert val.costs(np.array([0, 1]), "tokens").tolist() == [expected[20], expected[22]]
    assert val.total_cost("tokens") == sum(expected[20:]) - expected[21]


def test_parts_are_counted_apart_and_known_when_all_are_there(tmp_path, tokenizer):
    tokenize = Tokenize(tokenizer, field="json.text")
    path = jsonl(tmp_path)
    assert count_tokens(str(path), tokenize, part=(1, 2)).samples == 30
    assert open_source(path).total_cost("tokens") is None
    count_tokens(str(path), tokenize, part=(0, 2))
    assert open_source(path).total_cost("tokens") == sum(lengths(tokenize))
    with pytest.raises(SpecError, match="part 3 of 4 has no samples"):
        count_tokens(str(path), tokenize, part=(3, 4))


def test_stopped_at_any_block_it_continues_after_it(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 7)
    path, tokenize = str(jsonl(tmp_path)), Tokenize(tokenizer, field="json.text")
    seen = []

    def stop(done, total):
        seen.append((done, total))
        raise KeyboardInterrupt

    while True:
        try:
            found = count_tokens(path, tokenize, progress=stop)
            break
        except KeyboardInterrupt:
            assert open_source(path).total_cost("tokens") is None or seen[-1] == (50, 50)
    assert seen == [(done, 50) for done in (7, 14, 20, 27, 34, 41, 48, 50)]
    assert found.tokens == open_source(path).total_cost("tokens") == sum(lengths(tokenize))
    assert not list(tmp_path.glob("*.part.idx"))


def test_what_is_counted_is_counted_again_by_force_or_for_another_shard(tmp_path, tokenizer):
    path = jsonl(tmp_path)
    done = []
    tokenize = Tokenize(tokenizer, field="json.text")
    for one in (tokenize, tokenize, Tokenize(tokenizer, field="json.text", add_eos="</s>")):
        count_tokens(str(path), one, force=True, progress=lambda done_, _: done.append(done_))
    assert done == [20, 50, 20, 50]
    assert open_source(path).total_cost("tokens") == sum(lengths(tokenize)) + 50
    jsonl(tmp_path, [TEXT, *TEXTS[1:]])
    count_tokens(str(path), tokenize)
    assert open_source(path).total_cost("tokens") == sum(lengths(tokenize, [TEXT, *TEXTS[1:]]))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: data[:-1], "it has 19 counts for 20 samples"),
        (lambda data: b"x" + data[1:], "it has no counts of tokens"),
        (lambda data: b"", "it has no counts of tokens"),
    ],
)
def test_damaged_counts_are_an_error_with_what_to_do(tmp_path, tokenizer, damage, problem):
    path, tokenize = jsonl(tmp_path), Tokenize(tokenizer, field="json.text")
    count_tokens(str(path), tokenize)
    file = tmp_path / "0.jsonl.tokens.idx"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StructureError, match="Run `energy-data prepare-tokens` again") as caught:
        open_source(path).total_cost("tokens")
    assert problem in str(caught.value)
    assert f"dataset {path}, shard {file}: " in str(caught.value)
    count_tokens(str(path), tokenize)
    assert open_source(path).total_cost("tokens") == sum(lengths(tokenize))


def test_counts_of_a_shard_that_was_written_again_are_an_error(tmp_path, tokenizer):
    path = jsonl(tmp_path)
    count_tokens(str(path), Tokenize(tokenizer, field="json.text"))
    jsonl(tmp_path, ["longer" + text for text in TEXTS])
    with pytest.raises(
        StructureError, match=r"it counts 20 samples of \d+ bytes, but .*0.jsonl has"
    ):
        open_source(path).costs(np.arange(3), "tokens")


def test_samples_without_a_text_count_0_and_a_wrong_field_ends_the_counting(tmp_path, tokenizer):
    path = tmp_path / "x.jsonl"
    path.write_text(
        "".join(json.dumps({"text": t if n else None}) + "\n" for n, t in enumerate(TEXTS * 9))
    )
    found = count_tokens(str(path), Tokenize(tokenizer, field="json.text"))
    assert found.problems == 1
    assert "shard x.jsonl, key 0, sample 0: it has no 'json.text'" in found.problem
    assert open_source(path).costs(np.arange(1), "tokens") == 0
    with pytest.raises(SampleError, match=r"it has no 'text', or it is None, found json.text"):
        count_tokens(str(path), Tokenize(tokenizer), force=True)


def test_two_programs_do_not_count_one_shard_at_once(tmp_path, tokenizer):
    path, tokenize = str(jsonl(tmp_path)), Tokenize(tokenizer, field="json.text")
    problems = []

    def again(done, total):
        if done == 20:
            return
        with pytest.raises(SpecError, match="another program counts the tokens of this shard"):
            count_tokens(path, tokenize, part=(1, 2))
        problems.append(done)

    count_tokens(path, tokenize, progress=again)
    assert problems == [50]


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: np.save(folder / "x.npy", np.zeros((3, 4), np.int64)),
        lambda folder: numbers_as_mds(folder, [3, 4]),
    ],
)
def test_formats_whose_tokens_are_not_counted_are_refused(tmp_path, tokenizer, write):
    write(tmp_path)
    with pytest.raises(SpecError, match="Of others, declare `tokens_per_sample`"):
        count_tokens(str(tmp_path), Tokenize(tokenizer))


def test_the_command_counts_and_weights_by_tokens_need_no_means(tmp_path, tokenizer, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("short", "long"):
        (tmp_path / name).mkdir()
        jsonl(tmp_path / name, [TEXT * (9 if name == "long" else 1)] * 50)
    meta = "splits: {train: {weight_unit: tokens, blend: [{path: ./short}, {path: ./long}]}}"
    (tmp_path / "m.yaml").write_text(meta)
    command = ["prepare-tokens", "--tokenizer", str(tokenizer), "--field", "json.text"]
    refused = CliRunner().invoke(main, ["inspect", "m.yaml"])
    assert "or count them: `energy-data prepare-tokens`" in refused.output
    done = [CliRunner().invoke(main, [*command, name]) for name in ("short", "long")]
    assert re.search(
        r"short: [\d,]+ tokens in 50 samples of 2 shards, [\d.]+ in each", done[0].output
    )
    run = ["--json", "--batches", "100", "--batch-size", "100"]
    shown = json.loads(CliRunner().invoke(main, ["inspect", "m.yaml", *run]).stdout)
    drawn = {
        node["id"]: node["drawn"] * node["num_tokens"] for node in shown["nodes"] if node["id"]
    }
    assert drawn["short:train"] == pytest.approx(drawn["long:train"], rel=0.02)


def test_counts_of_another_field_are_only_replaced_by_force(tmp_path, tokenizer):
    path = parquet(tmp_path)
    command = ["prepare-tokens", str(path), "--tokenizer", str(tokenizer)]
    assert CliRunner().invoke(main, [*command, "--messages", "messages"]).exit_code == 0
    before = open_source(path).total_cost("tokens")
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 1
    assert "1 of its 1 shards have counts of another tokenizer or field" in refused.output
    assert open_source(path).total_cost("tokens") == before
    assert CliRunner().invoke(main, [*command, "--force"]).exit_code == 0
    assert open_source(path).total_cost("tokens") == sum(lengths(Tokenize(tokenizer))) != before


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--field", "a", "--messages", "b"], "exclude each other"),
        (["--tools", "a"], "--tools: it needs --messages"),
        (["--part", "2", "--of", "2"], "--part and --of go together"),
        (["--part", "2"], "--part and --of go together"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, tokenizer, options, problem):
    done = CliRunner().invoke(
        main, ["prepare-tokens", str(tmp_path), "--tokenizer", str(tokenizer), *options]
    )
    assert done.exit_code == 2
    assert problem in done.output


@pytest.mark.slow
def test_processes_count_the_same(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 7)
    tokenize = Tokenize(tokenizer, field="json.text")
    assert count_tokens(str(jsonl(tmp_path)), tokenize, workers=2).tokens == sum(lengths(tokenize))
