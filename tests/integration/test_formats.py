"""Every format gives the same stream of the same documents, and is restored in the middle of it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import widestream as ws
from tests.integration.test_reference import write_tokenizer
from tests.support.jobs import sentences, write_jsonl
from widestream.errors import InvalidArgumentError, WidestreamError
from widestream.inspection import inspect_path
from widestream.tokenizer import Tokenizer, tokenize_files

pytestmark = pytest.mark.timeout(60)
TEXTS = sentences(5, 120)


def write_texts(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:04}.md").write_text(text, encoding="utf-8")
    return {"path": str(folder), "format": "text"}


def write_tar(folder: Path) -> dict[str, Any]:
    with tarfile.open(folder / "a.tar", "w") as tar:
        for number, text in enumerate(TEXTS):
            for suffix, content in (("cls", b"1"), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{number:04}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return {"path": str(folder / "a.tar"), "text": "txt"}


def write_megatron(folder: Path) -> dict[str, Any]:
    write_jsonl(folder / "texts.jsonl", TEXTS)
    tokenize_files(folder / "texts.jsonl", folder / "ids", tokenizer_of(folder))
    return {"path": str(folder / "ids.idx")}


def tokenizer_of(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(write_tokenizer(folder)), pattern="gpt2")


def job_over(folder: Path, source: dict[str, Any], **changes: Any) -> ws.Job:
    settings: dict[str, Any] = {
        "data_roots": [str(folder)],
        "tokenizer": {"file": str(write_tokenizer(folder)), "pattern": "gpt2"},
        "sources": [{"name": "s", "max_epochs": 1, "shuffle": False, **source}],
        "batch": {"sequence_length": 128, "rows": 2},
        "limits": {"host_memory": "64MiB", "threads": 2},
    }
    return ws.Job(**{**settings, **changes})


def rows(loader: ws.DataLoader, steps: int = 1000) -> list[tuple[str, bytes]]:
    out = []
    for _ in range(steps):
        batch = next(loader, None)
        if batch is None:
            break
        tensors = b"".join(np.asarray(microbatch.tokens).tobytes() for microbatch in batch.microbatches)
        out.append((str(batch.digest), tensors))
    return out


WRITERS = {"text": write_texts, "webdataset": write_tar, "megatron": write_megatron}


@pytest.mark.parametrize("name", WRITERS)
def test_the_stream_is_that_of_json_lines_and_goes_on_from_any_step(tmp_path, name):
    write_jsonl(tmp_path / "same.jsonl", TEXTS)
    with ws.DataLoader(job_over(tmp_path, {"path": str(tmp_path / "same.jsonl")}), tensors="numpy") as loader:
        expected = [tokens for _, tokens in rows(loader)]
    source = WRITERS[name](tmp_path / "d" if name == "text" else tmp_path)
    job = job_over(tmp_path, source)
    with ws.DataLoader(job, tensors="numpy") as loader:
        whole = rows(loader)
    assert [tokens for _, tokens in whole] == expected and len(whole) > 10
    for step in (1, len(whole) // 2, len(whole) - 1):
        with ws.DataLoader(job, tensors="numpy") as loader:
            rows(loader, step)
            state = loader.state_dict()
        with ws.DataLoader(job, tensors="numpy") as loader:
            loader.load_state_dict(state)
            assert rows(loader) == whole[step:]


@pytest.mark.parametrize("name", WRITERS)
def test_inspect_tells_what_is_there(tmp_path, name):
    source = WRITERS[name](tmp_path / "d" if name == "text" else tmp_path)
    found = inspect_path(
        source["path"],
        text=source.get("text", "text"),
        format=source.get("format", ""),
        tokenizer=write_tokenizer(tmp_path),
        pattern="gpt2",
    )
    assert found["format"] == name and not found["bad_shards"] and not found["bad_records"]
    assert found["records"] == {"text": 120, "webdataset": None, "megatron": 120}[name]
    assert found["beginning"].startswith(TEXTS[0][:100])
    assert sum(count for _, _, count in found["sample"]["length_tokens"]["bins"]) == found["sample"]["good"]


def test_ids_are_not_tokenized_again(tmp_path):
    write_megatron(tmp_path)
    with pytest.raises(InvalidArgumentError, match="holds ids already"):
        tokenize_files(tmp_path / "ids.idx", tmp_path / "twice", tokenizer_of(tmp_path))


def test_a_vocabulary_that_is_too_small_is_an_error(tmp_path):
    ids = np.full(2000, 60_000, dtype="<u2")
    write_megatron(tmp_path)
    (tmp_path / "ids.bin").write_bytes(np.resize(ids, (tmp_path / "ids.bin").stat().st_size // 2).tobytes())
    job = job_over(tmp_path, {"path": str(tmp_path / "ids.idx")})
    with (
        pytest.raises(WidestreamError, match=r"ids\.idx.*id number 0 is 60000"),
        ws.DataLoader(job, tensors="numpy") as loader,
    ):
        rows(loader)
