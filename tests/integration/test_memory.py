"""Memory follows the limit, not the number of sources or steps."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.jobs import sentences, small_job, write_jsonl, write_parquet

MB = 1_000_000


def measure(tmp_path, sources: int, steps: int, every: int, host_memory: str, limit_bytes: int):
    entries = []
    for i in range(sources):
        path = tmp_path / "data" / f"source{i}.{'parquet' if i % 2 else 'jsonl'}"
        (write_parquet if i % 2 else write_jsonl)(path, sentences(i, 300))
        entries.append({"name": f"s{i}", "path": str(path)})
    job = small_job(
        tmp_path,
        sources=entries,
        mixture={"unit": "tokens", "stages": [{"weights": {e["name"]: 1 for e in entries}}]},
        batch={"sequence_length": 512, "rows": 8, "microbatch_tokens": 4096},
        limits={"host_memory": host_memory, "threads": 2},
    )
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job.model_dump(mode="json", exclude_none=True)))
    command = [sys.executable, "-m", "tests.support.measure_memory", str(file), str(steps), str(every)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    beyond = [(step, pss - result["imported"]) for step, pss in result["samples"]]
    assert max(pss for _, pss in beyond) <= limit_bytes + 100 * MB, beyond
    first_step, first = next(sample for sample in beyond if sample[0] >= min(500, steps // 2))
    last_step, last = beyond[-1]
    allowed = MB * max(1.0, (last_step - first_step) / 1000)
    return last - first, allowed, beyond


def test_memory_stays_within_the_limit(tmp_path):
    growth, _, beyond = measure(tmp_path, 6, 400, 100, "64MiB", 64 * 2**20)
    assert growth < 16 * MB, beyond


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("sources", "host_memory", "limit_bytes"), [(6, "64MiB", 64 * 2**20), (200, "512MiB", 512 * 2**20)]
)
def test_memory_is_flat_over_ten_thousand_steps(tmp_path, sources, host_memory, limit_bytes):
    growth, allowed, beyond = measure(tmp_path, sources, 10_000, 500, host_memory, limit_bytes)
    assert growth <= allowed, beyond
