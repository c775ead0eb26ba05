"""What a file, a folder or a glob of data holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from widestream.errors import InvalidArgumentError, WidestreamError

_MAX_SHARDS_SAMPLED = 64
_MAX_BAD = 20
_SAMPLE_BYTES = 64 << 20


def inspect_path(
    path: str | os.PathLike[str],
    *,
    text: str = "text",
    format: str = "",
    tokenizer: str | os.PathLike[str] | None = None,
    pattern: str = "",
    sample_records: int = 1000,
    record_bytes: int = 32 << 20,
) -> dict[str, Any]:
    """Opens what a source with this path would read, and samples records from shards spread over it.

    Args:
        path: a file, a folder or a glob.
        text: the column or key that holds the text.
        format: "parquet", "jsonl", "megatron", "text" or "webdataset"; "" tells it from the names.
        tokenizer: a tokenizer file: then lengths in tokens are told too; `pattern` where the file does not say it.
        sample_records: records to read at most.
        record_bytes: longer records are bad.

    Returns path, format, manifest (hash), shards, size_bytes, schema (lines "name: type"), records (None where no
    metadata tells), units, largest_unit_records, shard_list (path, size_bytes, records, units, error), sample
    (records, good, bad, empty, bytes, text_bytes, shards, length_bytes, length_tokens), bad_records (shard, record,
    offset, reason; at most 20), bad_shards (shard, reason) and beginning (the first text's first 200 characters).
    Of a data set that is tokenized already, texts are its ids: as numbers in beginning, or as the tokenizer decodes them.
    A length is {mean, min, p10, p50, p90, p99, max, bins: [[low, high, records]...]} or None.

    Raises NotFoundError if nothing matches and InvalidArgumentError if the files have no or several known formats. A
    shard that cannot be read is told, not raised.
    """
    from widestream.loader.engine import core

    if sample_records < 1:
        raise InvalidArgumentError(f"sample_records is {sample_records}; it must be at least 1")
    engine = core()
    listed = engine.list_shards(_absolute(path), format)
    encoder = (
        None if tokenizer is None else engine.Tokenizer.from_file(str(Path(tokenizer).absolute()), pattern=pattern)
    )
    survey = _Survey(engine, listed["format"], text, record_bytes)
    shards = listed["shards"]
    step = max(1, -(-len(shards) // _MAX_SHARDS_SAMPLED))
    sampled = set(range(0, len(shards), step))
    each = max(1, -(-sample_records // len(sampled)))
    for index, shard in enumerate(shards):
        quota = min(each, sample_records - survey.read) if index in sampled else 0
        survey.add(shard["path"], shard["size_bytes"], quota)
    return {
        "path": os.fspath(path),
        "format": listed["format"],
        "manifest": listed["hash"],
        "shards": len(shards),
        "size_bytes": sum(shard["size_bytes"] for shard in shards),
        **survey.result(encoder),
    }


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.fspath(Path(path).expanduser().absolute())


class _Survey:
    """Collects shards and sampled records."""

    def __init__(self, engine: Any, format: str, text: str, record_bytes: int) -> None:
        self._engine, self._format, self._text, self._record_bytes = engine, format, text, record_bytes
        self._shards: list[dict[str, Any]] = []
        self._schemas: dict[tuple[str, ...], str] = {}
        self._texts: list[bytes] = []
        self._bad: list[dict[str, Any]] = []
        self._bad_count = 0
        self._units = 0
        self._largest: int | None = None
        self._sampled_shards = 0
        self._sample_bytes = _SAMPLE_BYTES
        self._id_bytes = 0
        self.read = 0

    def add(self, path: str, size_bytes: int, quota: int) -> None:
        """Opens a shard and reads up to `quota` of its first records."""
        entry: dict[str, Any] = {"path": path, "size_bytes": size_bytes, "records": None, "units": None, "error": None}
        self._shards.append(entry)
        try:
            shard = self._engine.InspectedShard(
                path, format=self._format, text=self._text, record_bytes=self._record_bytes
            )
            self._schemas.setdefault(tuple(shard.schema()), path)
            units = shard.units()
            counts = [records for records, _, _ in units]
            entry["units"] = len(units)
            entry["records"] = None if None in counts else sum(counts)
            self._units += len(units)
            self._largest = max([self._largest or 0, *(count for count in counts if count is not None)]) or None
            if quota > 0:
                self._sample(shard, path, units, quota)
        except WidestreamError as error:
            entry["error"] = str(error)

    def _sample(self, shard: Any, path: str, units: list[tuple[int | None, int, int]], quota: int) -> None:
        self._sampled_shards += 1
        for number, (_, _, first_record) in enumerate(units):
            if quota <= 0 or self._sample_bytes <= 0:
                break
            records = shard.read(number, quota, self._sample_bytes)
            self._id_bytes = shard.id_bytes
            self._sample_bytes -= sum(len(text) for text, _, _ in records)
            quota -= len(records)
            self.read += len(records)
            for index, (text, offset, reason) in enumerate(records):
                if not reason:
                    self._texts.append(text)
                    continue
                self._bad_count += 1
                if len(self._bad) < _MAX_BAD:
                    self._bad.append(
                        {"shard": path, "record": first_record + index, "offset": offset, "reason": reason}
                    )

    def result(self, encoder: Any) -> dict[str, Any]:
        from widestream.inspection.text import excerpt

        known = [shard["records"] for shard in self._shards]
        sizes = [len(text) for text in self._texts]
        tokens = None
        if self._id_bytes:
            tokens = [size // self._id_bytes for size in sizes]
        elif encoder is not None:
            _, offsets = encoder.encode_batch(self._texts)
            tokens = [int(b) - int(a) for a, b in zip(offsets, offsets[1:], strict=False)]
        first = next((text for text in self._texts if text.strip()), b"")
        if self._id_bytes:
            first = self._decoded(next((text for text in self._texts if text), b""), encoder)
        schemas = list(self._schemas)
        return {
            "schema": list(schemas[0]) if schemas else [],
            "other_schemas": [{"shard": self._schemas[schema], "schema": list(schema)} for schema in schemas[1:10]],
            "records": None if None in known else sum(known),
            "units": self._units,
            "largest_unit_records": self._largest,
            "shard_list": self._shards,
            "sample": {
                "records": self.read,
                "good": len(self._texts),
                "bad": self._bad_count,
                "empty": sum(1 for size in sizes if size == 0),
                "text_bytes": sum(sizes),
                "shards": self._sampled_shards,
                "length_bytes": _lengths(sizes),
                "length_tokens": None if tokens is None else _lengths(tokens),
            },
            "bad_records": self._bad,
            "bad_shards": [
                {"shard": shard["path"], "reason": shard["error"]} for shard in self._shards if shard["error"]
            ],
            "beginning": excerpt(first, 200),
        }

    def _decoded(self, stored: bytes, encoder: Any) -> bytes:
        """The first ids of a record, readable."""
        import numpy as np

        dtype = np.dtype("<u2" if self._id_bytes == 2 else "<u4")
        ids = np.frombuffer(stored, dtype=dtype, count=min(200, len(stored) // self._id_bytes)).astype(np.uint32)
        if encoder is None or (ids.size and int(ids.max()) >= encoder.vocabulary_size):
            return " ".join(str(value) for value in ids).encode()
        decoded: bytes = encoder.decode(ids)
        return decoded


def _lengths(values: list[int]) -> dict[str, Any] | None:
    """The distribution of lengths; bins double."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    bins: dict[int, int] = {}
    for value in ordered:
        exponent = value.bit_length()
        bins[exponent] = bins.get(exponent, 0) + 1
    return {
        "mean": sum(ordered) / len(ordered),
        "min": ordered[0],
        "p10": at(0.10),
        "p50": at(0.50),
        "p90": at(0.90),
        "p99": at(0.99),
        "max": ordered[-1],
        "bins": [
            [1 << (exponent - 1) if exponent else 0, (1 << exponent) - 1 if exponent else 0, bins.get(exponent, 0)]
            for exponent in range(min(bins), max(bins) + 1)
        ],
    }
