"""Random texts of what tokenizers get wrong, the same for the same seed.

``random_texts`` gives str, ``random_bytes`` also what is not UTF-8. Each text mixes one to three of the classes of
``CLASSES``; the pieces of a class are drawn anew for every few thousand texts, so that a long run meets most code points.
"""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable, Iterator

_POOL_PIECES = 300
_TEXTS_A_POOL = 4000
_MOST_PIECES = 14

Draw = Callable[[random.Random], str]

_APOSTROPHES = ["'", "'", "'", "'", "\u2019", "\u02bc", "''", "`", "\u0149"]
_ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "\u017f", "l", "v", "r", "lle", "sd", "k", "\u212a", "em", "d've"]
# First and last code points of letters that patterns tell apart: cased, caseless, title case, modifiers, Han, Kana.
_SCRIPTS = [
    *[(0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0xC0, 0x24F), (0x1C4, 0x1CC), (0x250, 0x2AF), (0x2B0, 0x2C1)],
    *[(0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587), (0x5D0, 0x5EA), (0x621, 0x64A), (0x904, 0x97F), (0xE01, 0xE4E)],
    *[(0xF40, 0xFBC), (0x10A0, 0x10FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1C80, 0x1C8A), (0x1E00, 0x1FFF)],
    *[(0x2C00, 0x2C7F), (0x3041, 0x3096), (0x30A0, 0x30FF), (0x4E00, 0x9FFF), (0xA640, 0xA69F), (0xA722, 0xA7FF)],
    *[(0xAB30, 0xABBF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB17), (0xFF21, 0xFF9F), (0x10400, 0x1044F)],
    *[(0x10C80, 0x10CF2), (0x118A0, 0x118DF), (0x16E40, 0x16E7F), (0x1D400, 0x1D7CB), (0x1E900, 0x1E94B)],
    *[(0x20000, 0x2A6DF), (0x30000, 0x3134A)],
]
_MARKS = [
    *[(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x64B, 0x65F), (0x93C, 0x94D), (0x9BC, 0x9D7), (0xE31, 0xE3A)],
    *[(0xF71, 0xF84), (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F), (0x3099, 0x309A)],
    *[(0xFE00, 0xFE0F), (0xFE20, 0xFE2F), (0x1161, 0x11C2), (0x11000, 0x11002), (0x110B9, 0x110BA), (0x1D165, 0x1D16D)],
    (0xE0100, 0xE01EF),
]
_SPACES = [
    *(" ", " ", "  ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\n\r", " \n", "\t\r\n ", "\x0b"),
    *(
        "\x0c",
        "\x1c",
        "\x1d",
        "\x1e",
        "\x1f",
        "\x85",
        "\xa0",
        "\u1680",
        "\u180e",
        "\u2000",
        "\u200a",
        "\u200b",
        "\u2028",
    ),
    *("\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"),
]
_DIGITS = [
    *[(0x30, 0x39), (0x30, 0x39), (0x30, 0x39), (0x30, 0x39), (0x660, 0x669), (0x966, 0x96F), (0xFF10, 0xFF19)],
    *[(0xB2, 0xB3), (0xBC, 0xBE), (0x2070, 0x2089), (0x2150, 0x218B), (0x2460, 0x24FF), (0x3007, 0x3007)],
    *[
        (0x3021, 0x3029),
        (0x3220, 0x3229),
        (0x1D7CE, 0x1D7FF),
        (0x10D40, 0x10D49),
        (0x1CCF0, 0x1CCF9),
        (0x11DE0, 0x11DE9),
    ],
]
_PICTURES = [(0x1F300, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1F9FF), (0x1FA70, 0x1FAFF), (0x2600, 0x27BF)]
_SIGNS = [
    *(
        "!",
        "?",
        ".",
        ",",
        "...",
        "-",
        "--",
        "_",
        "__",
        "/",
        "//",
        "/\n",
        "\\",
        "$",
        "+",
        "=",
        "<|",
        "|>",
        "{",
        "}",
        "()",
    ),
    *(");\n", "*/\r\n", '"', "#", "&", "@", "^", "~", "`", "\u2014", "\u2026", "\u3001", "\u300c", "\uff01", "\u20ac"),
    *("\xd7", "\u2192", "\u2211", "\xa9", "\xb0", "\u309b", "\u30fb", "\u30a0", "<|endoftext|>", "<|im_start|>"),
]
_ASCII = [
    *("the", "of", "Hello", "world", "HTTPServer", "camelCase", "SHOUT", "I", "a", "x", "return", "def", "int", "zzz"),
    *("http://", "www.", ".com", "0x", "\\n", "    if", "antidisestablishmentarianism", "aaaaaaaa", "\x00", "\x7f"),
]


def _of(rng: random.Random, ranges: list[tuple[int, int]]) -> str:
    return chr(rng.randint(*rng.choice(ranges)))


def _any(rng: random.Random, begin: int = 0, end: int = 0x110000) -> str:
    code_point = rng.randrange(begin, end)
    return chr(code_point) if not 0xD800 <= code_point < 0xE000 else " "


def _contraction(rng: random.Random) -> str:
    ending = "".join(c.upper() if rng.random() < 0.4 else c for c in rng.choice(_ENDINGS))
    word = rng.choice(["", "", "don", "WE", "I", "\xe9t\xe9", "\u0414\u0430", "1", " ", "\u4e2d", "e\u0301"])
    return word + rng.choice(_APOSTROPHES) + ending + rng.choice(["", "", "x", " ", "'"])


