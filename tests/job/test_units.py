"""Units: what people write gives exactly the number they mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widestream import units
from widestream.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (64, 64),
        (64.0, 64),
        ("64", 64),
        ("2_000_000", 2_000_000),
        ("65_536", 65_536),
        ("20M tokens", 20_000_000),
        ("900k tokens", 900_000),
        ("1.5k", 1500),
        ("0.1M", 100_000),
        ("2B", 2_000_000_000),
        ("1 token", 1),
        ("3 k samples", 3000),
        ("1e3", 1000),
        (0, 0),
    ],
)
def test_counts(text, count):
    assert units.parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "size"),
    [(1, 1), ("1MiB", 2**20), ("8 MiB", 2**23), ("1MB", 10**6), ("1.5KiB", 1536), ("2GiB", 2**31), ("7B", 7)],
)
def test_bytes(text, size):
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [(30, 30.0), ("30s", 30.0), ("500ms", 0.5), ("2min", 120.0), ("1h", 3600.0)]
)
def test_seconds(text, seconds):
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "share"), [(0.005, 0.005), ("0.5%", 0.005), ("5%", 0.05), ("100%", 1.0), (0, 0.0)])
def test_shares(text, share):
    assert units.parse_share(text) == share


@pytest.mark.parametrize(
    ("parse", "value", "part"),
    [
        (units.parse_count, True, "whole number"),
        (units.parse_count, None, "whole number"),
        (units.parse_count, -1, "not negative"),
        (units.parse_count, "1.5", "not a whole number"),
        (units.parse_count, "5 apples", "'apples'"),
        (units.parse_count, "1e999", "below 2**64"),
        (units.parse_count, float("nan"), "nan"),
        (units.parse_count, "x" * 100_000, "whole number"),
        (units.parse_bytes, "1G", "1GiB or 1GB"),
        (units.parse_bytes, "1 parsec", "32MiB"),
        (units.parse_bytes, "0.5B", "not a whole number of bytes"),
        (units.parse_seconds, "5 years", "'years'"),
        (units.parse_share, "101%", "more than the whole"),
        (units.parse_share, 5, "more than the whole"),
    ],
)
def test_what_is_no_quantity_says_what_to_write(parse, value, part):
    with pytest.raises(InvalidArgumentError) as error:
        parse(value)
    assert part in str(error.value)
    assert len(str(error.value)) < 300


def test_the_word_of_a_count():
    assert units.count_word("20M tokens") == "tokens"
    assert units.count_word("1 sample") == "samples"
    assert units.count_word("20M") is None
    assert units.count_word(20) is None


@given(st.integers(0, 2**64 - 1))
def test_count_round_trip(count):
    assert units.parse_count(units.format_count(count)) == count
    assert units.parse_count(units.format_count(count) + " tokens") == count


@given(st.integers(0, 2**64 - 1))
def test_bytes_round_trip(size):
    assert units.parse_bytes(units.format_bytes(size)) == size


@given(st.floats(0, 1e9, allow_nan=False).filter(lambda x: x == 0 or x > 1e-9))
def test_seconds_round_trip(seconds):
    assert units.parse_seconds(units.format_seconds(seconds)) == seconds


@given(st.floats(0, 1, allow_nan=False).filter(lambda x: x == 0 or x > 1e-9))
def test_share_round_trip(share):
    assert units.parse_share(units.format_share(share)) == share


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_an_error(text):
    for parse in (units.parse_count, units.parse_bytes, units.parse_seconds, units.parse_share):
        try:
            assert parse(text) >= 0
        except InvalidArgumentError as error:
            assert str(error)
