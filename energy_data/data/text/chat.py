"""Conversations as tokens, by the chat template of a tokenizer, with a mask of what to train on.

tokenize = TokenizeChat("my-model", field="messages")
tokenize({"messages": [{"role": "assistant", "content": "Hello"}]})
# -> {"tokens": int64 tensor [n], "loss_mask": bool tensor [n]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from attrs import frozen

from energy_data.core.lazy import cached_property
from energy_data.data.text.tokenize import Tokenizing, find_value, tensor_of, value_of
from energy_data.errors import MissingExtraError, SampleError, SpecError

_CONFIGS = "special_tokens_map.json", "tokenizer_config.json"  # the second one decides
_TEMPLATE = "chat_template.jinja"

# Unicode reserves them for use inside a program. They mark what a template writes for generation.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"([{_BEGIN}{_END}])")

Spans = list[tuple[int, int]]
"""Characters [begin, end) of a text that the assistant writes."""
Messages = Sequence[Mapping[str, Any]]


@frozen(slots=False)
class TokenizeChat(Tokenizing):
    """Makes tokens of a conversation: `tokens`, int64 [n], and `loss_mask`, bool [n].

    A conversation is a list of messages, dicts of `role`, `content` and what else the template
    knows. Entries that are None, as tables have them where one is missing, are left out.

    `loss_mask` is true for the tokens that the assistant writes. In a template with
    `{% generation %}` blocks, these are the tokens of the blocks. In others, they are what a
    message of the assistant adds after the generation prompt. That needs a template that writes
    the beginning of a conversation as it writes it alone; for others, it is a SampleError.

    A template is text, run in a sandbox: it can neither run code nor change a sample. It has no
    clock and no random numbers, so that a sample has the same tokens on every day.

    Raises SampleError for what is no conversation, or if the template refuses it; SpecError for a
    template that is missing or wrong; otherwise as `Tokenize`.
    """

    field: str = attrs.field(default="messages", kw_only=True)
    """The field of a sample that holds the messages; `json.messages` is an entry of `json`."""

    tools: str | None = attrs.field(default=None, kw_only=True)
    """The field that holds the tools, a list or its JSON; None: there are none."""

    chat_template: str | None = attrs.field(default=None, kw_only=True)
    """The text of a template of Jinja; None: that in the folder of the tokenizer."""

    variables: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    """Variables of the template, such as `{"enable_thinking": False}`."""

    @chat_template.validator
    def _check_template(self, _: Any, template: str | None) -> None:
        if template is not None and not (isinstance(template, str) and "{" in template):
            problem = f"must be the text of a template, which has a `{{`, got {template!r}"
            raise SpecError(
                f"chat_template: {problem}. If it is a path, pass `Path(...).read_text()`."
            )

    def fields_of(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return the tokens of a sample, and which of them the assistant writes."""
        text, spans = self._rendered(_messages(value_of(sample, self.field)), self._tools(sample))
        encoding = self.encode(text)
        mask = torch.from_numpy(_mask(encoding.offsets, spans))
        return {"tokens": tensor_of(encoding.ids), "loss_mask": mask}

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the messages and of the tools."""
        return (self.field,) if self.tools is None else (self.field, self.tools)

    @property
    def facts(self) -> dict[str, Any]:
        """What decides, besides the file, which tokens a sample has."""
        return {**super().facts, "chat_template": self._source, "variables": self._variables}

    def _tools(self, sample: Any) -> Any:
        """Return the tools of a sample; None if it has none."""
        found = None if self.tools is None else find_value(sample, self.tools)
        if not isinstance(found, str):
            return _without_none(found)
        try:
            return json.loads(found)
        except ValueError as error:
            raise SampleError(f"its {self.tools!r} is no JSON: {error}. Correct it.") from error

    def _rendered(self, messages: Messages, tools: Any) -> tuple[str, Spans]:
        """Return a conversation as text, and the spans of it that the assistant writes."""
        full = self._render(messages, tools)
        if self._template.environment.has_generation:
            return _unmarked(full)
        spans: Spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            is_last = number == len(messages) - 1
            before = self._render(messages[:number], tools, add_generation_prompt=True)
            through = full if is_last else self._render(messages[: number + 1], tools)
            if not (through.startswith(before) and full.startswith(through)):
                raise SampleError(
                    f"message {number} is of the assistant, and where it begins and ends is "
                    "unknown: with more messages the template writes those before it in another "
                    "way. Put what the assistant writes into {% generation %} blocks in the "
                    "template."
                )
            spans.append((len(before), len(through)))
        return full, spans

    def _render(
        self, messages: Messages, tools: Any, *, add_generation_prompt: bool = False
    ) -> str:
        own = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        template, variables = self._template, {**self._variables, **own}
        try:
            found: str = template.render(variables)
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # a template may raise any
            problem = f"the chat template fails with {type(error).__name__}: {error}".rstrip(".")
            raise SampleError(f"{problem}. Correct the messages, or the template.") from error
        return found

    @cached_property
    def _template(self) -> Any:
        """The template, compiled."""
        environment, errors = _sandbox()
        try:
            return environment.from_string(self._source)
        except errors.TemplateSyntaxError as error:
            problem = f"line {error.lineno} of the chat template: {error.message.rstrip('.')}"
            raise SpecError(f"{self.tokenizer}: {problem}. Correct the template.") from error

    @cached_property
    def _source(self) -> str:
        """The text of the template."""
        if self.chat_template is not None:
            return self.chat_template
        path = self.file.with_name(_TEMPLATE)
        try:
            if path.is_file():
                return path.read_text("utf-8")
        except ValueError as error:
            raise SpecError(f"{path}: it is no text of UTF-8: {error}. Restore it.") from error
        found = self._config.get("chat_template")
        if isinstance(found, list):  # several, by name
            named = {one.get("name"): one for one in found if isinstance(one, dict)}
            found = named.get("default", {}).get("template")
        if not isinstance(found, str):
            raise SpecError(
                f"{self.file.parent}: there is no {_TEMPLATE}, and no `chat_template` in "
                f"{_CONFIGS[-1]}. Add one, or pass `chat_template`."
            )
        return found

    @cached_property
    def _variables(self) -> dict[str, Any]:
        """The variables that do not depend on the sample: names of tokens, and given ones."""
        tokens = {
            name: value["content"] if isinstance(value, dict) and "content" in value else value
            for name, value in self._config.items()
            if name.endswith("_token")
        }
        found = {name: value for name, value in tokens.items() if isinstance(value, str)}
        return {**found, **self.variables}

    @cached_property
    def _config(self) -> dict[str, Any]:
        """The settings of the tokenizer."""
        found: dict[str, Any] = {}
        for name in _CONFIGS:
            path = self.file.with_name(name)
            try:
                found |= json.loads(path.read_bytes()) if path.is_file() else {}
            except (ValueError, TypeError, RecursionError) as error:
                problem = f"it is no JSON object: {error}"
                raise SpecError(f"{path}: {problem}. Restore it.") from error
        return found


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return messages without entries that are None."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    found: list[dict[str, Any]] = _without_none(list(value)) if is_list else []
    if not found or not all(isinstance(one, dict) and "role" in one for one in found):
        raise SampleError(
            f"a conversation is a list of messages, each a dict with `role`, found "
            f"{str(value)[:80]!r}. Name the `field` that holds one."
        )
    return found


def _without_none(value: Any) -> Any:
    """Return a value without entries of dicts that are None."""
    if isinstance(value, Mapping):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_without_none(one) for one in value]
    if isinstance(value, str) and _MARKS.search(value):
        raise SampleError(
            "it has a character U+FDD0 or U+FDD1, which are not for texts. Remove it."
        )
    return value


def _unmarked(marked: str) -> tuple[str, Spans]:
    """Return a text without its marks, and the spans between them."""
    parts, spans, begins, length = list[str](), Spans(), list[int](), 0
    for part in _MARKS.split(marked):
        if part == _BEGIN:
            begins.append(length)
        elif part == _END and begins:
            spans.append((begins.pop(), length))
        elif part == _END:
            begins.append(-1)
            break
        else:
            parts.append(part)
            length += len(part)
    if begins:
        raise SampleError(
            "the template leaves a {% generation %} block before its end. Correct it."
        )
    return "".join(parts), spans


def _mask(offsets: Sequence[tuple[int, int]], spans: Spans) -> npt.NDArray[np.bool_]:
    """Return which tokens have characters in one of the spans. offsets: of each token."""
    begins, ends = np.fromiter(chain.from_iterable(offsets), np.int64).reshape(-1, 2).T
    found = np.zeros(len(begins), bool)
    for begin, end in spans:
        found |= (begins < end) & (ends > begin)
    return found


def _sandbox() -> tuple[Any, Any]:
    """Return an environment for one template, and the errors of Jinja.

    It has what templates written for `transformers` use, except the time, and nothing random.
    """
    try:
        from jinja2 import exceptions, nodes  # noqa: PLC0415 - optional
        from jinja2.ext import Extension  # noqa: PLC0415
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("chat templates", "tokenizers") from error

    class Generation(Extension):
        """Marks what is between `{% generation %}` and `{% endgeneration %}`."""

        def __init__(self, environment: Any) -> None:
            super().__init__(environment)
            self.tags = {"generation"}
            environment.extend(has_generation=False)

        def parse(self, parser: Any) -> list[Any]:
            line = next(parser.stream).lineno
            marked: Any = self.environment
            marked.has_generation = True
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (
                nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (_BEGIN, _END)
            )
            return [begin, *body, end]

    def refuse(message: str) -> None:
        raise exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    del environment.filters["random"], environment.globals["lipsum"]
    return environment, exceptions


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, as templates for `transformers` write it."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
