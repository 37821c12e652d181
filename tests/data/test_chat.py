"""Conversations as tokens, with masks of what the assistant writes."""

from __future__ import annotations

import pickle

import pytest
import torch
from text_files import MARKED, PLAIN, TALK, write_tokenizer
from tokenizers import Tokenizer

from energy_data import SampleError, SampleSource, SpecError
from energy_data.data.text.chat import TokenizeChat

FULL = (
    "<s><|start|>system\nbe brief<|end|>\n<|start|>user\nwhat is the capital of France<|end|>\n"
    "<|start|>assistant\nParis 🙂<|end|>\n<|start|>user\nwho wrote the song<|end|>\n"
    "<|start|>assistant\nthe rain<|end|>\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("model"), MARKED)


def text_of(folder, tokens):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode(tokens.tolist(), skip_special_tokens=False)


def shown(folder, made):
    """The text of a conversation, and the text of what the mask has."""
    assert made["tokens"].dtype == torch.int64
    assert made["loss_mask"].dtype == torch.bool
    return text_of(folder, made["tokens"]), text_of(folder, made["tokens"][made["loss_mask"]])


@pytest.mark.parametrize("field", ["messages", "json.messages"])
def test_the_mask_has_what_generation_blocks_mark(folder, field):
    sample = {"messages": TALK, "json": {"messages": TALK}}
    made = TokenizeChat(folder, field=field)(sample)
    assert shown(folder, made) == (FULL, "Paris 🙂<|end|>the rain<|end|>")


def test_without_blocks_it_has_what_a_message_adds_to_the_generation_prompt(folder):
    made = TokenizeChat(folder, chat_template=PLAIN)({"messages": TALK})
    assert shown(folder, made) == (FULL, "Paris 🙂<|end|>\nthe rain<|end|>\n")


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_a_conversation_without_the_assistant_has_an_empty_mask(folder, template):
    made = TokenizeChat(folder, chat_template=template)({"messages": TALK[:2]})
    assert not made["loss_mask"].any()
    assert len(made["tokens"]) == len(made["loss_mask"]) > 0


def test_the_first_tokens_are_kept_with_their_mask(folder):
    whole = TokenizeChat(folder)({"messages": TALK})
    first = TokenizeChat(folder, max_length=60)({"messages": TALK})
    assert all(first[name].equal(whole[name][:60]) for name in whole)


def test_a_template_that_writes_a_conversation_in_another_way_is_an_error_for_its_turns(folder):
    kept = "(message.content if loop.last or message.role != 'assistant' else '') +"
    strips = PLAIN.replace("message.content +", kept)  # as templates strip what was thought
    tokenize = TokenizeChat(folder, chat_template=strips)
    assert tokenize({"messages": TALK[:3]})["loss_mask"].any()
    with pytest.raises(SampleError, match=r"message 2 is of the assistant.*generation %} blocks"):
        tokenize({"messages": TALK})


def test_blocks_may_be_in_macros_and_captured_text(folder):
    template = """\
{%- macro turn(message) %}<|start|>{% generation %}{{ message.content }}{% endgeneration %}
{%- endmacro %}
{%- set text %}{{ turn(messages[2]) }}{% endset %}{{ 'rain' + text }}"""
    made = TokenizeChat(folder, chat_template=template)({"messages": TALK})
    assert shown(folder, made) == ("rain<|start|>Paris 🙂", "Paris 🙂")


def test_a_block_that_is_left_before_its_end_is_an_error(folder):
    template = "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}"
    with pytest.raises(SampleError, match=r"leaves a {% generation %} block before its end"):
        TokenizeChat(folder, chat_template=template)({"messages": TALK})


def test_entries_that_are_none_are_missing(folder):
    template = "{% for m in messages if m.calls is defined %}{{ m.calls|tojson }}{% endfor %}"
    calls = [{"name": "é", "arguments": {"a": 1, "b": None}}]
    messages = [{"role": "user", "calls": None}, {"role": "assistant", "calls": calls}]
    made = TokenizeChat(folder, chat_template=template)({"messages": messages})
    assert text_of(folder, made["tokens"]) == '[{"name": "é", "arguments": {"a": 1}}]'


@pytest.mark.parametrize("tools", [[{"name": "f"}], '[{"name": "f"}]', None])
def test_tools_and_variables_are_those_of_the_template(folder, tools):
    tokenize = TokenizeChat(
        folder,
        tools="tools",
        chat_template="{{ eos_token }}{{ day }}{{ tools|tojson if tools else '-' }}",
        variables={"day": "rain"},
    )
    text = text_of(folder, tokenize({"messages": TALK, "tools": tools})["tokens"])
    assert text == ('</s>rain[{"name": "f"}]' if tools else "</s>rain-")


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("hello", "a conversation is a list of messages, each a dict with `role`, found 'hello'"),
        ([], "found '[]'"),
        ([{"content": "a"}], "a conversation is a list of messages"),
        ([{"role": "user", "content": "\ufdd0"}], "U+FDD0"),
        ([{"role": "user"}], "the chat template fails with UndefinedError"),
        ([{"role": "user", "content": 3}], "the chat template fails with TypeError"),
    ],
)
def test_what_is_no_conversation_is_an_error_that_names_the_sample(folder, messages, problem):
    sample = {"__key__": "7", "__sources__": (SampleSource("d", "s", 7),), "messages": messages}
    with pytest.raises(SampleError, match="dataset d, shard s, key 7, sample 7: ") as caught:
        TokenizeChat(folder)(sample)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.system('x') }}", "SecurityError"),
        ("{% for n in range(10**9) %}x{% endfor %}", "OverflowError"),
        ("{{ strftime_now('%d') }}", "'strftime_now' is undefined"),
        ("{% include '/etc/passwd' %}", "no loader for this environment specified"),
    ],
)
def test_a_template_neither_runs_code_nor_knows_the_time(folder, template, problem):
    with pytest.raises(SampleError) as caught:
        TokenizeChat(folder, chat_template=template)({"messages": TALK})
    assert problem in str(caught.value)


