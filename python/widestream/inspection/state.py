"""The loader's state of a run, for people."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from widestream.errors import DataCorruptionError, InvalidArgumentError, NotFoundError

_STATE_NAME = "loader.json"
_CHECKPOINT = re.compile(r"step_(\d{6,})")
_STATE_BYTES = 256 << 20


def read_state(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Summarises a state file, or the newest checkpoint's of a run folder.

    Returns path, version, order_version, membership_version, stream_hash, seed, step, tokens, schedule, sources (name,
    epoch, position, open_token, tokens, examined, rejected, corrupt, held_out, exhausted, manifest), carried_pieces,
    closing_piece and decisions. The exact document is the file at `path`.

    Raises NotFoundError if there is no state, DataCorruptionError if it cannot be read.
    """
    path = _find(Path(run))
    size_bytes = path.stat().st_size
    if size_bytes > _STATE_BYTES:
        raise InvalidArgumentError(f"{path} has {size_bytes:,} bytes; a state has at most {_STATE_BYTES:,}")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataCorruptionError(f"{path} is not valid JSON ({error}); use another checkpoint") from None
    if not isinstance(document, dict) or not isinstance(document.get("sources"), dict) or "version" not in document:
        raise DataCorruptionError(
            f"{path} is not a loader's state: it has no version and sources; give a {_STATE_NAME}"
        )
    carried, decisions = document.get("carried"), document.get("decisions")
    kept = ("version", "order_version", "membership_version", "stream_hash", "seed", "step", "tokens", "schedule")
    return {
        "path": str(path),
        **{key: document.get(key) for key in kept},
        "sources": [_source(name, value) for name, value in document["sources"].items() if isinstance(value, dict)],
        "carried_pieces": len(carried) if isinstance(carried, list) else 0,
        "closing_piece": document.get("closing") is not None,
        "decisions": decisions if isinstance(decisions, list) else [],
    }


def _source(name: str, value: dict[str, Any]) -> dict[str, Any]:
    keys = ("epoch", "position", "tokens", "examined", "rejected", "corrupt", "held_out", "exhausted", "manifest")
    return {"name": name, "open_token": value.get("token"), **{key: value.get(key) for key in keys}}


def _find(run: Path) -> Path:
    if run.is_file():
        return run
    if not run.is_dir():
        raise NotFoundError(f"there is no {run}; give a run folder, a checkpoint, or a {_STATE_NAME}")
    if (run / _STATE_NAME).is_file():
        return run / _STATE_NAME
    checkpoints = [
        (int(match[1]), folder / _STATE_NAME)
        for folder in (run / "checkpoints").glob("step_*")
        if (match := _CHECKPOINT.fullmatch(folder.name)) and (folder / _STATE_NAME).is_file()
    ]
    if not checkpoints:
        raise NotFoundError(
            f"there is no checkpoint below {run / 'checkpoints'}: the run has not saved a state yet; "
            "`widestream journal` shows which steps were delivered"
        )
    return max(checkpoints)[1]
