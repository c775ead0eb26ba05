"""The Python face of the tokenizer: shapes, options, batches, offsets, streaming, threads, pickling, the slow path."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widestream as ws
from tests.tokenizer.support import CL100K, R50K, TRAINING_TEXT, unigram
from widestream import errors

END = "<|endoftext|>"
TEXTS = ["Hello world", "", "\u00e9t\u00e9 \u2603 \U0001f468\u200d\U0001f469", "a" * 500, "  \n\t x  ", END + "tail"]


@pytest.fixture(scope="module")
def r50k() -> ws.Tokenizer:
    return ws.Tokenizer.from_file(R50K)


@pytest.fixture(scope="module")
def cl100k() -> ws.Tokenizer:
    return ws.Tokenizer.from_file(CL100K)


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_ids_are_as_narrow_as_the_vocabulary_allows(r50k: ws.Tokenizer, cl100k: ws.Tokenizer) -> None:
    assert r50k.encode("x").dtype == r50k.dtype == np.uint16
    assert cl100k.encode("x").dtype == cl100k.dtype == np.uint32
    assert r50k.encode("").dtype == np.uint16 and r50k.encode("").shape == (0,)
    assert r50k.encode_batch([]).ids.dtype == np.uint16
    assert r50k.encode_batch([]).offsets.tolist() == [0]


def test_what_a_tokenizer_says_of_itself(r50k: ws.Tokenizer) -> None:
    assert r50k.backend == "native" and r50k.pattern == "gpt2" and r50k.path == str(R50K)
    assert r50k.vocabulary_size == len(r50k) == 50257
    assert r50k.special_tokens == {END: 50256}
    assert r50k.special_token_id(END) == 50256 and r50k.special_token_id("<|x|>") is None
    assert r50k.id_of(END) == 50256 and r50k.id_of(" the") == 262 and r50k.id_of(b"\xff") is not None
    assert r50k.id_of("no such token") is None
    assert r50k.token_bytes(262) == b" the" and r50k.token_bytes(50256) == END.encode()
    assert r50k.token_bytes(60000) is None and r50k.token_bytes(-1) is None and r50k.token_bytes(2**40) is None
    assert repr(r50k) == "<Tokenizer r50k_base.tiktoken: 50257 ids, pattern gpt2, native>"


@settings(max_examples=60, deadline=None)
@given(text=any_text, data=st.binary(max_size=40))
def test_decoding_gives_the_text_back(text: str, data: bytes) -> None:
    for path in (R50K, CL100K):
        tokenizer = loaded(path)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode_bytes(tokenizer.encode(data)) == data
        assert tokenizer.count(text) == len(tokenizer.encode(text))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(any_text, max_size=8), threads=st.integers(0, 3))
def test_a_batch_is_its_texts(texts: list[str], threads: int) -> None:
    tokenizer = loaded(R50K)
    batch = tokenizer.encode_batch(texts, threads=threads)
    assert batch.offsets.dtype == np.int64 and len(batch.offsets) == len(texts) + 1
    singles = [tokenizer.encode(text).tolist() for text in texts]
    assert [batch.ids[a:b].tolist() for a, b in zip(batch.offsets, batch.offsets[1:], strict=False)] == singles
    assert tokenizer.decode_batch(batch) == texts
    assert tokenizer.count_batch(texts, threads=threads).tolist() == [len(ids) for ids in singles]


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(any_text, max_size=8), begin=st.integers(0, 3), large=st.booleans(), binary=st.booleans())
def test_arrow_texts_are_the_same_texts(texts: list[str], begin: int, large: bool, binary: bool) -> None:
    tokenizer = loaded(R50K)
    kind = (pa.large_binary() if large else pa.binary()) if binary else pa.large_string() if large else pa.string()
    array = pa.array([text.encode() if binary else text for text in texts], kind)[begin:]
    expected = tokenizer.encode_batch(texts[begin:])
    chunked = pa.chunked_array([array[:1], array[1:1], array[1:]], kind)
    for given_texts in (array, chunked):
        found = tokenizer.encode_batch(given_texts)
        assert found.ids.tolist() == expected.ids.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()


def test_arrow_arrays_that_hold_no_texts_are_refused(r50k: ws.Tokenizer) -> None:
    with pytest.raises(ValueError, match="text 1 is null"):
        r50k.encode_batch(pa.array(["a", None]))
    with pytest.raises(TypeError, match=r"pa\.large_string"):
        r50k.encode_batch(pa.array([1]))
    with pytest.raises(TypeError, match="dictionary"):
        r50k.encode_batch(pa.array(["a", "a"]).dictionary_encode())


@pytest.mark.parametrize("bad", ["a text", b"bytes", {"a"}, 3, None, iter(["a"])])
def test_what_is_no_batch_is_refused(r50k: ws.Tokenizer, bad: object) -> None:
    with pytest.raises(TypeError, match="list or tuple"):
        r50k.encode_batch(bad)


def test_bad_texts_are_named(r50k: ws.Tokenizer) -> None:
    with pytest.raises(UnicodeEncodeError) as surrogate:
        r50k.encode_batch(["a", "b\ud800"])
    assert surrogate.value.__notes__ == ["text 1 of the batch"]
    with pytest.raises(UnicodeEncodeError):
        r50k.encode("\udfff")
    with pytest.raises(TypeError, match="not int") as number:
        r50k.encode_batch(["a", 3])
    assert number.value.__notes__ == ["text 1 of the batch"]
    with pytest.raises(TypeError, match="str or bytes"):
        r50k.encode(None)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(text=any_text)
def test_offsets_cut_the_text_into_its_tokens(text: str) -> None:
    tokenizer = loaded(CL100K)
    data = text.encode()
    found = tokenizer.encode_with_offsets(text)
    assert found.ids.tolist() == tokenizer.encode(text).tolist()
    for id, begin, end in zip(found.ids.tolist(), found.begin.tolist(), found.end.tolist(), strict=True):
        assert data[begin:end] == tokenizer.token_bytes(id)
    assert [0, *found.end.tolist()] == [*found.begin.tolist(), len(data)]
    characters = tokenizer.encode_with_offsets(text, unit="characters")
    for begin, end, low, high in zip(found.begin, found.end, characters.begin, characters.end, strict=True):
        # The fewest whole characters that hold the token's bytes.
        assert len(text[:low].encode()) <= begin < len(text[: low + 1].encode())
        assert len(text[: high - 1].encode()) < end <= len(text[:high].encode())


def test_offsets_in_an_unknown_unit_are_refused(r50k: ws.Tokenizer) -> None:
    with pytest.raises(errors.InvalidArgumentError, match='"bytes" or "characters"'):
        r50k.encode_with_offsets("a", unit="words")  # type: ignore[arg-type]


def test_special_tokens_are_text_unless_allowed(cl100k: ws.Tokenizer) -> None:
    text = f"a{END}b<|fim_prefix|>"
    plain = cl100k.encode(text)
    assert not {100257, 100258} & set(plain.tolist())
    assert cl100k.decode(plain) == text
    assert cl100k.encode(text, allowed_special="all").tolist() == [64, 100257, 65, 100258]
    assert cl100k.encode(text, allowed_special={END}).tolist()[:3] == [64, 100257, 65]
    assert 100258 not in cl100k.encode(text, allowed_special={END})
    with pytest.raises(errors.InvalidArgumentError, match="special token"):
        cl100k.encode(text, disallowed_special="all")
    with pytest.raises(errors.InvalidArgumentError, match="fim_prefix"):
        cl100k.encode(text, allowed_special={END}, disallowed_special="all")
    assert cl100k.encode("a", disallowed_special="all").tolist() == [64]
    with pytest.raises(errors.InvalidArgumentError, match="no special token"):
        cl100k.encode(text, allowed_special={"<|none|>"})
    with pytest.raises(TypeError, match='"all"'):
        cl100k.encode(text, allowed_special=END)
    batch = cl100k.encode_batch([text, "x"], allowed_special="all")
    assert batch.offsets.tolist() == [0, 4, 5]
    assert cl100k.count(text, allowed_special="all") == 4
    assert cl100k.count_batch([text, "x"], allowed_special="all").tolist() == [4, 1]


def test_truncation_keeps_the_first_ids(r50k: ws.Tokenizer) -> None:
    text = " ".join(TRAINING_TEXT)
    whole = r50k.encode(text).tolist()
    for most in (0, 1, 7, len(whole), len(whole) + 5):
        assert r50k.encode(text, max_tokens=most).tolist() == whole[:most]
        assert r50k.encode_batch([text, "a"], max_tokens=most).ids.tolist() == whole[:most] + [64][:most]
    with pytest.raises(errors.InvalidArgumentError, match="max_tokens"):
        r50k.encode(text, max_tokens=-1)


@settings(max_examples=60, deadline=None)
@given(data=st.one_of(any_text.map(str.encode), st.binary(max_size=30)), cuts=st.lists(st.integers(1, 4), max_size=40))
def test_streaming_gives_what_decoding_gives(data: bytes, cuts: list[int]) -> None:
    tokenizer = loaded(CL100K)
    ids = tokenizer.encode(data)
    stream = tokenizer.decode_stream()
    parts, at = [], 0
    for cut in cuts:
        parts.append(
            stream.push(ids[at : at + cut]) if cut > 1 else "".join(stream.push(i) for i in ids[at : at + 1].tolist())
        )
        at += cut
    parts.append(stream.push(ids[at:]))
    parts.append(stream.finish())
    assert "".join(parts) == tokenizer.decode(ids) == data.decode(errors="replace")
    assert stream.push(int(tokenizer.encode("x")[0])) == "x", "finish starts anew"


def test_a_character_in_two_tokens_comes_with_the_second(r50k: ws.Tokenizer) -> None:
    ids = r50k.encode("\u2603").tolist()
    assert len(ids) > 1
    stream = r50k.decode_stream()
    assert [stream.push(id) for id in ids] == [""] * (len(ids) - 1) + ["\u2603"]
    with pytest.raises(errors.InvalidArgumentError, match="60000"):
        stream.push(60000)


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], np.zeros((2, 2), np.uint16), ["a"]])
def test_what_are_no_ids_is_refused(r50k: ws.Tokenizer, ids: object) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        r50k.decode(ids)


def test_ids_of_any_integer_type_are_decoded(r50k: ws.Tokenizer) -> None:
    ids = r50k.encode("Hello world")
    for given_ids in (
        ids,
        ids.tolist(),
        ids.astype(np.int64),
        ids.astype(np.uint32),
        ids.repeat(2)[::2],
        tuple(ids.tolist()),
    ):
        assert r50k.decode(given_ids) == "Hello world"
    assert r50k.decode([]) == ""
    with pytest.raises(errors.InvalidArgumentError, match="id 55555 at position 1"):
        r50k.decode([1, 55555])


def test_offsets_that_fit_no_batch_are_refused(r50k: ws.Tokenizer) -> None:
    ids = r50k.encode("Hello world")
    for offsets in ([], [1, 2], [0, 3], [0, 2, 1]):
        with pytest.raises(errors.InvalidArgumentError):
            r50k.decode_batch((ids, np.array(offsets, dtype=np.int64)))


def test_threads_share_a_tokenizer(cl100k: ws.Tokenizer) -> None:
    expected = [cl100k.encode(text).tolist() for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: [cl100k.encode(text).tolist() for text in TEXTS], range(40)):
            assert found == expected
    with pytest.raises(errors.InvalidArgumentError, match="threads"):
        cl100k.encode_batch(TEXTS, threads=-1)


def test_the_gil_is_released(r50k: ws.Tokenizer) -> None:
    """Another Python thread runs while one long text is encoded. Not about time: both wait for each other."""
    started, ran = threading.Event(), threading.Event()

    def other() -> None:
        started.wait(60)
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    text = "ab " * 2_000_000
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that only a release lets the other thread run
    try:
        started.set()
        r50k.count(text)
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_a_list_changed_meanwhile_does_no_harm(r50k: ws.Tokenizer) -> None:
    texts = [f"text {i} of many" for i in range(2000)]
    expected = r50k.encode_batch(list(texts)).ids.tolist()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(r50k.encode_batch, texts)
        found = future.result()
        texts.clear()
    assert found.ids.tolist() == expected


def test_pickling_names_the_file_and_refuses_another(tmp_path: Path) -> None:
    file = tmp_path / "copy.tiktoken"
    file.write_bytes(R50K.read_bytes())
    tokenizer = ws.Tokenizer.from_file(file)
    sent = pickle.dumps(tokenizer)
    assert len(sent) < 500
    assert pickle.loads(sent).encode("a b").tolist() == tokenizer.encode("a b").tolist()
    assert copy.copy(tokenizer).digest == tokenizer.digest
    file.write_bytes(CL100K.read_bytes())
    with pytest.raises(errors.InvalidArgumentError, match="has changed"):
        pickle.loads(sent)


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ws.Tokenizer.from_file(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        ws.Tokenizer.from_file(tmp_path / "none.json", backend="tokenizers")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "nested.json").write_text('{"byte_fallback": ' + "[" * 100_000)
    for name in ("bad.json", "nested.json"):
        with pytest.raises(errors.InvalidArgumentError):
            ws.Tokenizer.from_file(tmp_path / name)
    with pytest.raises(errors.InvalidArgumentError, match="backend"):
        ws.Tokenizer.from_file(R50K, backend="rust")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgumentError, match=r"no tokenizer\.json"):
        ws.Tokenizer.from_file(R50K, backend="tokenizers")


def test_a_unigram_file_goes_through_the_package(tmp_path: Path) -> None:
    path = unigram(tmp_path)
    tokenizer = ws.Tokenizer.from_file(path)
    assert tokenizer.backend == "tokenizers" and "tokenizers" in repr(tokenizer)
    oracle = pytest.importorskip("tokenizers").Tokenizer.from_file(str(path))
    text = "a single man in possession"
    expected = oracle.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text).tolist() == expected.ids
    assert tokenizer.encode(text).dtype == np.uint16
    assert tokenizer.encode(text, add_special_tokens=True).tolist() == oracle.encode(text).ids
    assert tokenizer.encode(text, add_special_tokens=True, max_tokens=4).tolist() == [
        *expected.ids[:3],
        tokenizer.special_token_id("</s>"),
    ]
    assert tokenizer.encode(text.encode(), max_tokens=2).tolist() == expected.ids[:2]
    assert tokenizer.decode(expected.ids) == text
    batch = tokenizer.encode_batch([text, "", text])
    assert batch.offsets.tolist() == [0, len(expected.ids), len(expected.ids), 2 * len(expected.ids)]
    assert tokenizer.decode_batch(batch) == [text, "", text]
    assert tokenizer.encode_batch(pa.array([text])).ids.tolist() == expected.ids
    assert tokenizer.count(text) == len(expected.ids)
    assert tokenizer.count_batch([text, ""]).tolist() == [len(expected.ids), 0]
    assert tokenizer.id_of("</s>") == tokenizer.special_tokens["</s>"]
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(errors.InvalidArgumentError, match="'</s>', which this tokenizer cannot keep apart"):
            encode("a </s>")
    assert tokenizer.special_token_id("</s>") in tokenizer.encode("a </s>", allowed_special="all")
    with pytest.raises(errors.InvalidArgumentError, match="</s>"):
        tokenizer.encode("a </s>", disallowed_special="all")
    with pytest.raises(errors.InvalidArgumentError, match="all special tokens or none"):
        tokenizer.encode("a", allowed_special={"</s>"})
    with pytest.raises(errors.InvalidArgumentError, match="not UTF-8"):
        tokenizer.encode(b"\xff")
    with pytest.raises(errors.InvalidArgumentError, match="id 9999 at position 0"):
        tokenizer.decode([9999])
    spans = tokenizer.encode_with_offsets("\u00e9 man", unit="characters")
    assert spans.end.tolist()[-1] == 5
    assert tokenizer.encode_with_offsets("\u00e9 man").end.tolist()[-1] == 6
    stream = tokenizer.decode_stream()
    assert "".join([*(stream.push(id) for id in expected.ids), stream.finish()]) == text
    assert pickle.loads(pickle.dumps(tokenizer)).encode(text).tolist() == expected.ids


def test_a_job_refuses_a_unigram_file_by_name(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"Metaspace.*through the tokenizers package"):
        ws.Tokenizer.from_file(unigram(tmp_path), backend="native")


def test_the_package_is_loaded_only_where_it_is_needed() -> None:
    program = (
        f"import sys, widestream as ws; ws.Tokenizer.from_file({str(R50K)!r}).encode('a');"
        "print([m for m in ('tokenizers', 'tiktoken', 'pyarrow', 'torch', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]", done.stderr


_LOADED: dict[Path, ws.Tokenizer] = {}


def loaded(path: Path) -> ws.Tokenizer:
    """A tokenizer for tests with examples, which may use no fixture of a narrower scope."""
    if path not in _LOADED:
        _LOADED[path] = ws.Tokenizer.from_file(path)
    return _LOADED[path]
