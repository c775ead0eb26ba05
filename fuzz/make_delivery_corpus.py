"""Writes corpus/delivery: a small valid input for every decoder of delivery_fuzz, built from docs/formats/delivery.md and
not by the engine. Run it in this folder."""

from __future__ import annotations

import struct
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus" / "delivery"
FRAMES, BATCH, HELLO, WELCOME, DECIDE, STATE, TEXT, LONG_TEXT, NUMBER, ERROR = range(10)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def column(kind: str, *values: float) -> bytes:
    return struct.pack(f"<Q{len(values)}{kind}", len(values), *values)


def optional(value: int | None) -> bytes:
    return struct.pack("<BQ", value is not None, value or 0)


def frame(kind: int, request: int, body: bytes, descriptors: int = 0, version: int = 1) -> bytes:
    return b"WSDL" + struct.pack("<HBBII", version, kind, descriptors, request, len(body)) + body


def tensor(name: bytes, kind: int, offset: int, *shape: int) -> bytes:
    return text(name) + struct.pack(f"<BB{len(shape)}qQ", kind, len(shape), *shape, offset)


def write(name: str, decoder: int, body: bytes) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name).write_bytes(bytes([decoder]) + body)


error = b"\x01" + text(b"this rank is not served")
keys = text(b"seed") + text(b"1") + text(b"name") + text(b"test")
hello = struct.pack("<II", 1, 4) + text(b"job") + text(b"start-1") + b"\x00" + optional(None)
hello += text(b'{"step": 3}') + struct.pack("<I", 2) + keys
again = struct.pack("<II", 1, 4) + text(b"job") + text(b"start-1") + b"\x01" + optional(7) + text(b"") + bytes(4)
welcome = struct.pack("<I", 4711) + text(b"/run/host.log") + struct.pack("<IIII", 0, 1, 0, 2) + b"\x01"
welcome += struct.pack("<IQ", 1, 2) + text(b"{}")
tensors = tensor(b"tokens", 0, 0, 2, 64) + tensor(b"cu_seqlens", 1, 1024, 3) + tensor(b"loss_mask", 2, 1088, 2, 64)
batch = struct.pack("<QQQ", 5, 9, 4096) + column("Q", 3, 4) + struct.pack("<QQ", 120, 118) + text(b"d" * 32)
batch += column("d", 1.5, 2.5) + column("Q", 100, 20) + column("Q", 1 << 31, 1 << 31)
batch += struct.pack("<IQI", 0, 1216, 1) + struct.pack("<qQBqqB", 64, 120, 2, 2, 64, 3) + tensors
decide = struct.pack("<QBQ", 0, 0, 12) + text(b'{"stages": []}') + struct.pack("<QIIQ", 0, 0, 0, 0) + text(b"")
write("frames", FRAMES, frame(2, 1, hello) + frame(4, 2, bytes(8)) + frame(7, 3, bytes(8)) + frame(17, 4, b""))
write(
    "frames_of_two_versions",
    FRAMES,
    frame(1, 0, error, version=9) + frame(5, 2, batch, 1) + frame(5, 2, b"", version=9),
)
write("batch", BATCH, batch)
write("hello", HELLO, hello)
write("hello_again", HELLO, again)
write("welcome", WELCOME, welcome)
write("decide", DECIDE, decide)
write("state", STATE, optional(12))
write("text", TEXT, text(b"the pipeline"))
write("long_text", LONG_TEXT, struct.pack("<Q", 1 << 20))
write("number", NUMBER, struct.pack("<Q", 7))
write("error", ERROR, error)
