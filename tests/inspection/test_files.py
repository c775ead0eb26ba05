"""`inspect_path`: what files hold, whatever state they are in."""

from __future__ import annotations

import json

import pytest

from tests.support.jobs import TOKENIZERS, sentences, write_jsonl, write_parquet
from widestream.errors import InvalidArgumentError, NotFoundError
from widestream.inspection import inspect_path


def test_parquet_tells_counts_from_metadata(tmp_path):
    texts = sentences(1, 130)
    write_parquet(tmp_path / "p" / "a.parquet", texts[:100], row_group_size=30)
    write_parquet(tmp_path / "p" / "b.parquet", texts[100:], row_group_size=50)
    found = inspect_path(tmp_path / "p", tokenizer=TOKENIZERS / "r50k_base.tiktoken")
    assert (found["format"], found["shards"], found["records"], found["units"]) == ("parquet", 2, 130, 5)
    assert found["largest_unit_records"] == 30
    assert found["schema"] == ["id: int64", "text: string"] and found["other_schemas"] == []
    assert found["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / "p").iterdir())
    sample = found["sample"]
    assert (sample["records"], sample["good"], sample["bad"], sample["shards"]) == (130, 130, 0, 2)
    assert sample["text_bytes"] == sum(map(len, texts))
    lengths = sample["length_bytes"]
    sizes = sorted(map(len, texts))
    assert (lengths["min"], lengths["max"], lengths["mean"]) == (sizes[0], sizes[-1], sum(sizes) / 130)
    assert lengths["p50"] == sizes[65]
    for low, high, count in lengths["bins"]:
        assert count == sum(low <= size <= high for size in sizes)
    assert sum(count for _, _, count in sample["length_tokens"]["bins"]) == 130
    assert found["beginning"] == texts[0][:197] + "..." * (len(texts[0]) > 200) or found["beginning"] == texts[0]
    json.dumps(found, allow_nan=False)


def test_sequential_formats_do_not_know_their_count(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", sentences(1, 40))
    write_jsonl(tmp_path / "b.jsonl.gz", sentences(2, 40))
    found = inspect_path(str(tmp_path / "*.jsonl*"), sample_records=10)
    assert (found["format"], found["shards"], found["records"], found["units"]) == ("jsonl", 2, None, 2)
    assert found["sample"]["records"] == 10 and found["sample"]["shards"] == 2
    assert found["sample"]["length_tokens"] is None


def test_relative_paths_and_home(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", sentences(1, 3))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert inspect_path("a.jsonl")["manifest"] == inspect_path("~/a.jsonl")["manifest"]


def test_bad_records_are_named_with_reasons(tmp_path):
    lines = [
        '{"text": "good"}',
        "{broken",
        '{"other": 1}',
        '{"text": null}',
        '{"text": 5}',
        json.dumps({"text": "x" * 200}),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": ""}']) + "\n")
    found = inspect_path(tmp_path / "a.jsonl", record_bytes=100)
    assert (found["sample"]["good"], found["sample"]["bad"], found["sample"]["empty"]) == (2, 5, 1)
    assert [bad["record"] for bad in found["bad_records"]] == [1, 2, 3, 4, 5]
    assert found["bad_records"][0]["offset"] == len(lines[0]) + 1
    assert all(bad["reason"] for bad in found["bad_records"])


def test_a_broken_shard_does_not_hide_the_others(tmp_path):
    good = write_parquet(tmp_path / "a.parquet", sentences(1, 20))
    (tmp_path / "b.parquet").write_bytes(good.read_bytes()[:-30])
    (tmp_path / "c.parquet").write_bytes(b"")
    write_parquet(tmp_path / "d.parquet", sentences(2, 10))
    found = inspect_path(tmp_path)
    assert found["records"] is None
    assert [shard["records"] for shard in found["shard_list"]] == [20, None, None, 10]
    assert [bad["shard"] for bad in found["bad_shards"]] == [str(tmp_path / "b.parquet"), str(tmp_path / "c.parquet")]
    assert found["sample"]["good"] == 30


def test_another_text_column_and_other_schemas(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"body": ["one", "two"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"body": ["three"], "extra": [1.5]}), tmp_path / "b.parquet")
    found = inspect_path(tmp_path, text="body")
    assert found["sample"]["good"] == 3
    assert found["other_schemas"] == [
        {"shard": str(tmp_path / "b.parquet"), "schema": ["body: string", "extra: double"]}
    ]
    missing = inspect_path(tmp_path)
    assert len(missing["bad_shards"]) == 2 and "body" in missing["bad_shards"][0]["reason"]


def test_the_sample_is_bounded_and_spread(tmp_path, monkeypatch):
    for i in range(100):
        write_jsonl(tmp_path / f"{i:03d}.jsonl", ["word " * 50] * 20)
    found = inspect_path(tmp_path, sample_records=100)
    assert found["sample"]["records"] == 100 and found["sample"]["shards"] == 50
    assert len(found["shard_list"]) == 100
    monkeypatch.setattr("widestream.inspection.files._SAMPLE_BYTES", 1000)
    assert inspect_path(tmp_path)["sample"]["text_bytes"] < 1000 + 16 * 250


def test_nothing_to_inspect(tmp_path):
    with pytest.raises(NotFoundError, match="nothing"):
        inspect_path(tmp_path / "nothing-*.jsonl")
    with pytest.raises(InvalidArgumentError, match="sample_records"):
        inspect_path(tmp_path, sample_records=0)
    write_jsonl(tmp_path / "a.jsonl", ["x"])
    write_parquet(tmp_path / "b.parquet", ["x"])
    with pytest.raises(InvalidArgumentError, match="different formats"):
        inspect_path(tmp_path)


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    found = inspect_path(tmp_path / "a.jsonl")
    assert found["sample"]["records"] == 0 and found["sample"]["length_bytes"] is None
    assert found["beginning"] == "" and found["bad_shards"] == []
