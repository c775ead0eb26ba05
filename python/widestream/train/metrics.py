"""The metrics log of a run: one JSON object a line, `metrics.jsonl`, appended and flushed at every step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends records that have a whole number "step", the steps done. One writer a file; not thread-safe.

    On a resume everything after the checkpoint's step is cut, and so is a line that a killed writer left half
    written: the log of a resumed run has every step once.
    """

    def __init__(self, path: Path, *, keep_steps: int) -> None:
        """Opens the log, keeping the records of steps up to `keep_steps` (0: none)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read_metrics(path) if record["step"] <= keep_steps]
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(map(_line, kept)), encoding="utf-8")
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        """Hands one record to the operating system: it survives the death of this process."""
        self._file.write(_line(record))
        self._file.flush()

    def close(self) -> None:
        """Makes the log durable and closes it; may be called twice."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class NoLog:
    """The log of a rank that writes none."""

    def append(self, record: dict[str, Any]) -> None:
        """Forgets it."""

    def close(self) -> None:
        """Nothing is held."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a log, oldest first; empty where there is no log."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith("\n") else None
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"
