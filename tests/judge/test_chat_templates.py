"""Conversations have the tokens, and the masks, that transformers gives them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random

import pytest
from place import PYTHON
from text_files import MARKED, PLAIN, TEXT, write_tokenizer

from energy_data.data.text.chat import TokenizeChat

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="transformers is not installed"),
]
WORDS = [*TEXT.split(), "🙂", "é", "\n", " x ", "</s>"]


def talk(random):
    def message(role):
        return {"role": role, "content": " ".join(random.choices(WORDS, k=random.randint(0, 8)))}

    turns = random.randint(1, 4)
    return [message("system"), *(message(one) for one in ["user", "assistant"] * turns)]


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_tokens_and_masks_are_those_of_transformers(tmp_path, template):
    folder, random = write_tokenizer(tmp_path / "model", template), Random(0)
    talks = [talk(random) for _ in range(300)]
    (folder / "talks.json").write_text(json.dumps([template, talks]))
    subprocess.run([PYTHON, Path(__file__).parent / "chat_writer.py", folder], check=True)
    theirs = json.loads((folder / "made.json").read_text())
    ours = map(TokenizeChat(folder), ({"messages": talk} for talk in talks))
    for made, (tokens, mask) in zip(ours, theirs, strict=True):
        assert made["tokens"].tolist() == tokens
        assert mask is None or made["loss_mask"].int().tolist() == mask
