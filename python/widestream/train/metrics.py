"""The metrics log of a run: one JSON object a line, `metrics.jsonl`, appended and flushed at every step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends records with a "step" (steps done when it was written). One writer a file; not thread-safe.

    On a resume everything after the checkpoint's step is cut, and so is a line that a killed writer left half
    written, so that the log of a resumed run has every step once.
    """

    def __init__(self, path: Path, *, keep_steps: int) -> None:
        """Opens the log, keeping the records of steps up to `keep_steps`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _lines(path) if _step(line) <= keep_steps] if keep_steps else []
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(kept), encoding="utf-8")
        temporary.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: dict[str, Any]) -> None:
        """Writes one record; it survives the death of this process."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Makes the log durable and closes it; may be called twice."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a log, oldest first; a half-written last line is left out."""
    return [json.loads(line) for line in _lines(path) if _step(line) >= 0]


def _lines(path: Path) -> list[str]:
    return (
        path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
    )


def _step(line: str) -> float:
    """The step of a line, or infinity where it is no whole record, so that it is never kept."""
    try:
        record = json.loads(line)
        step = record["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf") if not line.endswith("\n") else -1
    return step if isinstance(step, int) and line.endswith("\n") else float("inf")
