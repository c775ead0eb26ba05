"""docs/stream.md, sections 1 to 4, in plain Python: slow, short, and written from the page, not from the engine.

The engine must agree with it on every (step, row, source, record, token range). Integers and fractions are exact. Input
is the job in its JSON form (only keys that may change the stream are read) and the data: {source: [shard: [Unit]]}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from tests.reference.counter_random import permuted, random_at

ONE = 2**32  # weights add up to it


class Record(NamedTuple):
    text: str | None  # None = bad
    raw_bytes: int = 0  # by which a block of a sequential format closes


class Unit(NamedTuple):
    records: list[Record]
    used_bytes: int | None = None  # of a row group: uncompressed, of the used columns; None = a sequential file


class Piece(NamedTuple):
    source: str
    epoch: int
    position: int
    shard: int
    record: int
    start: int
    length: int
    draw: int
    last: bool


class Step(NamedTuple):
    step: int
    skipped: bool
    pieces: list[Piece]
    rows: list[list[int]]  # indices of pieces in order of placement; empty for thd


class StreamError(Exception):
    """A policy says `error`, the error budget is spent, or an epoch has no token."""


def epoch_order(seed: int, spec: dict[str, Any], shards: list[list[Unit]], epoch: int) -> list[tuple[int, int, Record]]:
    """Section 1: (shard, number in the shard, record) at each position of an epoch."""
    shuffle = {"mode": "blocks", "records": 1000, "bytes": 2**20} | spec.get("shuffle", {})
    blocks, source_id = shuffle["mode"] == "blocks", xxh3_64_intdigest(spec["name"].encode())
    units = [(number, shard, unit) for number, shard in enumerate(shards) for unit in shard]
    places = permuted(len(units), seed, source_id, epoch, "units", 0) if blocks and units else range(len(units))
    order: list[tuple[int, int, Record]] = []
    for place in places:
        number, shard, (records, used) = units[place]
        first = sum(len(u.records) for u in shard[: next(i for i, u in enumerate(shard) if u is units[place][2])])
        at = 0
        while at < len(records):
            if used is not None:
                end = at + min(shuffle["records"], max(1, shuffle["bytes"] * len(records) // max(1, used)))
            else:
                end, raw = at + 1, records[at].raw_bytes
                while end < len(records) and end - at < shuffle["records"] and raw < shuffle["bytes"]:
                    end, raw = end + 1, raw + records[end].raw_bytes
            count = min(end, len(records)) - at
            inside = permuted(count, seed, source_id, epoch, "records", len(order)) if blocks else range(count)
            order += [(number, first + at + i, records[at + i]) for i in inside]
            at += count
    return order


def give_remainder(weights: list[int]) -> list[int]:
    weights[weights.index(max(weights))] += ONE - sum(weights)
    return weights


def integer_weights(weights: list[float]) -> list[int]:
    total = 0.0
    for weight in weights:  # not sum(): it compensates from Python 3.12 on
        total += weight
    return give_remainder([math.floor(w / total * 4294967296.0 + 0.5) for w in weights])


@dataclass
class Source:
    spec: dict[str, Any]
    shards: list[list[Unit]]
    name: str
    epoch: int = 0
    position: int = 0
    token: int = 0
    epoch_tokens: int = 0
    exhausted: bool = False
    examined: int = 0
    bad: int = 0
    credit: int = 0


class Stream:
    """The stream of a job. `encode` gives a text's ids, appended tokens included."""

    def __init__(
        self,
        job: dict[str, Any],
        data: dict[str, list[list[Unit]]],
        encode: Callable[[str], list[int]],
        decisions: list[dict[str, Any]] | None = None,
    ) -> None:
        self.job, self.encode, self.decisions = job, encode, decisions or []
        self.batch = {"layout": "rows", "overflow": "split", "last_step": "fill"} | job["batch"]
        self.errors = {"skip_bad_records": True, "budget": 0.001} | job.get("errors", {})
        self.sources = [Source(s, data[s["name"]], s["name"]) for s in job["sources"]]
        self.limit = self.batch["sequence_length"]
        if self.batch["layout"] == "thd":
            self.limit = self.batch.get("max_piece_tokens") or self.limit
        self.held_out_below = int(math.ldexp(min(job.get("validation_fraction", 0.0), 0.999999), 64))
        self.orders: dict[tuple[str, int], list[tuple[int, int, Record]]] = {}
        self.draws = 0
        self.open_sample: Source | None = None
        self.before: list[int] = []  # weights in force before an edit
        self.begin(job.get("mixture") or {"stages": [{"weights": {s.name: 1.0 for s in self.sources}}]})

    # Section 3: which source

    def begin(self, mixture: dict[str, Any]) -> None:
        self.samples, self.stages = mixture.get("unit", "tokens") == "samples", mixture["stages"]
        self.targets = [integer_weights([g["weights"].get(s.name, 0.0) for s in self.sources]) for g in self.stages]
        self.clock, self.stage, self.ended = 0, 0, False
        for source in self.sources:
            source.credit, source.exhausted = 0, False

    def weights(self) -> list[int]:
        """In force for the next draw; moves to the stage that the clock is in."""
        while (until := self.stages[self.stage].get("until")) is not None and self.clock >= until:
            if self.stage + 1 == len(self.stages):
                self.ended = True
                break
            self.stage += 1
            if not self.stages[self.stage].get("ramp"):
                self.restart_counters()
        ramp, weights = self.stages[self.stage].get("ramp") or 0, list(self.targets[self.stage])
        old = self.targets[self.stage - 1] if self.stage else self.before
        x = self.clock - (self.stages[self.stage - 1]["until"] if self.stage else 0)
        if x < ramp and any(old):
            weights = give_remainder([(a * (ramp - x) + b * x) // ramp for a, b in zip(old, weights, strict=True)])
        weights = [0 if s.exhausted else w for s, w in zip(self.sources, weights, strict=True)]
        rest = sum(weights)
        return give_remainder([w * ONE // rest for w in weights]) if 0 < rest < ONE else weights

    def restart_counters(self) -> None:
        for source in self.sources:
            source.credit = 0

    def choose(self, weights: list[int]) -> Source:
        live = [(s, w, s.credit + w) for s, w in zip(self.sources, weights, strict=True) if w > 0]
        keys = [Fraction(-score) for _, _, score in live]  # the smallest wins
        bound = Fraction(1, max(2 * len(live) - 2, 1))
        if self.samples and (eligible := [e for e in live if Fraction(e[2], ONE) >= bound]):
            live = eligible
            keys = [(1 - bound - Fraction(score, ONE)) / Fraction(w, ONE) for _, w, score in live]
        tied = [s for (s, _, _), key in zip(live, keys, strict=True) if key == min(keys)]
        seed, mixture = self.job.get("seed", 0), xxh3_64_intdigest(b"mixture")
        return min(tied, key=lambda s: random_at(seed, mixture, self.draws, xxh3_64_intdigest(s.name.encode())))

    def draw(self) -> Piece | None:
        """The next piece of the mixture; None when the stream has ended."""
        if self.open_sample is not None:
            piece = self.take(self.open_sample, self.draws - 1)
            if piece is None or piece.last:
                self.open_sample = None
            return piece
        while not self.ended:
            weights = self.weights()
            if self.ended or not any(weights):
                break
            source = self.choose(weights)
            piece = self.take(source, self.draws)
            if piece is None:
                policy = source.spec.get("on_exhausted", "renormalise")
                if policy == "error":
                    raise StreamError(f"{source.name} is exhausted")
                self.ended, source.exhausted = policy == "stop", True
                self.restart_counters()
                continue
            units = 1 if self.samples else piece.length
            for s, w in zip(self.sources, weights, strict=True):
                s.credit += w * units - (ONE * units if s is source else 0)
            self.clock, self.draws = self.clock + units, self.draws + 1
            self.open_sample = source if self.samples and not piece.last else None
            return piece
        self.ended = True
        return None

    # Sections 1 and 2: examine, deliver, cut

    def tokens_of(self, source: Source, record: Record) -> int:
        """Of the document that a newly examined record becomes; 0 if nothing is delivered."""
        source.examined += 1
        if record.text is None:
            source.bad += 1
            if not self.errors["skip_bad_records"] or source.bad > 10 + self.errors["budget"] * source.examined:
                raise StreamError(f"{source.name}: bad record at position {source.position}")
            return 0
        if xxh3_64_intdigest(record.text.encode()) < self.held_out_below:
            return 0
        length, overflow = len(self.encode(record.text)), self.batch["overflow"]
        if length <= self.limit or overflow == "split":
            return length
        if overflow == "error":
            raise StreamError(f"{source.name}: {length} tokens at position {source.position}")
        return self.limit if overflow == "truncate" else 0

    def take(self, source: Source, draw: int) -> Piece | None:
        """The next piece of a source; None if no epoch follows."""
        while True:
            key = source.name, source.epoch
            if key not in self.orders:
                self.orders[key] = epoch_order(self.job.get("seed", 0), source.spec, source.shards, source.epoch)
            order = self.orders[key]
            if source.position == len(order):
                if source.epoch_tokens == 0:
                    raise StreamError(f"{source.name}: epoch {source.epoch} has no token")
                if source.epoch + 1 == source.spec.get("max_epochs"):
                    return None
                source.epoch, source.position, source.epoch_tokens = source.epoch + 1, 0, 0
                continue
            shard, number, record = order[source.position]
            # Only `split` leaves a document open: the policy was applied when it was examined.
            total = len(self.encode(record.text or "")) if source.token else self.tokens_of(source, record)
            if total == 0:
                source.position += 1
                continue
            start, length = source.token, min(self.limit, total - source.token)
            last = start + length == total
            piece = Piece(source.name, source.epoch, source.position, shard, number, start, length, draw, last)
            source.epoch_tokens += length
            source.token, source.position = (0, source.position + 1) if last else (start + length, source.position)
            return piece

    # Section 4: membership

    def pack(self, taken: list[Piece], carried: int) -> tuple[list[list[int]], set[int]]:
        """Rows of indices into `taken`, and the indices of what found no room."""
        rows: list[list[int]] = [[] for _ in range(self.batch["rows"])]
        free, left = [self.limit] * len(rows), set()
        for group in (range(carried), range(carried, len(taken))):
            for i in sorted(group, key=lambda i: (-taken[i].length, i)):
                room = [(f, row) for row, f in enumerate(free) if f >= taken[i].length]
                if not room:
                    left.add(i)
                    continue
                row = min(room)[1]
                rows[row].append(i)
                free[row] -= taken[i].length
        return rows, left

    def steps(self) -> Iterator[Step]:
        layout, rows_wanted = self.batch["layout"], self.batch.get("rows", 0)
        budget = self.batch["tokens"] if layout == "thd" else rows_wanted * self.limit
        carried: list[Piece] = []
        closing: list[Piece] = []
        step = 0
        while True:
            for edit in [d for d in self.decisions if d["kind"] == "edit" and d["step"] == step][-1:]:
                self.before = self.weights()
                self.begin(edit["mixture"])
            queue, taken, tokens = carried + closing, list[Piece](), 0
            closing = []
            while layout != "padded" or len(taken) < rows_wanted:
                piece = queue.pop(0) if queue else self.draw()
                if piece is None:
                    break
                if layout != "padded" and tokens + piece.length > budget:
                    closing = [piece]
                    break
                taken.append(piece)
                tokens += piece.length
            full = bool(closing) or (len(taken) == rows_wanted if layout == "padded" else tokens == budget)
            if not taken or (not full and self.batch["last_step"] == "drop"):
                return
            rows, left = [[i] if i < len(taken) else [] for i in range(rows_wanted)], set[int]()
            if layout == "rows":
                rows, left = self.pack(taken, len(carried))
            carried = [taken[i] for i in sorted(left)]
            members = [i for i in range(len(taken)) if i not in left]
            skips = [d for d in self.decisions if d["kind"] == "skip"]
            skipped = any(d["step"] <= step < d["step"] + d["steps"] for d in skips)
            yield Step(step, skipped, [taken[i] for i in members], [[members.index(i) for i in row] for row in rows])
            step += 1