@pytest.mark.parametrize("template", ["{{ [1, 2]|random }}", "{% for m in messages %}", "{% x %}"])
def test_a_template_that_is_wrong_or_random_is_an_error_with_its_line(folder, template):
    with pytest.raises(SpecError, match="line 1 of the chat template: "):
        TokenizeChat(folder, chat_template=template)({"messages": TALK})


def test_the_full_stop_of_an_error_of_jinja_is_not_doubled(folder):
    tokenize = TokenizeChat(folder, chat_template="{{ messages|strip }}")
    with pytest.raises(SpecError, match=r"No filter named 'strip'\. Correct the template\.$"):
        tokenize({"messages": TALK})


def test_a_path_in_place_of_a_template_is_an_error(folder):
    path = folder / "chat_template.jinja"
    for wrong in (path, str(path)):
        with pytest.raises(SpecError, match=r"^chat_template: .*jinja'\)?\. If it is a path, pass"):
            TokenizeChat(folder, chat_template=wrong)


def test_the_template_is_that_of_the_folder(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "rain"}]
    folder = write_tokenizer(tmp_path / "a", named)
    sample = {"messages": TALK}
    assert text_of(folder, TokenizeChat(folder)(sample)["tokens"]) == "rain"
    (folder / "chat_template.jinja").write_text("song")
    assert text_of(folder, TokenizeChat(folder / "tokenizer.json")(sample)["tokens"]) == "song"
    with pytest.raises(SpecError, match=r"no chat_template.jinja, and no `chat_template` in token"):
        TokenizeChat(write_tokenizer(tmp_path / "b"))(sample)
    (tmp_path / "b" / "tokenizer_config.json").write_text("[")
    with pytest.raises(SpecError, match=r"tokenizer_config.json: it is no JSON object"):
        TokenizeChat(tmp_path / "b")(sample)


def test_pickled_it_makes_the_same_and_its_fingerprint_has_the_template(folder):
    tokenize = TokenizeChat(folder)
    made = tokenize({"messages": TALK})
    again = pickle.loads(pickle.dumps(tokenize))
    assert all(again({"messages": TALK})[name].equal(made[name]) for name in made)
    assert (
        again.fingerprint
        == tokenize.fingerprint
        == TokenizeChat(folder, chat_template=MARKED).fingerprint
    )
    assert TokenizeChat(folder, chat_template=PLAIN).fingerprint != tokenize.fingerprint
