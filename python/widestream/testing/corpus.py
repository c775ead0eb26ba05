"""A small real corpus, a tokenizer of bytes, and a job that reads both."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widestream.job import Job

_NAMES = ("prose", "chapters", "verses")
END_OF_TEXT = "<|endoftext|>"


def corpus() -> dict[str, list[str]]:
    """Real texts by source: "prose" (103 paragraphs), "chapters" (3 long texts), "verses" (110 lines of Spanish).

    65 kB in all, in the public domain, the same in every version.
    """
    folder = resources.files("widestream.testing") / "texts"
    return {
        name: [json.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in _NAMES
    }


def write_corpus(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Writes the corpus as one JSON Lines file a source (key `text`) and returns their paths; whole files are kept."""
    paths = {}
    for name, texts in corpus().items():
        path = paths[name] = Path(folder) / f"{name}.jsonl"
        _write(path, "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts))
    return paths


def byte_tokenizer(path: str | os.PathLike[str]) -> Path:
    """Writes a tokenizer.json of the 256 bytes (ids 1 to 256) and `<|endoftext|>` (id 0): every byte is a token."""
    added = {"id": 0, "content": END_OF_TEXT, "special": True, "normalized": False, "single_word": False}
    document = {
        "version": "1.0",
        "added_tokens": [{**added, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {END_OF_TEXT: 0, **{drawn: index for index, drawn in enumerate(_drawn_bytes(), start=1)}},
            "merges": [],
        },
    }
    _write(Path(path), json.dumps(document, ensure_ascii=False))
    return Path(path)


def small_job(folder: str | os.PathLike[str], **changes: Any) -> Job:
    """A job over the corpus and the byte tokenizer, both written into `folder`: three sources, steps of 8 rows of 128.

    Args:
        folder: made where needed; a job of the same folder can be made again.
        **changes: keys of the job; a mapping changes the section's keys, e.g. `batch={"layout": "thd", ...}`, and None
            removes one.
    """
    from widestream.job import Job

    base = Path(folder)
    base.mkdir(parents=True, exist_ok=True)
    paths = write_corpus(base)
    settings: dict[str, Any] = {
        "name": "small",
        "seed": 5,
        "data_roots": [str(base)],
        "cache_dir": str(base / "cache"),
        "tokenizer": {"file": str(byte_tokenizer(base / "bytes.json")), "append": [END_OF_TEXT]},
        "sources": [
            {"name": name, "path": str(path), "shuffle": {"records": 16, "bytes": "4KiB"}}
            for name, path in paths.items()
        ],
        "mixture": {
            "stages": [
                {"until": 6000, "weights": {"prose": 0.5, "chapters": 0.5}},
                {"weights": {"prose": 0.3, "chapters": 0.4, "verses": 0.3}, "ramp": 2000},
            ]
        },
        "batch": {"sequence_length": 128, "rows": 8, "microbatch_tokens": 256},
        "limits": {"host_memory": "64MiB", "threads": 1},
        "errors": {"record_bytes": "1MiB"},
    }
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            merged = {**settings[key], **value}
            settings[key] = {name: item for name, item in merged.items() if item is not None}
        else:
            settings[key] = value
    return Job(**{key: value for key, value in settings.items() if value is not None})


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and not again: tests that run side by side may share a folder."""
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _drawn_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself if it prints, else one above 255."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    drawn, above = [], 0x100
    for byte in range(256):
        drawn.append(chr(byte if byte in printing else above))
        above += byte not in printing
    return drawn
