"""Texts and conversations become tokens in the workers: the law holds, and nothing waits."""

from __future__ import annotations

import json
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from text_files import MARKED, TALK, TEXT, write_tokenizer

from energy_data import (
    DefaultTaskEncoder,
    SpecError,
    Tokenize,
    TokenizeChat,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.nodes.packing import Joined, Packing


class Tokens(DefaultTaskEncoder):
    """Packs of what `tokenize` makes of a sample."""

    packing = Packing(limits={"tokens": 128}, over_long="split", pack=Joined("tokens", 128))

    def __init__(self, tokenize):
        self.tokenize = tokenize

    def encode_sample(self, sample):
        return self.tokenize(sample)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_tokenizer(tmp_path_factory.mktemp("text"), MARKED)
    talks = [
        [{"role": "user", "content": TEXT[: n % 70]}, *TALK[1 : 1 + n % 5]] for n in range(300)
    ]
    with (folder / "x.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"text": TEXT * (n % 9), "messages": t}) + "\n" for n, t in enumerate(talks)
        )
    pq.write_table(pa.table({"messages": talks}), folder / "x.parquet", row_group_size=40)
    return folder


def chats(folder, tokenize=None, num_workers=0):
    return get_train_dataset(
        folder / "x.parquet",
        batch_size=2,
        packing_buffer_size=16,
        task_encoder=Tokens(tokenize or TokenizeChat(folder)),
        worker_config=WorkerConfig(num_workers=num_workers, lanes=4),
    )


def plain(batch):
    return {
        k: v.tolist() if isinstance(v, torch.Tensor) else v
        for k, v in batch.items()
        if k[:2] != "__"
    }


def taken(loader, count):
    return [plain(batch) for batch in islice(loader, count)]


def test_packs_of_conversations_have_masks_bounds_and_positions(folder):
    (batch,) = islice(get_loader(chats(folder)), 1)
    tokens, mask, ends = batch["tokens"], batch["loss_mask"], batch["cu_seqlens"]
    assert tokens.shape == mask.shape == batch["position_ids"].shape == (2, 128)
    assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)
    for row in range(2):
        first, end = ends[row][:2].tolist()
        assert batch["position_ids"][row][first:end].tolist() == list(range(end))
        assert not mask[row][int(ends[row][-1]) :].any()
    assert mask.any()


def test_jsonl_and_tables_of_conversations_have_the_same_tokens(folder):
    found = []
    for name, field in (("x.parquet", "messages"), ("x.jsonl", "json.messages")):
        dataset = get_val_dataset(
            folder / name,
            batch_size=1,
            split_part="train",
            task_encoder=Tokens(TokenizeChat(folder, field=field)),
            packing_buffer_size=1,
        )
        found.append([plain(batch) for batch in dataset])
    assert found[0] == found[1]
    assert len(found[0]) > 50


@pytest.mark.parametrize(
    "start_method", ["fork", "thread", pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_workers_make_the_same_tokens_after_threads_of_the_tokenizer_ran(folder, start_method):
    """As users tokenize a prompt in the trainer before workers are forked."""
    expected = taken(get_loader(chats(folder)), 12)
    tokenize = TokenizeChat(folder)
    tokenize.loaded.encode_batch([TEXT] * 100)
    loader = get_loader(chats(folder, tokenize, num_workers=2), start_method=start_method)
    assert taken(loader, 4) == expected[:4]
    state = loader.state_dict()
    loader.close()
    again = get_loader(chats(folder))
    again.load_state_dict(json.loads(json.dumps(state)))
    assert taken(again, 8) == expected[4:]


def test_bad_conversations_are_left_out_and_a_bad_tokenizer_ends_the_run(folder, tmp_path):
    seen = []
    config = WorkerConfig(lanes=1, global_error_handler=lambda error, *_: seen.append(str(error)))
    lines = [{"messages": TALK if n % 3 else "hello"} for n in range(30)]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    options = {"batch_size": 1, "packing_buffer_size": 4, "worker_config": config}
    task = Tokens(TokenizeChat(folder, field="json.messages"))
    assert taken(get_loader(get_train_dataset(path, task_encoder=task, **options)), 8)
    assert "x.jsonl, key" in seen[0]
    assert "a conversation is a list of messages" in seen[0]
    task = Tokens(Tokenize(folder, field="json.messages", add_eos="<eos>"))
    with pytest.raises(SpecError, match="no token '<eos>'"):
        next(iter(get_train_dataset(path, task_encoder=task, **options)))
