"""Conversations as token ids with a loss mask over the assistant's words: docs/tokenizer.md.

``FixedChat`` renders three fixed formats in C++. ``TemplateChat`` takes any Jinja template, slower; ``TEMPLATES`` has the
fixed formats as templates, which give the same ids and masks.
"""

from widestream.chat.fixed import EncodedChat, EncodedChats, FixedChat, Message
from widestream.chat.template import TemplateChat
from widestream.chat.templates import TEMPLATES

__all__ = ["TEMPLATES", "EncodedChat", "EncodedChats", "FixedChat", "Message", "TemplateChat"]