def _mixed(rng: random.Random) -> str:
    script = [rng.choice(_SCRIPTS)]
    word = "".join(_of(rng, script if rng.random() < 0.8 else _SCRIPTS) for _ in range(rng.randint(1, 6)))
    return rng.choice(["", " ", ""]) + word


def _marked(rng: random.Random) -> str:
    base = rng.choice(
        ["a", "e", "O", "A", " ", "1", "!", "\n", "", "\u0915", "\u1100", "\u30ab", "\u03b9", "\u1ea1", "x"]
    )
    # Several of one script, so that they are put in order and composed by a normalizer.
    near = [rng.choice(_MARKS[:1] * 6 + _MARKS)]
    return base + "".join(_of(rng, near if rng.random() < 0.8 else _MARKS) for _ in range(rng.randint(1, 4)))


def _lines(rng: random.Random) -> str:
    return "".join(rng.choice(_SPACES) for _ in range(rng.randint(1, 5)))


def _number(rng: random.Random) -> str:
    kind = [rng.choice(_DIGITS)]
    return "".join(_of(rng, kind if rng.random() < 0.9 else _DIGITS) for _ in range(rng.randint(1, 11)))


def _picture(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        return _of(rng, [(0x1F1E6, 0x1F1FF)]) + _of(rng, [(0x1F1E6, 0x1F1FF)])
    if kind == 1:
        return rng.choice("0123456789#*") + "\ufe0f\u20e3"
    if kind == 2:
        return "\U0001f3f4" + "".join(_of(rng, [(0xE0061, 0xE007A)]) for _ in range(3)) + "\U000e007f"
    joined = [
        _of(rng, _PICTURES) + rng.choice(["", "", "\ufe0f", chr(rng.randint(0x1F3FB, 0x1F3FF))]) for _ in range(kind)
    ]
    return "\u200d".join(joined)


def _private(rng: random.Random) -> str:
    return _of(rng, [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD), (0xFDD0, 0xFDEF), (0xFFFE, 0xFFFF)])


def _unassigned(rng: random.Random) -> str:
    # As far as this Python knows: those that are new in a later version are of most interest.
    while unicodedata.category(found := _any(rng, 0x370, 0x32000 if rng.random() < 0.9 else 0x110000)) != "Cn":
        pass
    return found


def _run(rng: random.Random) -> str:
    # Around the sizes at which a tokenizer changes its way.
    unit = rng.choice(
        ["a", "ab", " ", "\t", "\n", "\r\n", "7", "!", "-", "\u4e2d", "\u0301", "\u0430", "\u200d", "\xa0"]
    )
    return unit * max(rng.choice([4, 8, 15, 16, 31, 32, 63, 64, 100, 128]) // len(unit) + rng.randint(-1, 1), 1)


CLASSES: dict[str, Draw] = {
    "contractions": _contraction,
    "mixed scripts": _mixed,
    "marks": _marked,
    "line ends, tabs and spaces": _lines,
    "digit runs": _number,
    "emoji": _picture,
    "private use": _private,
    "unassigned": _unassigned,
    "long runs": _run,
    "signs": lambda rng: rng.choice(_SIGNS),
    "ASCII": lambda rng: rng.choice(["", " "]) + rng.choice(_ASCII),
    "low code points": lambda rng: _any(rng, 0, 0x3000),
    "any code points": _any,
}


def _pools(rng: random.Random) -> list[list[str]]:
    return [[draw(rng) for _ in range(_POOL_PIECES)] for draw in CLASSES.values()]


def random_texts(seed: int, count: int) -> Iterator[str]:
    """``count`` texts of 0 to 14 pieces."""
    rng = random.Random(seed)
    for made in range(count):
        if made % _TEXTS_A_POOL == 0:
            pools = _pools(rng)
        pieces: list[str] = []
        left = rng.randrange(_MOST_PIECES + 1)
        for pool in rng.sample(pools, 3):
            some = rng.randint(0, left)
            pieces += rng.choices(pool, k=some)
            left -= some
        if rng.random() < 0.7:
            rng.shuffle(pieces)
        yield "".join(pieces)


# Not UTF-8: lone continuations, parts of characters, overlong forms, surrogates, beyond the last code point.
BAD_BYTES = [
    *(
        b"\x80",
        b"\xbf",
        b"\xa9",
        b"\xc2",
        b"\xe2\x82",
        b"\xf0\x9f\x91",
        b"\xf0\x9f",
        b"\xc0\xaf",
        b"\xc1\xbf",
        b"\xe0\x80\xaf",
    ),
    *(
        b"\xf0\x80\x80\xaf",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xed\xa0\xbd\xed\xb8\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88",
    ),
    *(b"\xfe", b"\xff", b"\xf5\x80\x80\x80", b"\xe4\xb8"),
]


def random_bytes(seed: int, count: int) -> Iterator[bytes]:
    """``count`` texts of which most hold bytes that are not UTF-8."""
    rng = random.Random(seed)
    for text in random_texts(seed + 1, count):
        data = text.encode()
        for _ in range(rng.randint(0, 3)):
            at = rng.randint(0, len(data))
            data = data[:at] + rng.choice(BAD_BYTES) + data[at:]
        if data and rng.random() < 0.2:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        yield data


if __name__ == "__main__":  # python tests/tokenizer/random_text.py SEED COUNT: to look at them
    for text in random_texts(int(sys.argv[1]), int(sys.argv[2])):
        print(ascii(text))
