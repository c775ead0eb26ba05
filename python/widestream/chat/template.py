"""Conversations by a Jinja template, as transformers renders them, with text and special tokens kept apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from widestream.chat.fixed import EncodedChat, EncodedChats, Message, native
from widestream.errors import InvalidArgumentError
from widestream.tokenizer import Tokenizer

_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
_LARGEST_TEMPLATE_CHARACTERS = 1 << 20
_LARGEST_TEXT_CHARACTERS = 1 << 28
# Code points that Unicode will never assign: marks for the renderer, taken where neither template nor messages use them.
_MARKS = [chr(c) for c in range(0xFDD0, 0xFDF0)] + [
    chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)
]


class TemplateChat:
    """A Jinja template over ``messages``, in a sandbox, with the extensions that chat templates use.

    Learned are the parts inside of ``{% generation %} ... {% endgeneration %}``, as in transformers: every token that any
    character of them is part of. The text between special tokens is encoded as a whole, so ids and mask are those of
    transformers' ``apply_chat_template``, with one difference on purpose: a special token that a *message* spells is
    ordinary text. Renders in Python, so it is slower than ``FixedChat``.

    A template is a program. The sandbox keeps it from files, network and the interpreter, not from taking long: use
    templates from where you take code. Usable from any number of threads.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        *,
        variables: Mapping[str, Any] | None = None,
        roles: Iterable[str] = _ROLES,
        require_mask: bool = True,
    ) -> None:
        """
        Args:
            tokenizer: a byte-level BPE tokenizer.
            template: the text of the template.
            variables: what it sees besides ``messages`` and ``add_generation_prompt``, such as ``bos_token``.
            roles: the roles that messages may have.
            require_mask: refuse a template without ``{% generation %}``, whose mask would be false everywhere.

        Raises InvalidArgumentError for a template that Jinja refuses or that lacks a mask, and ModuleNotFoundError
        where jinja2 is not installed.
        """
        self._native = native(tokenizer)
        self._dtype = tokenizer.dtype
        self._roles = frozenset(roles)
        self._source = template
        self._variables = dict(variables or {})
        if len(template) > _LARGEST_TEMPLATE_CHARACTERS:
            raise InvalidArgumentError(f"the template has {len(template)} characters; 2**20 are allowed")
        names = sorted(tokenizer.special_tokens, key=lambda name: (-len(name), name))
        self._names = [name for name in names if name]
        self._compiled, has_mask = _compile(template)
        if require_mask and not has_mask:
            raise InvalidArgumentError(
                "the template has no {% generation %} ... {% endgeneration %} around what the assistant says, so nothing "
                "would be learned; add it, or give require_mask=False"
            )

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> EncodedChat:
        """Ids and loss mask of a conversation. Messages may hold whatever the template looks at.

        Raises InvalidArgumentError for no message, an unknown role, and whatever the template refuses.
        """
        text, special, learned = self._split(self._rendered(messages, add_generation_prompt))
        from widestream.loader.engine import core

        ids, mask = core().encode_chat(self._native, text, special, learned)
        return EncodedChat(ids.astype(self._dtype, copy=False), mask)

    def encode_batch(
        self, conversations: Sequence[Sequence[Message]], *, add_generation_prompt: bool = False
    ) -> EncodedChats:
        """Ids and loss masks of many conversations. Raises like ``encode``, naming the conversation by its index."""
        parts = []
        for index, messages in enumerate(conversations):
            try:
                parts.append(self.encode(messages, add_generation_prompt=add_generation_prompt))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"conversation {index}: {error}") from error
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part.ids) for part in parts], out=offsets[1:])
        ids = np.concatenate([part.ids for part in parts]) if parts else np.empty(0, self._dtype)
        mask = np.concatenate([part.loss_mask for part in parts]) if parts else np.empty(0, np.bool_)
        return EncodedChats(ids, mask, offsets)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """The conversation as text, for people: it does not tell special tokens from text that spells them."""
        return self._split(self._rendered(messages, add_generation_prompt))[0].decode()

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool) -> tuple[str, str, str, str]:
        """The text with marks in it, and the marks: where text breaks a name, where learned parts begin and end."""
        from jinja2 import TemplateError

        copied = self._checked(messages)
        used = self._source + json.dumps([copied, self._variables], ensure_ascii=False, default=str)
        free = [mark for mark in _MARKS if mark not in used]
        if len(free) < 3:
            raise InvalidArgumentError("the conversation uses all code points that are never assigned; remove some")
        broken, begin, end = free[:3]
        try:
            text = self._compiled.render(
                **{**self._variables, "_generation_marks": (begin, end)},
                messages=_with_names_broken(copied, self._names, broken),
                add_generation_prompt=add_generation_prompt,
            )
        except InvalidArgumentError:
            raise
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise InvalidArgumentError(f"the template failed: {type(error).__name__}: {error}") from error
        except RecursionError as error:
            raise InvalidArgumentError("the template recurses too deep") from error
        if len(text) > _LARGEST_TEXT_CHARACTERS:
            raise InvalidArgumentError(f"the template gives {len(text)} characters; 2**28 are allowed")
        return text, broken, begin, end

    def _checked(self, messages: Sequence[Message]) -> list[Any]:
        if isinstance(messages, str | bytes | Mapping):
            raise InvalidArgumentError(f"a conversation is a list of messages, not {type(messages).__name__}")
        copied = [_plain(message, 0) for message in messages]
        if not copied:
            raise InvalidArgumentError("the conversation has no message; give at least one")
        for index, message in enumerate(copied):
            if not isinstance(message, dict):
                raise InvalidArgumentError(f"message {index} is {type(message).__name__}, not a mapping")
            if message.get("role") not in self._roles:
                raise InvalidArgumentError(
                    f"message {index} has the role {message.get('role')!r}; allowed are {', '.join(sorted(self._roles))}"
                )
        return copied

    def _split(self, rendered: tuple[str, str, str, str]) -> tuple[bytes, list[tuple[int, int]], list[tuple[int, int]]]:
        """The text without marks, and the byte ranges of special tokens and of learned parts."""
        text, broken, begin, end = rendered
        pieces = re.split("(" + "|".join(map(re.escape, [*self._names, broken, begin, end])) + ")", text)
        out: list[bytes] = []
        special: list[tuple[int, int]] = []
        learned: list[tuple[int, int]] = []
        at = 0
        open_at: int | None = None
        for index, piece in enumerate(pieces):
            if index % 2 == 1:
                if piece == broken:
                    continue
                if piece in (begin, end):
                    if (piece == begin) != (open_at is None):
                        raise InvalidArgumentError("the template cuts or nests its {% generation %} blocks")
                    if open_at is not None:
                        learned.append((open_at, at))
                    open_at = at if piece == begin else None
                    continue
            data = piece.encode()
            if index % 2 == 1:
                special.append((at, at + len(data)))
            out.append(data)
            at += len(data)
        if open_at is not None:
            raise InvalidArgumentError("the template cuts its {% generation %} blocks")
        return b"".join(out), special, learned


def _plain(value: Any, depth: int) -> Any:
    """A copy of JSON-like values, so that a template sees nothing else."""
    if depth > 32:
        raise InvalidArgumentError("a message is nested more than 32 levels deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"a message has a lone surrogate: {error}") from error
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    raise InvalidArgumentError(f"a message holds a {type(value).__name__}; give str, numbers, lists and mappings")


def _with_names_broken(value: Any, names: list[str], mark: str) -> Any:
    """The value with a mark inside of each special token's name in its strings, and of each beginning or end of one
    that the template's own text could complete."""
    if isinstance(value, str):
        return _broken(value, names, mark)
    if isinstance(value, dict):
        return {
            _broken(key, names, mark, ends=False): _with_names_broken(item, names, mark) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_names_broken(item, names, mark) for item in value]
    return value


def _broken(text: str, names: list[str], mark: str, *, ends: bool = True) -> str:
    cuts = set()
    for name in names:
        at = text.find(name)
        while at >= 0:
            cuts.add(at + 1)
            at = text.find(name, at + 1)
        for size in range(1, len(name)) if ends else ():
            if text.endswith(name[:size]):
                cuts.add(len(text) - size + 1)
            if text.startswith(name[-size:]):
                cuts.add(size - 1)
    if not cuts:
        return text
    parts, before = [], 0
    for cut in sorted(cuts):
        parts.append(text[before:cut])
        before = cut
    return mark.join([*parts, text[before:]])


def _compile(template: str) -> tuple[Any, bool]:
    """The compiled template, and whether it has learned parts."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "chat templates need the Python package jinja2; pip install jinja2", name="jinja2"
        ) from error

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}``: puts marks around what the block gives."""

        tags = {"generation"}  # noqa: RUF012  (jinja2 wants a plain set)

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_marked", [nodes.ContextReference()])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, context: Any, caller: Any) -> str:
            begin, end = context["_generation_marks"]
            return f"{begin}{caller()}{end}"

    def raise_exception(message: str) -> None:
        raise InvalidArgumentError(f"the template refuses the conversation: {message}")

    def strftime_now(format: str) -> str:
        raise InvalidArgumentError(
            "the template asks for today's date, which would give other ids every day; give the date as a variable"
        )

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        tree = environment.parse(template)
        marked = any(_is_generation(call) for call in tree.find_all(nodes.CallBlock))
        return environment.from_string(template), marked
    except TemplateError as error:
        raise InvalidArgumentError(f"the template is wrong: {error}") from error
    except RecursionError as error:
        raise InvalidArgumentError("the template is nested too deep") from error


def _is_generation(block: Any) -> bool:
    return getattr(getattr(block.call, "node", None), "name", "") == "_marked"
