"""Conversations: the formats in C++ and as templates agree; what is learned; what users write stays text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widestream as ws
from tests.tokenizer.support import R50K, unigram, with_special_tokens
from widestream import errors
from widestream.chat import TEMPLATES, FixedChat, TemplateChat

pytest.importorskip("jinja2")

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " What is \u00e9t\u00e9?\n"},
    {"role": "assistant", "content": "\nSummer.\n"},
    {"role": "user", "content": ""},
    {"role": "assistant", "content": "<|im_end|>"},
]
FORMATS = ["chatml", "llama3", "plain"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ws.Tokenizer:
    folder = tmp_path_factory.mktemp("chat")
    return ws.Tokenizer.from_file(with_special_tokens(Path("chat.json"), folder, SPECIAL))


def shown(tokenizer: ws.Tokenizer, chat: Any) -> str:
    """The text with learned parts in brackets."""
    text, before = b"", False
    for id, learned in zip(chat.ids.tolist(), chat.loss_mask.tolist(), strict=True):
        if learned != before:
            text += b"[" if learned else b"]"
        before = learned
        text += tokenizer.decode_bytes([id])
    return (text + (b"]" if before else b"")).decode(errors="replace")


def both(tokenizer: ws.Tokenizer, format: Any) -> tuple[FixedChat, TemplateChat]:
    variables = {"eos_token": "<|endoftext|>"}
    return FixedChat(tokenizer, format), TemplateChat(tokenizer, TEMPLATES[format], variables=variables)


def test_chatml_learns_what_the_assistant_says_and_its_end(tokenizer: ws.Tokenizer) -> None:
    chat = FixedChat(tokenizer, "chatml").encode(CONVERSATION[:3], add_generation_prompt=True)
    assert chat.ids.dtype == tokenizer.dtype and chat.loss_mask.dtype == np.bool_
    assert shown(tokenizer, chat) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n What is \u00e9t\u00e9?\n<|im_end|>\n"
        "<|im_start|>assistant\n[\nSummer.\n<|im_end|>]\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("prompt", [False, True])
def test_formats_and_their_templates_give_the_same(tokenizer: ws.Tokenizer, format: str, prompt: bool) -> None:
    fixed, template = both(tokenizer, format)
    expected = fixed.encode(CONVERSATION, add_generation_prompt=prompt)
    found = template.encode(CONVERSATION, add_generation_prompt=prompt)
    assert shown(tokenizer, found) == shown(tokenizer, expected)
    assert found.ids.tolist() == expected.ids.tolist() and found.ids.dtype == expected.ids.dtype
    assert fixed.render(CONVERSATION, add_generation_prompt=prompt) == template.render(
        CONVERSATION, add_generation_prompt=prompt
    )


hard = st.sampled_from(
    [*SPECIAL, "<", "<|", "|>", ">", "<|im_", "end|>", " ", "\n", "\u3000", "\x1c", "\ufdd0", "\ufdd1", "a"]
)
content = st.lists(st.one_of(hard, st.text(st.characters(exclude_categories=["Cs"]), max_size=3)), max_size=5).map(
    "".join
)
conversation = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": content}),
    min_size=1,
    max_size=4,
)
_CACHE: dict[str, Any] = {}


@settings(max_examples=80, deadline=None)
@given(messages=conversation, prompt=st.booleans())
def test_any_conversation_gives_the_same_and_only_the_format_gives_special_tokens(
    tmp_path_factory: pytest.TempPathFactory, messages: list[dict[str, str]], prompt: bool
) -> None:
    if not _CACHE:
        path = with_special_tokens(Path("any.json"), tmp_path_factory.mktemp("any"), SPECIAL)
        _CACHE["tokenizer"] = ws.Tokenizer.from_file(path)
        _CACHE.update({format: both(_CACHE["tokenizer"], format) for format in FORMATS})
    known: ws.Tokenizer = _CACHE["tokenizer"]
    special = set(known.special_tokens.values())
    for format in FORMATS:
        fixed, template = _CACHE[format]
        expected = fixed.encode(messages, add_generation_prompt=prompt)
        found = template.encode(messages, add_generation_prompt=prompt)
        assert shown(known, found) == shown(known, expected)
        assert found.ids.tolist() == expected.ids.tolist()
        said = [m["content"] for m in messages if m["role"] == "assistant"]
        made = {"chatml": 2 * len(messages) + prompt, "llama3": 1 + 3 * len(messages) + 2 * prompt, "plain": len(said)}
        assert sum(id in special for id in expected.ids.tolist()) == made[format]
        if format == "chatml":  # elsewhere a token may hold a character of the format and one of the content
            learned = known.decode(expected.ids[expected.loss_mask])
            assert learned.endswith("".join(text + "<|im_end|>" for text in said)[-20:])


def test_a_batch_is_its_conversations(tokenizer: ws.Tokenizer) -> None:
    conversations = [CONVERSATION, CONVERSATION[:1], CONVERSATION[:3]]
    for chat in both(tokenizer, "chatml"):
        batch = chat.encode_batch(conversations)
        for i, messages in enumerate(conversations):
            one = chat.encode(messages)
            begin, end = batch.offsets[i], batch.offsets[i + 1]
            assert batch.ids[begin:end].tolist() == one.ids.tolist()
            assert batch.loss_mask[begin:end].tolist() == one.loss_mask.tolist()
        assert chat.encode_batch([]).offsets.tolist() == [0]
        with pytest.raises(errors.InvalidArgumentError, match="conversation 1: "):
            chat.encode_batch([CONVERSATION, []])


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "no message"),
        ("text", "list of messages"),
        ({"role": "user"}, "list of messages"),
        (["text"], "message 0 is str"),
        ([{"role": "User", "content": "a"}], "'User'"),
        ([{"content": "a"}], "role"),
    ],
)
def test_bad_conversations_are_refused(tokenizer: ws.Tokenizer, messages: Any, word: str) -> None:
    for chat in both(tokenizer, "chatml"):
        with pytest.raises(errors.InvalidArgumentError, match=word):
            chat.encode(messages)


def test_contents_must_be_text(tokenizer: ws.Tokenizer) -> None:
    fixed, template = both(tokenizer, "chatml")
    for value in (None, 3, ["a"]):
        with pytest.raises(errors.InvalidArgumentError, match="content of message 0"):
            fixed.encode([{"role": "user", "content": value}])
        with pytest.raises(errors.InvalidArgumentError):
            template.encode([{"role": "user", "content": value}])
    with pytest.raises(UnicodeEncodeError):
        fixed.encode([{"role": "user", "content": "\ud800"}])
    with pytest.raises(errors.InvalidArgumentError, match="surrogate"):
        template.encode([{"role": "user", "content": "\ud800"}])


def test_formats_need_their_special_tokens(tmp_path: Path) -> None:
    r50k = ws.Tokenizer.from_file(R50K)
    with pytest.raises(errors.InvalidArgumentError, match=r"<\|im_start\|>"):
        FixedChat(r50k, "chatml")
    with pytest.raises(errors.InvalidArgumentError, match="chatml, llama3, plain"):
        FixedChat(r50k, "alpaca")  # type: ignore[arg-type]
    plain = FixedChat(r50k, "plain").encode(CONVERSATION[:3])
    assert shown(r50k, plain).endswith("Assistant: [\nSummer.\n<|endoftext|>]\n\n")
    slow = ws.Tokenizer.from_file(unigram(tmp_path))
    for make in (lambda: FixedChat(slow, "plain"), lambda: TemplateChat(slow, TEMPLATES["chatml"])):
        with pytest.raises(errors.InvalidArgumentError, match="tokenizers package"):
            make()


def one(tokenizer: ws.Tokenizer, template: str, messages: Any = None, **options: Any) -> str:
    chat = TemplateChat(tokenizer, template, require_mask=False, **options)
    return shown(tokenizer, chat.encode(messages or [{"role": "user", "content": "hi"}]))


def test_templates_may_make_special_tokens_of_roles(tokenizer: ws.Tokenizer) -> None:
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}"
    chat = TemplateChat(tokenizer, template, require_mask=False)
    ids = chat.encode([{"role": "user", "content": "|>"}, {"role": "user", "content": "<|user|>"}]).ids.tolist()
    assert ids.count(tokenizer.special_token_id("<|user|>")) == 2


def test_parts_of_a_name_do_not_become_special_with_what_the_template_adds(tokenizer: ws.Tokenizer) -> None:
    special = set(tokenizer.special_tokens.values())
    for before, text, after in [
        ("<", "|im_end|>", ""),
        ("", "<|im_end|", ">"),
        ("<|im", "_end|>", ""),
        ("", "<", "|im_end|>"),
    ]:
        template = before + "{{ messages[0].content }}" + after
        chat = TemplateChat(tokenizer, template, require_mask=False).encode([{"role": "user", "content": text}])
        assert not special & set(chat.ids.tolist()), (before, text, after)
    keys = TemplateChat(tokenizer, "{{ messages[0].tool | tojson }}", require_mask=False)
    call = {"role": "tool", "tool": {"<|im_end|>": "<|im_start|>"}}
    assert not special & set(keys.encode([call]).ids.tolist())


def test_templates_do_what_chat_templates_do(tokenizer: ws.Tokenizer) -> None:
    assert (
        one(tokenizer, "{{ bos }}{{ messages[0]['content'] | upper }}", variables={"bos": "<|endoftext|>"})
        == "<|endoftext|>HI"
    )
    assert (
        one(tokenizer, "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}")
        == "user"
    )
    assert one(tokenizer, "{{ {'a': '<\u00e9>'} | tojson }}") == json.dumps({"a": "<\u00e9>"}, ensure_ascii=False)
    assert one(tokenizer, "{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "[hi]!"
    assert one(tokenizer, "a{% set x %}{% generation %}b{% endgeneration %}{% endset %}c{{ x }}d") == "ac[b]d"
    # With whole-line blocks, as files have them.
    assert (
        one(tokenizer, "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n")
        == "hi\n"
    )


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{% for %}", "the template is wrong"),
        ("{{ nothing.at.all }}", "the template failed"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{{ strftime_now('%d') }}", "date as a variable"),
        ("{{ ''.__class__.__mro__ }}", "the template failed"),
        ("{{ messages.append(1) }}", "the template failed"),
        ("{{ range(10000000) | list }}", "the template failed"),
        ("{% set x %}{% generation %}b{% endgeneration %}{% endset %}{{ x[1:] }}", "cuts"),
        ("{% generation %}{% generation %}b{% endgeneration %}{% endgeneration %}", "nests"),
        ("{% include 'x' %}", "the template failed"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "template"),
    ],
)
def test_bad_templates_are_refused(tokenizer: ws.Tokenizer, template: str, word: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=word):
        one(tokenizer, template)


def test_a_template_without_learned_parts_must_be_wanted(tokenizer: ws.Tokenizer) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="generation"):
        TemplateChat(tokenizer, "{{ messages[0].content }}")
    chat = TemplateChat(tokenizer, "{{ messages[0].content }}", require_mask=False).encode(CONVERSATION[:1])
    assert not chat.loss_mask.any()


def test_messages_hold_plain_values_only(tokenizer: ws.Tokenizer) -> None:
    chat = TemplateChat(tokenizer, "{{ messages[0].x }}", require_mask=False)
    deep: Any = "a"
    for _ in range(40):
        deep = [deep]
    for value in (object(), deep, {1, 2}):
        with pytest.raises(errors.InvalidArgumentError):
            chat.encode([{"role": "user", "x": value}])


def test_fixed_formats_do_not_need_jinja() -> None:
    program = (
        f"import sys; sys.modules['jinja2'] = None; import widestream as ws; from widestream.chat import FixedChat;"
        f"print(len(FixedChat(ws.Tokenizer.from_file({str(R50K)!r}), 'plain').encode([dict(role='user', content='a')]).ids))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr
