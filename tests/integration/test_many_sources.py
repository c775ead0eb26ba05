"""With many sources a loader keeps nothing decoded; what it delivers is the same."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import widestream as ws
from tests.support.jobs import fingerprint, sentences, small_job, take


def job_of(folder, block_bytes: str, nulls: bool = False) -> ws.Job:
    """One Parquet source of two row groups with many small pages. Its share of the read-ahead is 16 MiB: less than two
    blocks of 64 MiB, more than two of 1 MiB; either way a block holds 8 records."""
    path = folder / "pages" / "a.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True)
        texts: list[str | None] = list(sentences(1, 300))
        if nulls:
            texts[7::50] = [None] * len(texts[7::50])
        pq.write_table(
            pa.table({"text": pa.array(texts, pa.string())}),
            path,
            row_group_size=170,
            data_page_size=600,
            write_batch_size=3,
            use_dictionary=False,
            compression="zstd",
        )
    source = {"name": "pages", "path": str(path), "shuffle": {"records": 8, "bytes": block_bytes}}
    return small_job(
        folder,
        sources=[source],
        mixture={"unit": "tokens", "stages": [{"weights": {"pages": 1.0}}]},
        limits={"host_memory": "1GiB"},
        errors={"budget": 0.5},
    )


@pytest.mark.parametrize("nulls", [False, True])
def test_a_reader_that_is_closed_between_blocks_reads_the_same(tmp_path, nulls):
    with ws.DataLoader(job_of(tmp_path, "1MiB", nulls), tensors="numpy") as loader:
        expected = [fingerprint(batch) for batch in take(loader, 60)]
    lean = job_of(tmp_path, "64MiB", nulls)
    with ws.DataLoader(lean, tensors="numpy") as loader:
        states = [loader.state_dict()]
        found = []
        for _ in range(60):
            found.append(fingerprint(next(loader)))
            states.append(loader.state_dict())
    assert found == expected
    for step in range(0, 60, 7):
        with ws.DataLoader(lean, tensors="numpy", state=json.loads(json.dumps(states[step]))) as loader:
            assert [fingerprint(batch) for batch in take(loader, 3)] == expected[step : step + 3]
