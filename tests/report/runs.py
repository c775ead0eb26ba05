"""Run folders as a training run leaves them, without training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

SOURCES = ("novels", "bible", "definitions", "go", "python", "questions", "proofs", "spanish")
SLOTS = 4096


def metrics_line(step: int, steps: int, sources: tuple[str, ...] = SOURCES, seed: int = 0) -> dict[str, Any]:
    """One step's line of metrics.jsonl, like the trainer's."""
    rng = random.Random(seed * 1_000_003 + step)
    loss = 3.4 + 4.9 * math.exp(-step / (steps / 6)) + rng.gauss(0, 0.08)
    weights = {name: 1.0 + (i + 1) * step / steps for i, name in enumerate(sources)}
    total = sum(weights.values())
    real = SLOTS - rng.randrange(60)
    tokens = {name: int(real * weight / total * rng.uniform(0.75, 1.25)) for name, weight in weights.items()}
    entry: dict[str, Any] = {
        "step": step,
        "loss": loss,
        "mtp_losses": [loss + 0.9 + rng.gauss(0, 0.05)],
        "learning_rate": 3e-3 * min(1.0, step / 30) * (0.55 + 0.45 * math.cos(math.pi * step / steps)),
        "gradient_norm": 0.7 + 2 * math.exp(-step / 30) + abs(rng.gauss(0, 0.2)),
        "supervised_tokens": real - 20,
        "seconds": rng.uniform(0.22, 0.3),
        "wait_seconds": rng.uniform(0.0001, 0.002),
        "slots": max(SLOTS, sum(tokens.values())),
        "tokens_by_source": tokens,
        "wanted_by_source": weights,
    }
    if step % max(1, steps // 6) == 0:
        entry["validation"] = {
            "loss": loss + 0.1,
            "mtp_losses": [loss + 1],
            "unigram_cross_entropy": 6.1,
            "tokens": 9000,
        }
    return entry


def write_run(folder: Path, steps: int = 60, sources: tuple[str, ...] = SOURCES, pieces: int = 40) -> Path:
    """A finished run: metrics, summary, provenance and job; no journal."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [metrics_line(step, steps, sources) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "final_loss": lines[-1]["loss"],
        "validation_loss": lines[-1]["loss"] + 0.1,
        "unigram_cross_entropy": 6.1,
        "validation_bits_per_byte": 1.71,
        "unigram_bits_per_byte": 2.83,
        "tokens_per_second": 15_800.0,
        "data_wait_share": 0.004,
        "steps": steps,
        "tokens_by_source": {},
        "mixture_error": 0.002,
        "report": None,
        "versions": {"widestream": "0.1.0", "torch": "2.11.0"},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    rng = random.Random(3)
    traced = []
    for number in range(pieces):
        start, length = rng.choice((0, 256, 512)), int(256 * rng.random() ** 2) + 1
        name = sources[number % len(sources)]
        traced.append(
            {
                "microbatch": 0,
                "row": number // 3,
                "source": name,
                "shard": f"/data/{name}/{name}-00-of-04.jsonl.zst",
                "record": rng.randrange(10_000),
                "start": start,
                "stop": start + length,
                "epoch": 0,
                "text": "It is a truth universally acknowledged, that a single man in possession of a goo...",
            }
        )
    (folder / "provenance.json").write_text(json.dumps({"step": steps - 1, "rank": 0, "pieces": traced}))
    job = {"name": folder.name, "seed": 17, "batch": {"layout": "rows", "rows": 16, "sequence_length": 256}}
    (folder / "job.json").write_text(json.dumps(job))
    return folder
