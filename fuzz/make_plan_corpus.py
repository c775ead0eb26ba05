"""Writes corpus/state and corpus/journal: small valid inputs of state_fuzz and journal_fuzz, built from the pages in
docs/formats and not by the engine. Run it in this folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
RESTART = {"epoch": 0, "position": 0, "unit": 0, "block": 0, "offset": 0, "record": 0}
SOURCE = {"manifest": "", "epoch": 0, "position": 9, "token": 0, "credit": 0, "exhausted": False, "examined": 9}
SOURCE |= {"tokens": 90, "rejected": 0, "corrupt": 0, "held_out": 0, "epoch_tokens": 90, "restart": RESTART}
SCHEDULE = {"draws": 20, "drawn": 180, "mixture_start": 0, "stage": 0, "base_weights": None, "ended": False}
STATE = {
    "version": 1,
    "order_version": 1,
    "membership_version": 1,
    "stream_hash": "a" * 32,
    "stream_keys": [["seed", "1"]],
}
STATE |= {"seed": 1, "step": 2, "tokens": 170, "schedule": SCHEDULE | {"open_source": None}}
STATE |= {"sources": {"web": SOURCE, "code": SOURCE | {"credit": -5, "token": 3}}}
STATE |= {"carried": [["web", 0, 3, 0, 8, 7, 0, 3, "00000000000000ff", True]]}
STATE |= {"closing": ["code", 0, 8, 0, 10, 19, 0, 8, "0123456789abcdef", True], "decisions": []}
MIXTURE = {"unit": "tokens", "stages": [{"ramp": 10, "weights": {"code": 1}}]}
QUARANTINE = {"kind": "quarantine", "step": 2, "source": "web", "epoch": 0, "position": 3, "reason": "gone"}
DECISIONS = [{"kind": "edit", "step": 2, "mixture": MIXTURE}, {"kind": "skip", "step": 2, "steps": 3}, QUARANTINE]


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def column(kind: str, *values: int) -> bytes:
    return struct.pack(f"<Q{len(values)}{kind}", len(values), *values)


def step_plan() -> bytes:
    """Two pieces of 3 and 4 tokens in one row, on one rank; every number here is a varint of one byte."""
    pieces = bytes([2, 0, 0, 0, 0, 3, 2, 0, 0]) + bytes(8) + bytes([3, 0, 0, 3, 4, 2, 0, 0]) + bytes(8)
    rows = bytes([1, 2, 0, 1])
    ranks = bytes([1]) + struct.pack("<d", 1.0) + bytes([1, 1, 1])
    head = b"WSPL" + struct.pack("<HQB", 1, 2, 0) + text(b"0" * 32) + struct.pack("<QQ", 7, 6)
    return head + pieces + rows + ranks


def metadata() -> bytes:
    head = b"WSMD" + struct.pack("<HIIQB", 1, 0, 0, 4, 1) + struct.pack("<I5Q", 0, 4, 0, 1, 0, 4)
    return (
        head
        + column("B", 0, 4)
        + column("I", 7, 0)
        + column("I", 30, 9)
        + column("Q", 5, 0)
        + column("I", 0, 0)
        + column("Q", 4, 5)
        + column("Q")  # no problems
    )


def write(folder: str, name: str, data: bytes) -> None:
    (HERE / "corpus" / folder).mkdir(parents=True, exist_ok=True)
    (HERE / "corpus" / folder / name).write_bytes(data)


def record(kind: int, payload: bytes) -> bytes:
    """As journal_fuzz wants it: a flag byte, the type, a two-byte length."""
    return struct.pack("<BBH", 0, kind, len(payload)) + payload


write("state", "plain", b"\x00" + json.dumps(STATE).encode())
write("state", "decisions", b"\x00" + json.dumps(STATE | {"decisions": DECISIONS}).encode())
write("state", "open_sample", b"\x00" + json.dumps(STATE | {"schedule": SCHEDULE | {"open_source": "code"}}).encode())
write("state", "step_plan", b"\x01" + step_plan())
write("state", "metadata", b"\x02" + metadata())
write("state", "request", b"\x03WSRQ" + struct.pack("<HIIQQQ", 1, 0, 0, 4, 100, 0))
STEP = struct.pack("<QQQ", 2, int("0" * 16, 16), int("0" * 16, 16)) + step_plan()
SKIP = struct.pack("<BQ", 1, 2) + text(b"") + struct.pack("<QIIQ", 3, 0, 0, 0) + text(b"")
MANIFEST = struct.pack("<II", 1, 0) + text(b"abc") + text(b"{}")
FORK = struct.pack("<Q", 2) + text(b"b" * 32) + struct.pack("<I", 2) + text(b"web") + text(b"code")
write("journal", "all", record(1, STEP) + record(2, SKIP) + record(3, MANIFEST) + record(4, b"note") + record(5, FORK))
write("journal", "torn", record(1, STEP) + b"\x00\x01")
