"""Makes tokens of conversations with transformers; runs in its environment.

Usage: chat_writer.py FOLDER, with tokenizer.json and talks.json, [template, conversations].
Writes made.json, [tokens, mask of the assistant] of each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast


def main() -> None:
    folder = Path(sys.argv[1])
    template, talks = json.loads((folder / "talks.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    found = [
        tokenizer.apply_chat_template(
            talk,
            chat_template=template,
            return_assistant_tokens_mask="endgeneration" in template,
            return_dict=True,
        )
        for talk in talks
    ]
    made = [[one["input_ids"], one.get("assistant_masks")] for one in found]
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main()
