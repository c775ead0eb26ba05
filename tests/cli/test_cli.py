"""The command line: every command starts quickly, and every failure has its exit code and a message without traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from widestream import errors
from widestream.cli.app import run
from widestream.cli.failures import clean, exit_code, message

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = "train lint inspect preview explain state journal fetch generate report bench".split()

JOB = """\
tokenizer: {file: tokenizer.json}
sources: [{name: a, path: data/*.jsonl}]
batch: {sequence_length: 8, rows: 2}
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "tokenizer.json").write_text("{}")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def module(monkeypatch, name: str, **functions):
    """Puts a module of functions in the place of the one that a command calls."""
    fake = types.ModuleType(name)
    for key, value in functions.items():
        setattr(fake, key, value)
    monkeypatch.setitem(sys.modules, name, fake)


def test_help_loads_no_engine_and_names_every_command():
    code = (
        "import sys\nfrom widestream.cli.app import run\nrun(['--help'])\n"
        "print([m for m in ('torch', 'pyarrow', 'numpy', 'pydantic', 'yaml') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.rstrip().endswith("[]")
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", output)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_is_in_the_docs(command, capsys):
    assert run([command, "--help"]) == 0
    assert "Usage: widestream" in capsys.readouterr().out
    assert f"`widestream {command}" in (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["lint"], ["lint", "--nope", "x"], ["train", "x", "--fork"], ["fetch"]]
)
def test_a_wrong_command_line_is_2(arguments):
    assert run(arguments) == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgumentError("x"), 3),
        (errors.NotFoundError("x"), 3),
        (errors.DataCorruptionError("x"), 3),
        (errors.IoError(5, "x"), 4),
        (errors.UnavailableError("x"), 4),
        (errors.ResourceExhaustedError("x"), 4),
        (errors.DeadlineExceededError("x"), 5),
        (errors.CancelledError("x"), 130),
        (errors.InternalError("x"), 1),
        (KeyboardInterrupt(), 130),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 4),
        (PermissionError(13, "denied"), 4),
        (FileExistsError("the run folder has checkpoints"), 3),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_the_exit_code_of_an_exception(error, code, monkeypatch, job, capsys):
    def fail(*args, **kwargs):
        raise error

    assert exit_code(error) == code
    module(monkeypatch, "widestream.train", run=fail)
    assert run(["train", str(job)]) == code
    shown = capsys.readouterr().err
    assert message(error).splitlines()[0] in shown
    assert "Traceback" not in shown
    assert ("bug in Widestream" in shown) == (code == 1)
    assert run(["train", str(job), "--traceback"]) == code
    assert "Traceback" in capsys.readouterr().err
    assert run(["train", str(job), "--json"]) == code
    assert json.loads(capsys.readouterr().err)["exit_code"] == code


def test_train_passes_its_options_and_says_when_it_was_interrupted(monkeypatch, job, capsys):
    calls = []

    def train(job, **options):
        calls.append((job.batch.rows, options))
        return types.SimpleNamespace(step=3, interrupted=True, checkpoint_step=3, summary=None)

    module(monkeypatch, "widestream.train", run=train)
    assert run(["train", str(job), "--resume", "--fork", "--set", "batch.rows=4", "--json"]) == 130
    assert calls == [
        (4, {"resume": True, "fork": True, "mock_data": False, "overrides": ["batch.rows=4"], "job_file": job})
    ]
    assert json.loads(capsys.readouterr().out)["checkpoint_step"] == 3


def test_lint_names_what_is_wrong(job, capsys):
    assert run(["lint", str(job), "--no-open"]) == 0
    assert "ok" in capsys.readouterr().out
    assert run(["lint", str(job), "--no-open", "--set", "sources.a.path=none/*.jsonl", "--json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["key"] == "sources[0].path[0]"
    assert "nothing matches" in finding["message"]
    assert run(["lint", str(job), "--set", "batch.row=4"]) == 3
    assert 'did you mean "rows"?' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "key", "part", "level"),
    [
        ("tokenizer.file=none.json", "tokenizer.file", "there is no file", "error"),
        ("data_roots=[none]", "data_roots[0]", "there is no folder", "error"),
        ("sources.a.path=/etc/hostname", "sources[0].path[0]", "outside of data_roots", "error"),
        ("run_dir=job.yaml/run", "run_dir", "is no folder", "error"),
        ("mesh.dp=3", "batch.rows", "only filler", "warning"),
        ("limits.host_memory=1000TiB", "limits.host_memory", "more than this machine", "warning"),
        ("training.stepz=5", "training", "steps", "error"),
    ],
)
def test_lint_looks_at_files_and_sections(job, capsys, override, key, part, level):
    expected = 3 if level == "error" else 0
    assert run(["lint", str(job), "--no-open", "--json", "--set", override]) == expected
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert any(f["key"] == key and part in f["message"] and f["level"] == level for f in findings), findings


def test_lint_prints_the_resolved_job(job, capsys):
    assert run(["lint", str(job), "--resolved"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"]["rows"] == 2


def test_lint_opens_the_sources(job, capsys):
    pytest.importorskip("widestream._core", reason="the extension is not built")
    assert run(["lint", str(job)]) == 3  # {} is no tokenizer
    assert "tokenizer" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "state", "journal", "report"])
def test_a_run_that_is_not_there_is_3(command, tmp_path, capsys):
    step = ["--step", "0"] if command == "explain" else []
    if command in ("explain", "journal"):
        pytest.importorskip("widestream._core", reason="the extension is not built")
    assert run([command, str(tmp_path / "none"), *step]) == 3
    assert "none" in capsys.readouterr().err


def test_a_torn_journal_is_3(monkeypatch, tmp_path, capsys):
    from widestream import inspection

    monkeypatch.setattr(inspection, "read_journal", lambda run: {"whole": False, "tear": {"offset_bytes": 3}})
    monkeypatch.setattr(inspection, "repair_journal", lambda run: {"whole": True, "cut": {"lost_bytes": 3}})
    assert run(["journal", str(tmp_path), "--json"]) == 3
    assert not json.loads(capsys.readouterr().out)["whole"]
    assert run(["journal", str(tmp_path), "--repair", "--json"]) == 0


def test_a_pipe_that_the_reader_closes_is_quiet():
    command = f"{sys.executable} -m widestream.cli fetch --list --json | head -n 1"
    result = subprocess.run(
        ["bash", "-c", command + "; echo ${PIPESTATUS[0]}"], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] in ("0", "141")  # 0: all was written before the pipe closed


def test_bench_and_fetch_list_what_there_is(capsys):
    assert run(["bench", "--list", "--json"]) == 0
    assert "text" in json.loads(capsys.readouterr().out)
    assert run(["bench", "nonsense"]) == 3
    assert run(["fetch", "--list", "--json"]) == 0
    assert all("licence" in json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert run(["fetch", "nonsense"]) == 4


def test_data_cannot_steer_the_terminal():
    assert clean("a\x1b[2Jb\x9bc\n\t") == "a\ufffd[2Jb\ufffdc\n\t"
