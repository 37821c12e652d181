"""Conversations: JSONL to packs of 512 tokens with a loss mask, restored in the middle."""

import json
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from energy_data import DefaultTaskEncoder, TokenizeChat, get_loader, get_train_dataset
from energy_data.nodes.packing import Joined, Packing

LENGTH = 512
TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>' + message.content + '<|end|>' }}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt }}"""


class Chats(DefaultTaskEncoder[dict[str, Any], dict[str, Any], Any, dict[str, Any]]):
    """Packs of whole conversations; those that are too long are left out, and counted."""

    packing = Packing(limits={"tokens": LENGTH}, over_long="skip", pack=Joined("tokens", LENGTH))

    def __init__(self, tokenizer: str) -> None:
        self.tokenize = TokenizeChat(tokenizer, field="json.messages", chat_template=TEMPLATE)

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return `tokens` and `loss_mask` of a conversation."""
        return dict(self.tokenize(sample))


with TemporaryDirectory() as folder:
    # A model comes with a tokenizer of its own. The tokens of this one are bytes, and three marks.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    tokenizer.save(f"{folder}/tokenizer.json")
    with Path(f"{folder}/chats.jsonl").open("w") as file:
        for number in range(2000):
            asked = {"role": "user", "content": f"What is twice {number}? " * (number % 9)}
            told = {"role": "assistant", "content": f"{2 * number}"}
            file.write(json.dumps({"messages": [asked, told]}) + "\n")
    data, sizes = f"{folder}/chats.jsonl", {"batch_size": 4, "packing_buffer_size": 16}
    dataset = get_train_dataset(data, task_encoder=Chats(folder), **sizes)
    loader = get_loader(dataset)
    list(islice(loader, 5))
    state, batch = loader.state_dict(), next(iter(loader))
    assert batch["tokens"].shape == batch["loss_mask"].shape == (4, LENGTH)

    again = get_loader(dataset)
    again.load_state_dict(state)
    assert next(iter(again))["tokens"].equal(batch["tokens"])
    trained = tokenizer.decode(batch["tokens"][0][batch["loss_mask"][0]].tolist(), False)
    print(f"{batch['__docs__'][0]} conversations in a pack; trained on: {trained[:40]}...")
