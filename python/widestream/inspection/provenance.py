"""Where the tokens of a batch in hand come from, with their text: what a training run leaves about its last step."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widestream.inspection.text import excerpt

if TYPE_CHECKING:
    from widestream.loader import Batch, DataLoader

PROVENANCE_NAME = "provenance.json"
TEXT_CHARACTERS = 80


def provenance_document(batch: Batch, loader: DataLoader, characters: int = TEXT_CHARACTERS) -> dict[str, Any]:
    """step, rank and pieces of this rank's batch in order.

    Each piece has microbatch, row, source, shard, record, start, stop (tokens of the record), epoch and text: its
    first `characters` decoded characters on one line, control characters made visible.
    """
    pieces = []
    for span, ids in piece_tokens(batch):
        text = excerpt(loader.decode(ids[: 2 * characters]), characters)
        pieces.append({**asdict(span), "text": text})
    return {"step": batch.step, "rank": batch.rank, "pieces": pieces}


def piece_tokens(batch: Batch) -> list[tuple[Any, Any]]:
    """(Span, int64 ids) of each piece of this rank's batch, in order."""
    spans = iter(batch.sources())
    lengths = batch.pieces["length"]
    found = []
    for microbatch, rows in zip(batch.microbatches, batch.layout[batch.rank], strict=True):
        tokens = np.asarray(microbatch.tokens)
        # thd: pieces may be aligned; elsewhere they stand end to end from the start of the row.
        aligned = None if microbatch.cu_seqlens_padded is None else np.asarray(microbatch.cu_seqlens_padded)
        for row, indices in enumerate(rows):
            at = 0
            for number, index in enumerate(indices):
                begin = at if aligned is None else int(aligned[number])
                length = int(lengths[index])
                found.append((next(spans), tokens[row, begin : begin + length]))
                at += length
    return found


def write_provenance(batch: Batch, loader: DataLoader, run_dir: str | os.PathLike[str]) -> Path:
    """Writes provenance.json into a run folder, whole or not at all; the report shows it."""
    path = Path(run_dir) / PROVENANCE_NAME
    temporary = path.with_name(f".{PROVENANCE_NAME}.{os.getpid()}.tmp")
    document = provenance_document(batch, loader)
    try:
        temporary.write_text(json.dumps(document, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
