"""Counts, sizes, durations and shares as people write them: ``20M tokens``, ``8MiB``, ``30s``, ``0.5%``.

Arithmetic is exact (decimal, never binary floating point), so ``0.1M`` is 100000. Every function raises
:class:`widestream.errors.InvalidArgumentError` with what was found and what to write.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from widestream.errors import InvalidArgumentError

__all__ = [
    "count_word",
    "format_bytes",
    "format_count",
    "format_seconds",
    "format_share",
    "parse_bytes",
    "parse_count",
    "parse_number",
    "parse_seconds",
    "parse_share",
]

_MAX_TEXT = 64
_COUNT_FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_COUNT_WORDS = ("token", "sample", "record", "row", "step", "epoch")
_BYTE_FACTORS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SECOND_FACTORS = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "min": Decimal(60),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9_]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*(.*?)\s*", re.ASCII)


def _split(value: object, kind: str, example: str) -> tuple[Decimal, str]:
    """The number and the unit of a value; the unit is "" for a bare number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidArgumentError(f"found {_show(value)}, expected {kind}; write e.g. {example}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(f"found {value}, expected {kind}; write e.g. {example}")
    if isinstance(value, int | float):
        number, unit = Decimal(repr(value)) if isinstance(value, float) else Decimal(value), ""
    else:
        match = _NUMBER.fullmatch(value) if len(value) <= _MAX_TEXT else None
        if match is None:
            raise InvalidArgumentError(f"found {_show(value)}, expected {kind}; write e.g. {example}")
        number, unit = Decimal(match[1].replace("_", "")), match[2]
    if number < 0:
        raise InvalidArgumentError(f"found {_show(value)}, expected {kind} that is not negative; write e.g. {example}")
    return number, unit


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."


def _whole(number: Decimal, factor: int, value: object, kind: str, unit: str) -> int:
    # Bounded before int() could build a number of a thousand digits.
    if number.adjusted() > 30:
        raise InvalidArgumentError(f"found {_show(value)}, expected {kind} below 2**64")
    top, bottom = number.as_integer_ratio()
    if (top * factor) % bottom:
        raise InvalidArgumentError(f"found {_show(value)}, which is not a whole number of {unit}; round it")
    return top * factor // bottom


def parse_number(value: object, kind: str, example: str) -> tuple[float, str]:
    """A number that is not negative, and the text of its unit ("" without one)."""
    number, unit = _split(value, kind, example)
    return float(number), unit


def count_word(value: object) -> str | None:
    """The unit word of a count: "tokens" for ``"20M tokens"``, None if it has none."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    word = match[2].split()[-1].rstrip("s") if match is not None and match[2] else ""
    return word + "s" if word in _COUNT_WORDS else None


def parse_count(value: object) -> int:
    """A whole number: ``64``, ``2_000_000``, ``20M``, ``900k tokens``. k, M, G (or B), T are powers of 1000."""
    number, unit = _split(value, "a whole number", "1024, 64k or 20M tokens")
    words = unit.split()
    if words and words[-1].rstrip("s") in _COUNT_WORDS:
        words.pop()
    factor = _COUNT_FACTORS.get("".join(words)) if len(words) < 2 else None
    if factor is None:
        raise InvalidArgumentError(
            f"found {_show(value)}, whose unit {unit!r} is unknown; write e.g. 64k or 20M tokens"
        )
    return _whole(number, factor, value, "a whole number", "things")


def parse_bytes(value: object) -> int:
    """A size in bytes: ``1048576``, ``1MiB`` (2**20), ``1MB`` (10**6), ``1.5GiB``."""
    number, unit = _split(value, "a size in bytes", "32MiB")
    factor = _BYTE_FACTORS.get(unit) if unit else 1
    if factor is None:
        letter = unit[:1].upper()
        fix = f"{number}{letter}iB or {number}{letter}B" if letter in ("K", "M", "G", "T") else "32MiB"
        raise InvalidArgumentError(f"found {_show(value)}, whose unit {unit!r} is unknown; write {fix}")
    return _whole(number, factor, value, "a size", "bytes")


def parse_seconds(value: object) -> float:
    """A duration in seconds: ``30``, ``30s``, ``500ms``, ``2min``, ``1h``, ``1d``."""
    number, unit = _split(value, "a duration", "30s")
    factor = _SECOND_FACTORS.get(unit) if unit else Decimal(1)
    if factor is None:
        raise InvalidArgumentError(f"found {_show(value)}, whose unit {unit!r} is unknown; write e.g. 30s or 2min")
    return float(number * factor)


def parse_share(value: object) -> float:
    """A share from 0 to 1: ``0.005`` or ``0.5%``."""
    number, unit = _split(value, "a share from 0 to 1", "0.005 or 0.5%")
    if unit not in ("", "%"):
        raise InvalidArgumentError(f"found {_show(value)}, whose unit {unit!r} is unknown; write e.g. 0.005 or 0.5%")
    share = float(number / 100 if unit else number)
    if share > 1:
        raise InvalidArgumentError(
            f"found {_show(value)}, more than the whole; write a share from 0 to 1, or a percentage"
        )
    return share


def format_count(count: int) -> str:
    """The shortest exact form: 900000 -> "900k", 1234 -> "1234"."""
    for suffix in ("T", "G", "M", "k"):
        factor = _COUNT_FACTORS[suffix]
        if count and count % factor == 0:
            return f"{count // factor}{suffix}"
    return str(count)


def format_bytes(size: int) -> str:
    """The shortest exact form in powers of 1024: 8388608 -> "8MiB", 1000 -> "1000B"."""
    for suffix in ("TiB", "GiB", "MiB", "KiB"):
        factor = _BYTE_FACTORS[suffix]
        if size and size % factor == 0:
            return f"{size // factor}{suffix}"
    return f"{size}B"


def format_seconds(seconds: float) -> str:
    """Exact: 30.0 -> "30s"."""
    return f"{_plain(seconds)}s"


def format_share(share: float) -> str:
    """Exact: 0.005 -> "0.5%"."""
    percent = Decimal(repr(share)) * 100
    return f"{percent.normalize():f}%" if share else "0%"


def _plain(number: float) -> str:
    return f"{Decimal(repr(number)).normalize():f}"
