"""Text from data, made safe to show: nothing in it can move a cursor, reorder a line or stop an encoder."""

from __future__ import annotations

_DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\u2028\u2029")


def visible(text: str, keep: str = "\n\t") -> str:
    """Control and direction characters become visible marks, lone surrogates the replacement mark."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep else _visible(character) for character in text)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or character in _DIRECTION:
        return f"\\u{code:04x}"
    return "\ufffd" if 0xD800 <= code < 0xE000 else character


def excerpt(data: bytes | str, characters: int) -> str:
    """The beginning of a text on one line, at most `characters` long; bytes that are not UTF-8 become marks."""
    if isinstance(data, bytes):
        data = data[: 4 * characters + 4].decode("utf-8", "replace")
    line = visible(data[: characters + 1].replace("\n", "\u21b5").replace("\t", " "), keep="")
    return line if len(line) <= characters else line[: characters - 3] + "..."
