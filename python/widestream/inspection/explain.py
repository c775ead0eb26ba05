"""Where the tokens of a batch come from, read from the run's journal alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from widestream.errors import InvalidArgumentError
from widestream.inspection.journal import journal_path, open_journal, source_name

_MANIFEST_BYTES = 1 << 30


def explain(run: str | os.PathLike[str], step: int, rank: int = 0) -> list[dict[str, Any]]:
    """Every piece of a rank's batch, in the order in which it stands there.

    Each has microbatch, row, source, shard (path as far as the run folder tells; None where it does not), shard_index,
    record, start, stop (tokens of the record), epoch, position (in the source's order) and last (the document ends
    here). Nothing of the data is opened.

    Raises NotFoundError if there is no journal or no such step, InvalidArgumentError if there is no such rank.
    """
    if step < 0:
        raise InvalidArgumentError(f"step {step} is below 0")
    reader = open_journal(run)
    plan = reader.read_step(step)
    layout = plan["layout"]
    if not 0 <= rank < len(layout):
        raise InvalidArgumentError(
            f"step {step} was laid out for {len(layout)} data-parallel rank(s); choose a rank from 0 to {len(layout) - 1}"
        )
    names = list(reader.sources)
    paths = ShardPaths(journal_path(run).parent, reader, names)
    pieces = {name: column.tolist() for name, column in plan["pieces"].items()}
    rows = []
    for microbatch, of_microbatch in enumerate(layout[rank]):
        for row, indices in enumerate(of_microbatch):
            for i in indices:
                source, shard, epoch = pieces["source"][i], pieces["shard"][i], pieces["epoch"][i]
                rows.append(
                    {
                        "microbatch": microbatch,
                        "row": row,
                        "source": source_name(names, source),
                        "shard": paths.find(source, epoch, shard),
                        "shard_index": shard,
                        "record": pieces["record"][i],
                        "start": pieces["start"][i],
                        "stop": pieces["start"][i] + pieces["length"][i],
                        "epoch": epoch,
                        "position": pieces["position"][i],
                        "last": pieces["last"][i],
                    }
                )
    return rows


class ShardPaths:
    """Paths of shards by number, from the manifests that a run left in its folder."""

    def __init__(self, folder: Path, reader: Any, names: list[str]) -> None:
        self._folder = folder
        self._names = names
        self._hashes = {(source, epoch): digest for source, epoch, digest in reader.manifests}
        self._by_hash: dict[str, list[str]] = {}
        self._by_source: dict[str, list[str]] = {}
        for path in sorted((folder / "manifests").glob("*.json")):
            self._read(path)
        self._roots = _roots(folder)

    def _read(self, path: Path) -> None:
        if path.stat().st_size > _MANIFEST_BYTES:
            return
        try:
            manifest = json.loads(path.read_bytes())
            source, digest = str(manifest["source"]), str(manifest["hash"])
            shards = [str(shard[0]) for shard in manifest["shards"]]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            return  # a damaged manifest leaves its shards without names; the numbers are still right
        self._by_hash[digest] = shards
        self._by_source.setdefault(source, []).append(digest)

    def find(self, source: int, epoch: int, shard: int) -> str | None:
        """None where the run folder does not tell, e.g. because the source's files changed between two starts."""
        name = source_name(self._names, source)
        digest = self._hashes.get((source, epoch))
        if digest is None:
            known = self._by_source.get(name, [])
            digest = known[0] if len(known) == 1 else None
        shards = self._by_hash.get(digest or "", [])
        if shard >= len(shards):
            return None
        root = self._roots.get(name)
        return shards[shard] if root is None else str(Path(root) / shards[shard])


def _roots(folder: Path) -> dict[str, str]:
    """The folder that each source's shards are named from, by the job that the run left."""
    path = folder / "job.json"
    try:
        job = json.loads(path.read_bytes()) if path.stat().st_size < _MANIFEST_BYTES else {}
        return {str(source["name"]): root for source in job["sources"] if (root := _root(source)) is not None}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}


def _root(source: dict[str, Any]) -> str | None:
    """The deepest folder that all paths of a source have in common, before their first wildcard."""
    paths = source.get("paths", source.get("path"))
    paths = [paths] if isinstance(paths, str) else paths
    if not isinstance(paths, list) or not paths:
        return None
    folders = []
    for pattern in map(str, paths):
        wildcard = min((at for mark in "*?[" if (at := pattern.find(mark)) >= 0), default=-1)
        if wildcard < 0 and Path(pattern).is_dir():
            folders.append(pattern.rstrip("/"))
        else:
            folders.append(pattern[: pattern.rfind("/", 0, wildcard if wildcard >= 0 else None)])
    if not all(folder.startswith("/") for folder in folders):
        return None
    return os.path.commonpath(folders)
