"""A tokenizer for the tests, made in a moment: bytes, a few merges, and marks of a chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "what is the capital of France and who wrote the song about the rain in Spain"
SPECIAL = ["<s>", "</s>", "<|start|>", "<|end|>"]

MARKED = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}
{{- message.content + '<|end|>' }}
{%- endgeneration %}
{%- else %}
{{- message.content + '<|end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}
"""
PLAIN = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- endif %}
"""
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is the capital of France"},
    {"role": "assistant", "content": "Paris 🙂"},
    {"role": "user", "content": "who wrote the song"},
    {"role": "assistant", "content": "the rain"},
]


def write_tokenizer(folder: Path, chat_template: Any = None) -> Path:
    """Write tokenizer.json, and with a template also tokenizer_config.json; return the folder."""
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(  # as many models have it
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.enable_truncation(8)  # as training may leave it
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": chat_template}
    if chat_template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
