"""Writes engine/transform/nfc_tables.cc: what normalization to NFC needs to know of each code point.

Qwen's tokenizer normalizes, and its ids are what the released `tokenizers` gives, whose tables are older
(Unicode 9.0) than Python's `unicodedata`. So the decompositions, compositions and combining classes are asked
of `tokenizers` itself; a combining class, which no call tells, is the one of `unicodedata` for each code point
that `tokenizers` treats as combining, and the two are compared on every pair that could show a difference.

    python scripts/generate_nfc_tables.py          # rewrite the file
    python scripts/generate_nfc_tables.py --check  # fail if the file on disk differs
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
import unicodedata
from pathlib import Path

from tokenizers import normalizers

TARGET = Path(__file__).resolve().parent.parent / "engine" / "transform" / "nfc_tables.cc"
BLOCK = 64
CODE_POINTS = 0x110000
NFC = normalizers.NFC().normalize_str
NFD = normalizers.NFD().normalize_str
FIRST_SYLLABLE, SYLLABLES = 0xAC00, 11172
# Bits of a code point's entry in kNfcProperties besides the combining class (8 bits, lowest).
DECOMPOSES, MAY_COMPOSE_BACK = 1 << 8, 1 << 9


def scalars() -> list[int]:
    return [c for c in range(CODE_POINTS) if not 0xD800 <= c < 0xE000]


def is_syllable(code_point: int) -> bool:
    return FIRST_SYLLABLE <= code_point < FIRST_SYLLABLE + SYLLABLES


def combining_classes() -> dict[int, int]:
    """Code point -> combining class above 0, as `tokenizers` has it."""
    low, high = "\u0334", "\u0345"  # classes 1 and 240, the ends of the range
    assert unicodedata.combining(low) == 1 and unicodedata.combining(high) == 240
    found = {}
    for code_point in scalars():
        character = chr(code_point)
        combining = unicodedata.combining(character)
        if combining == 0:
            continue
        # A combining character moves behind one of a lower class, or one of a higher class behind it.
        moved = NFD("a" + character + low) != "a" + character + low
        passed = NFD("a" + high + character) != "a" + high + character
        if moved or passed:
            found[code_point] = combining
    # The classes must order any two of these as tokenizers does: one of each class, in both orders.
    samples = {combining: code_point for code_point, combining in found.items()}
    for code_point, combining in found.items():
        for other_class, other in samples.items():
            text = "a" + chr(code_point) + chr(other)
            expected = text if combining <= other_class else "a" + chr(other) + chr(code_point)
            if NFD(chr(code_point)) == chr(code_point) and NFD(chr(other)) == chr(other):
                assert NFD(text) == expected, (hex(code_point), hex(other))
    return found


def decompositions() -> dict[int, list[int]]:
    """Code point -> its full canonical decomposition, Hangul syllables left out."""
    found = {}
    for code_point in scalars():
        parts = [ord(c) for c in NFD(chr(code_point))]
        if parts != [code_point] and not is_syllable(code_point):
            found[code_point] = parts
    return found


def compositions(decomposed: dict[int, list[int]]) -> list[tuple[int, int, int]]:
    """(first, second, composite), sorted; Hangul left out."""
    found = []
    for code_point in decomposed:
        if NFC(chr(code_point)) != chr(code_point):
            continue
        # The last step of its composition: everything but the last character composes to the first part.
        parts = NFD(chr(code_point))
        first = NFC(parts[:-1])
        assert len(first) == 1 and NFC(first + parts[-1]) == chr(code_point), hex(code_point)
        found.append((ord(first), ord(parts[-1]), code_point))
    return sorted(found)


def render() -> str:
    combining = combining_classes()
    decomposed = decompositions()
    composed = compositions(decomposed)
    properties = [0] * CODE_POINTS
    for code_point, value in combining.items():
        properties[code_point] |= value
    for code_point in decomposed:
        # Composites that NFC gives stay as they are, unless something behind them reorders or composes.
        if NFC(chr(code_point)) != chr(code_point):
            properties[code_point] |= DECOMPOSES
    for _, second, _ in composed:
        properties[second] |= MAY_COMPOSE_BACK
    for code_point in [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]:
        properties[code_point] |= MAY_COMPOSE_BACK
    blocks: dict[tuple[int, ...], int] = {}
    index = [blocks.setdefault(tuple(properties[i : i + BLOCK]), len(blocks)) for i in range(0, CODE_POINTS, BLOCK)]
    parts: list[int] = []
    rows = []
    for code_point, values in sorted(decomposed.items()):
        rows.append(f"{{{code_point},{len(parts)},{len(values)}}}")
        parts += values

    def array(values: list[int]) -> str:
        return "{" + ",".join(map(str, values)) + "}"

    flat = [value for block in blocks for value in block]
    triples = [f"{{{a},{b},{c}}}" for a, b, c in composed]
    source = f"""// Generated by scripts/generate_nfc_tables.py; do not edit.
// As normalized by tokenizers {importlib.metadata.version("tokenizers")}, whose tables are of Unicode 9.0.
#include "engine/transform/nfc_tables.h"

namespace widestream::internal {{

// NOLINTBEGIN(readability-identifier-naming)
const std::uint16_t kNfcBlockIndex[{len(index)}] = {array(index)};
const std::uint16_t kNfcProperties[{len(flat)}] = {array(flat)};
const std::size_t kNfcDecompositionCount = {len(rows)};
const NfcDecomposition kNfcDecompositions[{len(rows)}] = {{{",".join(rows)}}};
const std::uint32_t kNfcParts[{len(parts)}] = {array(parts)};
const std::size_t kNfcCompositionCount = {len(triples)};
const NfcComposition kNfcCompositions[{len(triples)}] = {{{",".join(triples)}}};
// NOLINTEND(readability-identifier-naming)

}}  // namespace widestream::internal
"""
    formatted = subprocess.run(
        ["clang-format-19", f"--assume-filename={TARGET}"],
        input=source,
        text=True,
        capture_output=True,
        check=True,
    )
    return formatted.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    text = render()
    if not arguments.check:
        TARGET.write_text(text, encoding="ascii")
        return 0
    if TARGET.read_text(encoding="ascii") != text:
        print(f"{TARGET} differs from what this tokenizers gives; run {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
