"""The job file: what a user writes is understood, or the message says what to write instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widestream as ws
from widestream.errors import InvalidArgumentError, NotFoundError, WidestreamError
from widestream.job.read import parse_yaml
from widestream.job.schema import schema_text

ROOT = Path(__file__).resolve().parents[2]

JOB = """\
seed: 17
run_dir: runs/pretrain
tokenizer: {file: tokenizers/r50k_base.tiktoken, pattern: gpt2, append: [<|endoftext|>]}
sources:
  - {name: novels, path: data/austen/*.parquet, text: text}
  - name: code
    path: [data/go/*.jsonl.zst, /elsewhere/x.jsonl]
    max_epochs: 2
    on_exhausted: stop
    shuffle: {records: 10_000, bytes: 8MiB}
mixture:
  unit: tokens
  stages:
    - {until: 20M tokens, weights: {novels: 0.6, code: 40%}}
    - {weights: {novels: 0.2, code: 0.8}, ramp: 5M tokens}
batch:
  sequence_length: 1024
  rows: 64
  microbatch_tokens: 16_384
validation: {fraction: 0.5%, by: hash}
data_roots: [data, /elsewhere]
strategy:
  [mix, {pack: best_fit}, {cost: transformer}, {distribute: dp}, {balance: none}, {broadcast_at: tp}, plan]
mesh: {dp: 2, cp: 1, tp: 1, pp: 1}
errors: {bad_record: error, record_bytes: 16MiB, budget: 0.1%}
limits: {host_memory: 1GiB, threads: auto, read_deadline: 500ms}
runtime: embedded
training: {steps: 500, rate: 1e-3}
"""


def load(folder: Path, text: str = JOB, overrides: list[str] | None = None) -> ws.Job:
    path = folder / "pretrain.yaml"
    path.write_text(text)
    return ws.Job.load(path, overrides or [])


def direct(**changes: Any) -> dict[str, Any]:
    return {
        "tokenizer": {"file": "t.json"},
        "sources": [{"name": "a", "path": "a/*.jsonl"}, {"name": "b", "path": "b.parquet"}],
        "batch": {"sequence_length": 8, "rows": 2},
        **changes,
    }


def test_every_key_of_a_file_is_resolved(tmp_path):
    assert load(tmp_path).resolve() == {
        "name": "pretrain",
        "seed": 17,
        "run_dir": f"{tmp_path}/runs/pretrain",
        "data_roots": [f"{tmp_path}/data", "/elsewhere"],
        "tokenizer": {
            "file": f"{tmp_path}/tokenizers/r50k_base.tiktoken",
            "pattern": "gpt2",
            "append": ["<|endoftext|>"],
        },
        "sources": [
            {
                "name": "novels",
                "paths": [f"{tmp_path}/data/austen/*.parquet"],
                "format": "",
                "text": "text",
                "max_epochs": None,
                "on_exhausted": "renormalise",
                "shuffle": {"mode": "blocks", "records": 1000, "bytes": 1048576},
            },
            {
                "name": "code",
                "paths": [f"{tmp_path}/data/go/*.jsonl.zst", "/elsewhere/x.jsonl"],
                "format": "",
                "text": "text",
                "max_epochs": 2,
                "on_exhausted": "stop",
                "shuffle": {"mode": "blocks", "records": 10000, "bytes": 8388608},
            },
        ],
        "mixture": {
            "unit": "tokens",
            "stages": [
                {"until": 20_000_000, "weights": {"novels": 0.6, "code": 0.4}, "ramp": 0},
                {"until": None, "weights": {"novels": 0.2, "code": 0.8}, "ramp": 5_000_000},
            ],
        },
        "batch": {
            "layout": "rows",
            "sequence_length": 1024,
            "rows": 64,
            "tokens": 0,
            "max_piece_tokens": 0,
            "microbatch_tokens": 16384,
            "overflow": "split",
            "last_step": "fill",
            "cross_document_attention": False,
            "pad_documents_to": 0,
            "pad_microbatch_to": 0,
            "microbatch_pieces": 0,
            "fixed_shapes": False,
        },
        "validation_fraction": 0.005,
        "lookahead_steps": 4,
        "balance": "none",
        "balance_group_size": 0,
        "cost": {
            "linear_tokens": 49152,
            "constant_tokens": 0,
            "window_tokens": 0,
            "window_layers": 0,
            "layers": 1,
        },
        "mesh": {
            "dp": 2,
            "cp": 1,
            "tp": 1,
            "pp": 1,
            "vpp": 1,
            "ep": 1,
            "dp_replicate": 1,
            "order": ["pp", "dp", "cp", "tp"],
            "sequence_parallel": False,
            "cp_split": None,
            "every_stage": [],
            "broadcast_at": ["tp"],
        },
        "errors": {"skip_bad_records": False, "record_bytes": 16777216, "budget": 0.001},
        "limits": {"host_memory_bytes": 1073741824, "threads": 0, "read_deadline_seconds": 0.5},
    }


def test_the_engine_reads_what_python_resolves(tmp_path):
    core = pytest.importorskip("widestream._core", reason="the extension is not built")
    job = load(tmp_path)
    assert json.loads(core.check_job(job.to_json())) == job.resolve()


@pytest.mark.parametrize(
    ("strategy", "axes"),
    [
        (None, []),
        (["mix", {"pack": "best_fit"}, {"cost": "transformer"}, {"distribute": "dp"}, {"balance": "lpt"}, "plan"], []),
        ([{"broadcast_at": "pp"}], ["pp"]),
        ([{"balance": "none"}, {"broadcast_at": ["tp", "cp"]}], ["tp", "cp"]),
    ],
)
def test_broadcast_axes_come_from_the_strategy(tmp_path, strategy, axes):
    job = load(tmp_path)
    job.strategy = strategy
    assert job.broadcast_at == job.resolve()["mesh"]["broadcast_at"] == axes


@pytest.mark.parametrize(
    ("strategy", "balance", "group_size", "cost"),
    [
        ([{"balance": "multifit"}], "multifit", 0, {}),
        ([{"balance": {"group_size": 2}}], "lpt", 2, {}),
        ([{"cost": {"linear_tokens": 30_000}}], "lpt", 0, {"linear_tokens": 30_000}),
        (
            [
                "mix",
                {"pack": "best_fit"},
                {"cost": {"constant_tokens": 9}},
                {"distribute": "dp"},
                {"balance": {"method": "none"}},
                "plan",
            ],
            "none",
            0,
            {"constant_tokens": 9},
        ),
    ],
)
def test_balance_and_cost_come_from_the_strategy(tmp_path, strategy, balance, group_size, cost):
    job = load(tmp_path)
    before = job.resolve()["cost"]
    job.strategy = strategy
    resolved = job.resolve()
    assert (resolved["balance"], resolved["balance_group_size"]) == (balance, group_size)
    assert resolved["cost"] == before | cost


def test_a_models_shape_becomes_its_cost(tmp_path):
    pytest.importorskip("widestream._core", reason="the extension is not built")
    job = load(tmp_path)
    shape = {"layers": 32, "hidden_size": 4096, "heads": 32, "kv_heads": 8, "intermediate_size": 14336, "gated": True}
    job.strategy = [{"cost": {"transformer": shape}}]
    assert job.resolve()["cost"]["linear_tokens"] == 53_248


def test_replicas_of_hsdp(tmp_path):
    job = load(tmp_path, overrides=["mesh={dp_replicate: 2, dp_shard: 4}"])
    assert (job.mesh.dp, job.resolve()["mesh"]["dp"], job.resolve()["mesh"]["dp_replicate"]) == (8, 8, 2)
    job = load(tmp_path, overrides=["mesh={dp: 6, dp_shard: 2}"])
    assert job.resolve()["mesh"]["dp_replicate"] == 3


def test_what_training_reads_is_kept_as_it_is(tmp_path):
    job = load(tmp_path)
    assert job.training == {"steps": 500, "rate": 0.001}
    assert job.model is None


def test_a_direct_job_takes_the_same_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ws.Job(**direct())
    resolved = job.resolve()
    assert resolved["data_roots"] == [str(tmp_path)]
    assert resolved["sources"][0]["paths"] == [f"{tmp_path}/a/*.jsonl"]
    assert resolved["mixture"] == {
        "unit": "tokens",
        "stages": [{"until": None, "weights": {"a": 1.0, "b": 1.0}, "ramp": 0}],
    }


def test_a_dumped_job_reads_back(tmp_path):
    job = load(tmp_path)
    dumped = json.loads(json.dumps(job.model_dump(mode="json", exclude_none=True)))
    assert ws.Job(**dumped).to_json() == job.to_json()
    assert ws.Job(**job.model_dump()).to_json() == job.to_json()


@pytest.mark.parametrize(
    ("mixture", "weights"),
    [
        ({"weights": {"a": 3, "b": 1}}, {"a": 3.0, "b": 1.0}),
        ({"unit": "samples"}, {"a": 1.0, "b": 1.0}),
        ({"stages": [{"weights": {"b": 1}}]}, {"b": 1.0}),
    ],
)
def test_short_forms_of_a_mixture(mixture, weights):
    job = ws.Job(**direct(mixture=mixture))
    assert [stage.weights for stage in job.mixture.stages] == [weights]
    assert ws.Job(**job.model_dump(exclude_none=True)).to_json() == job.to_json()


@pytest.mark.parametrize(
    ("shuffle", "mode"),
    [(False, "off"), ("off", "off"), (True, "blocks"), ({"records": 5}, "blocks"), ({"mode": "off"}, "off")],
)
def test_forms_of_a_shuffle(shuffle, mode):
    job = ws.Job(**direct(sources=[{"name": "a", "path": "a", "shuffle": shuffle}]))
    assert job.resolve()["sources"][0]["shuffle"]["mode"] == mode


def test_tokens_of_packed_rows_become_rows():
    job = ws.Job(**direct(batch={"sequence_length": 1024, "tokens": "64k"} | {"tokens": 65_536}))
    assert job.resolve()["batch"] | {"rows": 64, "tokens": 0} == job.resolve()["batch"]


def test_thd_keeps_tokens():
    batch = ws.Job(**direct(batch={"layout": "thd", "sequence_length": 1024, "tokens": "65_536 tokens"})).resolve()[
        "batch"
    ]
    assert (batch["rows"], batch["tokens"], batch["max_piece_tokens"]) == (0, 65_536, 0)


def test_overrides_reach_every_depth(tmp_path):
    job = load(
        tmp_path,
        overrides=[
            "batch.rows=8",
            "sources.code.text=content",
            "sources[0].max_epochs=3",
            "mixture.stages.1.ramp=1M tokens",
            "model.layers=4",
            "name=other",
        ],
    )
    resolved = job.resolve()
    assert resolved["batch"]["rows"] == 8
    assert [source["text"] for source in resolved["sources"]] == ["text", "content"]
    assert resolved["sources"][0]["max_epochs"] == 3
    assert resolved["mixture"]["stages"][1]["ramp"] == 1_000_000
    assert job.model == {"layers": 4}
    assert job.name == "other"


def test_variables_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", "/elsewhere")
    monkeypatch.setenv("STEPS", "7")
    text = JOB.replace("/elsewhere/x.jsonl", "'${WHERE}/y.jsonl'").replace("steps: 500", "steps: '${STEPS}'")
    text = text.replace("run_dir: runs/pretrain", "run_dir: ${NOWHERE:-runs}/$${x}")
    job = load(tmp_path, text)
    assert job.sources[1].path[1] == "/elsewhere/y.jsonl"
    assert job.training is not None and job.training["steps"] == 7
    assert job.run_dir == f"{tmp_path}/runs/${{x}}"
    monkeypatch.delenv("WHERE")
    with pytest.raises(
        InvalidArgumentError, match=r"sources\[1\].path\[1\]: the environment variable WHERE is not set"
    ):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("sede=1", ["sede: unknown key", 'did you mean "seed"?']),
        ("batch.row=1", ["batch.row", 'did you mean "rows"?']),
        ("batch.seq_len=1", ['did you mean "sequence_length"?']),
        ("sources.code.maxEpochs=1", ["sources[1].maxEpochs", 'did you mean "max_epochs"?']),
        ("sources.code.shuffle.record=1", ["sources[1].shuffle.record", 'did you mean "records"?']),
        ("limits.zzzz=1", ["limits.zzzz", "valid: host_memory, threads, read_deadline"]),
        ("batch.layout=row", ["batch.layout", "found 'row'", 'did you mean "rows"?']),
        ("batch.rows=x", ["batch.rows", "found 'x'", "write e.g."]),
        ("batch.rows=0", ["batch.rows", "found 0, expected 1 to"]),
        ("batch=5", ["batch: found 5, expected keys and values"]),
        ("batch.cross_document_attention=5", ["expected true or false"]),
        ("sources=5", ["sources: found 5, expected a list"]),
        ("sources=[]", ["sources"]),
        ("sources.code.name=novels", ["sources[1].name", "found 'novels' again, as sources[0]"]),
        ("sources.code.name=a b", ["sources[1].name", "letters"]),
        ("sources.code.path=s3://x/y", ["sources[1].path", "local files only"]),
        ("sources.code.path=[]", ["sources[1].path"]),
        ("sources.code.shuffle=full", ["sources[1].shuffle", "random access", "row group"]),
        ("sources.code.shuffle={records: 5 tokens}", ["sources[1].shuffle.records", "not in records"]),
        ("sources.code.format=bin", ["sources[1].format", "parquet"]),
        ("mixture.stages.0.weights.nov=1", ["mixture.stages[0].weights", "no source 'nov'", '"novels"']),
        ("mixture.stages.0.weights.novels=-1", ["mixture.stages[0].weights.novels", "not negative"]),
        ("mixture.stages.0.weights.novels=.nan", ["mixture.stages[0].weights.novels", "nan"]),
        ("mixture.stages.0.weights={novels: 0}", ["mixture.stages[0].weights", "all are 0"]),
        ("mixture.stages.0.until=20M samples", ["mixture.stages[0].until", "unit of the mixture is tokens"]),
        ("mixture.stages.0.until=null", ["mixture.stages[0].until", "only the last stage"]),
        ("mixture.stages.1.until=20M", ["mixture.stages[1].until", "more than 20000000"]),
        ("mixture.stages.0.ramp=1", ["mixture.stages[0].ramp", "first stage"]),
        ("mixture.stages.1={weights: {code: 1}, until: 21M, ramp: 2M}", ["mixture.stages[1].ramp", "longer than"]),
        ("mixture.weights={code: 1}", ["mixture.weights", "beside stages"]),
        ("batch.tokens=64k", ["batch.tokens", "beside rows"]),
        ("batch={sequence_length: 100, tokens: 150}", ["batch.tokens", "no multiple", "write e.g. 100"]),
        ("batch={sequence_length: 100}", ["batch.rows", "missing"]),
        ("batch={rows: 5}", ["batch.sequence_length", "missing; write e.g. sequence_length: 1024"]),
        ("batch.layout=thd", ["batch.rows", "layout thd has no rows"]),
        ("batch={layout: thd, sequence_length: 100}", ["batch.tokens", "missing"]),
        ("batch={layout: thd, sequence_length: 100, tokens: 50}", ["batch.tokens", "less than one piece"]),
        ("batch={layout: padded, sequence_length: 100, tokens: 500}", ["batch.tokens", "sized by rows"]),
        ("batch.max_piece_tokens=10", ["batch.max_piece_tokens", "remove it"]),
        ("batch.microbatch_tokens=1000", ["batch.microbatch_tokens", "1024"]),
        ("batch.rows=10M", ["batch.sequence_length", "a step of"]),
        ("batch.rows=1M", ["limits.host_memory", "two steps"]),
        ("validation.fraction=100%", ["validation.fraction", "nothing to train on"]),
        ("validation.fraction=2", ["validation.fraction", "more than the whole"]),
        ("mesh.cp=3", ["mesh.cp", "found 3", "no multiple of 2 * cp"]),
        ("mesh={dp: 65536, tp: 65536}", ["mesh", "dp * cp * tp * pp"]),
        ("mesh={cp: 2, cp_split: zigzag_document}", ["mesh.cp_split", "write zigzag_row"]),
        ("mesh={tp: 3, sequence_parallel: true}", ["mesh.tp", "no multiple of tp"]),
        ("mesh={order: [pp, dp, cp, cp]}", ["mesh.order", "each of pp, dp, cp and tp once"]),
        ("mesh={dp: 6, dp_replicate: 4}", ["mesh.dp_replicate", "does not divide dp 6"]),
        ("mesh={dp: 6, dp_replicate: 2, dp_shard: 4}", ["mesh.dp", "dp_replicate * dp_shard is 8"]),
        ("mesh={dp: 4, ep: 3}", ["mesh.ep", "does not divide"]),
        ("mesh.every_stage=[token]", ["mesh.every_stage", 'did you mean "tokens"']),
        ("batch.pad_documents_to=8", ["batch.pad_documents_to", "remove it"]),
        ("batch={layout: thd, sequence_length: 9, tokens: 90, fixed_shapes: true}", ["batch.fixed_shapes", "missing"]),
        ("strategy=[{broadcast_at: dp}]", ["strategy", "supports only"]),
        ("errors.record_bytes=1GiB", []),
        ("errors.record_bytes=2GiB", ["errors.record_bytes"]),
        ("limits.host_memory=15MiB", ["limits.host_memory"]),
        ("limits.read_deadline=0", ["limits.read_deadline"]),
        ("strategy=[mix]", ["strategy", "supports only"]),
        ("strategy=[{balance: lpt}, {cost: transformer}]", ["strategy", "supports only"]),
        ("strategy=[{balance: magic}]", ["strategy", "magic", "lpt, multifit"]),
        ("strategy=[{balance: {method: lpt, group_size: -1}}]", ["strategy", "group_size"]),
        ("strategy=[{cost: {linear_tokens: 1.5}}]", ["strategy", "linear_tokens 1.5"]),
        ("strategy=[{cost: {words: 2}}]", ["strategy", "words"]),
        ("runtime=ray", ["runtime: found 'ray'", "embedded only"]),
        ("tokenizer=null", ["tokenizer"]),
        ("tokenizer={}", ["tokenizer.file", "missing"]),
        ("seed=18446744073709551616", ["seed"]),
        ("nonsense", ["expected key=value"]),
        ("sources.none.text=5", ["no item 'none'", "novels, code"]),
        ("seed.x=5", ["seed is a plain value"]),
        ("seed=[1", ["no valid YAML"]),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(tmp_path, override, parts):
    if not parts:
        load(tmp_path, overrides=[override])
        return
    with pytest.raises(InvalidArgumentError) as error:
        load(tmp_path, overrides=[override])
    for part in parts:
        assert part in str(error.value)
    assert "pydantic" not in str(error.value) and "Value error" not in str(error.value)


def test_all_problems_are_named_at_once_with_their_lines(tmp_path):
    text = JOB.replace("sequence_length: 1024", "sequence_lenght: 1024").replace("10_000", "10 apples")
    with pytest.raises(InvalidArgumentError) as error:
        load(tmp_path, text)
    assert "3 problems" in str(error.value)
    assert "sources[1].shuffle.records (line 10)" in str(error.value)
    assert 'batch.sequence_lenght (line 17): unknown key; did you mean "sequence_length"?' in str(error.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "expected keys and values"),
        ("- 5", "expected keys and values"),
        ("a: [", "no valid YAML"),
        ("seed: 1\nseed: 2", "line 2: the key seed occurs twice"),
        ("[" * 100_000, "nest"),
        ("a: &a [*a]", "contains itself"),
        ("? [1]\n: 2", "a key that is no plain text"),
        ("a: !!python/object:os.system {}", "no valid YAML"),
        ("seed: " + "9" * 10_000, "10000 digits"),
        ("a: \x00", "no valid YAML"),
        ("--- 1\n--- 2", "no valid YAML"),
    ],
)
def test_bad_yaml_is_an_error(tmp_path, text, part):
    with pytest.raises(InvalidArgumentError) as error:
        load(tmp_path, text)
    assert part in str(error.value)


def test_aliases_cannot_grow_without_bound(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InvalidArgumentError, match="more than 500000 values"):
        load(tmp_path, "\n".join(lines))


def test_anchors_work(tmp_path):
    job = load(
        tmp_path,
        JOB.replace("weights: {novels: 0.2, code: 0.8}", "weights: *w").replace(
            "weights: {novels: 0.6", "weights: &w {novels: 0.6"
        ),
    )
    assert job.mixture.stages[1].weights == {"novels": 0.6, "code": 0.4}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"none\.yaml"):
        ws.Job.load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(InvalidArgumentError, match="byte 6"):
        ws.Job.load(tmp_path / "latin.yaml")


def test_an_assignment_is_checked_like_the_file(tmp_path):
    job = load(tmp_path)
    job.batch.rows = "32"  # type: ignore[assignment]
    job.sources[0].max_epochs = 4
    assert job.resolve()["batch"]["rows"] == 32
    assert job.resolve()["sources"][0]["max_epochs"] == 4
    with pytest.raises(InvalidArgumentError, match="max_epochs"):
        job.sources[0].max_epochs = 0
    job.sources[0].name = "code"
    with pytest.raises(InvalidArgumentError, match="again"):
        job.resolve()


def test_ten_thousand_sources(tmp_path):
    sources = [{"name": f"s{i}", "path": f"d/{i}.jsonl"} for i in range(10_000)]
    assert len(ws.Job(**direct(sources=sources)).resolve()["mixture"]["stages"][0]["weights"]) == 10_000
    with pytest.raises(InvalidArgumentError, match="sources"):
        ws.Job(**direct(sources=[*sources, {"name": "last", "path": "d"}]))


def test_the_committed_schema_is_up_to_date():
    committed = (ROOT / "docs" / "job.schema.json").read_text()
    assert committed == schema_text(), "run: python -m widestream.job.schema docs/job.schema.json"
    assert ws.Job.json_schema()["properties"]["sources"]["maxItems"] == 10_000


def test_every_key_is_in_the_docs():
    text = (ROOT / "docs" / "job.md").read_text()
    for section in ws.Job.json_schema()["$defs"].values():
        keys = (section.get("properties") or section["anyOf"][1]["properties"]).keys()
        assert not [key for key in keys if f"`{key}`" not in text and f".{key}`" not in text]


def test_the_quickstart_job_is_valid():
    job = ws.Job.load(ROOT / "examples" / "quickstart" / "job.yaml")
    assert len(job.sources) >= 6


def test_importing_widestream_loads_nothing_heavy():
    code = "import sys, widestream; print([m for m in ('torch','ray','pyarrow','transformers','pydantic','numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"
    with pytest.raises(AttributeError):
        _ = ws.no_such_name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*ws.Job.model_fields, "other"]), json_values)
def test_any_value_of_any_key_is_a_job_or_an_error(key, value):
    try:
        job = ws.Job(**direct(**{key: value}))
    except WidestreamError as error:
        assert len(str(error)) < 20_000
    else:
        json.loads(job.to_json())


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:{}[],&*-? \n'\"|>#!%0.1e_\t", max_size=60))
def test_any_text_is_yaml_or_an_error(text):
    try:
        parse_yaml(text, "text")
    except InvalidArgumentError as error:
        assert str(error).startswith("text")
