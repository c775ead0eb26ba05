"""What a run folder tells: read with tolerance, because a report must come out of a run that was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from widestream.errors import InvalidArgumentError, NotFoundError

_LINE_BYTES = 4 << 20
_DOCUMENT_BYTES = 64 << 20
_YAML_BYTES = 1 << 20
_ABSURD = 1e100
MAX_SOURCES = 10_000


@dataclass(slots=True)
class StepMetrics:
    """One step as the training run logged it. What the log lacks is None or empty.

    Attributes:
        loss: next-token loss in nats a token.
        mtp_losses: losses of the further prediction depths, nearest first.
        validation_loss, unigram_cross_entropy: nats a token on held-out documents, only at steps that validated.
        padding_share, wait_share: 0 to 1, of the step's slots and of the step's time.
        tokens_by_source: real tokens of the step over all ranks.
        wanted_by_source: shares that add up to 1.
    """

    step: int
    loss: float | None = None
    mtp_losses: tuple[float | None, ...] = ()
    validation_loss: float | None = None
    unigram_cross_entropy: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    padding_share: float | None = None
    wait_share: float | None = None
    tokens: int = 0
    tokens_by_source: dict[str, int] = field(default_factory=dict)
    wanted_by_source: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class ProvenanceRow:
    """One piece of the last step: where its tokens come from and how its text begins."""

    source: str
    shard: str
    record: str
    start: str
    stop: str
    epoch: str
    microbatch: str
    row: str
    text: str


@dataclass(slots=True)
class RunData:
    """Everything a report is made of. `notes` says in whole sentences what is missing or damaged."""

    folder: Path
    steps: list[StepMetrics] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    provenance: list[ProvenanceRow] = field(default_factory=list)
    provenance_step: int | None = None
    provenance_rank: int | None = None
    piece_lengths: list[int] = field(default_factory=list)
    piece_lengths_of: str = ""
    job_name: str = ""
    job_text: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def summary_number(self, key: str) -> float | None:
        return number(self.summary.get(key))


def number(value: Any) -> float | None:
    """A float that can be drawn, or None: a log may hold NaN, text, or numbers whose sums no float holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if abs(result) < _ABSURD else None


def read_run(folder: Path) -> RunData:
    """Reads a run folder. NotFoundError if it is no folder; InvalidArgumentError if it holds nothing of a run."""
    if not folder.is_dir():
        raise NotFoundError(f"there is no run folder {folder}; give the run_dir of a job that has run")
    known = ("metrics.jsonl", "summary.json", "provenance.json", "job.json", "job.yaml")
    if not any((folder / name).exists() for name in known):
        raise InvalidArgumentError(
            f"{folder} is not the folder of a training run: it has none of {', '.join(known)}; "
            "give the run_dir of a job that `widestream train` has run"
        )
    data = RunData(folder)
    _read_metrics(data)
    summary = _read_object(data, "summary.json", "the run has not ended, or was killed")
    if summary is not None:
        data.summary = summary
    _read_provenance(data)
    _read_job(data)
    _read_versions(data)
    _read_piece_lengths(data)
    return data


def _read_metrics(data: RunData) -> None:
    path = data.folder / "metrics.jsonl"
    if not path.exists():
        data.notes.append("There is no metrics.jsonl: no step has been logged.")
        return
    by_step: dict[int, StepMetrics] = {}
    bad = repeated = 0
    torn = False
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        while line := file.readline(_LINE_BYTES):
            whole = line.endswith(b"\n")
            if not whole and len(line) == _LINE_BYTES:  # longer than any real line: skip to its end
                while (rest := file.readline(_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                bad += 1
                continue
            if not line.strip():
                continue
            metrics = _parse_line(line)
            if metrics is None:
                if not whole or file.tell() >= size_bytes:
                    torn = True
                else:
                    bad += 1
                continue
            if metrics.step in by_step:
                repeated += 1
                del by_step[metrics.step]
            by_step[metrics.step] = metrics
    data.steps = [by_step[step] for step in sorted(by_step)]
    gaps = sum(step.loss is None for step in data.steps)
    if torn:
        data.notes.append("The last line of metrics.jsonl is torn, as a killed process leaves it; it is left out.")
    if bad:
        data.notes.append(f"{bad} line(s) of metrics.jsonl are not a step's metrics; they are left out.")
    if repeated:
        data.notes.append(f"{repeated} step(s) were logged again after a resume; the later line counts.")
    if gaps:
        data.notes.append(f"{gaps} step(s) have no finite loss; the curve has gaps there.")


def _parse_line(line: bytes) -> StepMetrics | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    step = entry.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**53:
        return None
    metrics = StepMetrics(step=step)
    metrics.loss = number(entry.get("loss"))
    deeper = entry.get("mtp_losses")
    if isinstance(deeper, list):
        metrics.mtp_losses = tuple(number(value) for value in deeper[:16])
    validation = entry.get("validation")
    if isinstance(validation, dict):
        metrics.validation_loss = number(validation.get("loss"))
        metrics.unigram_cross_entropy = number(validation.get("unigram_cross_entropy"))
    metrics.learning_rate = number(entry.get("learning_rate"))
    metrics.gradient_norm = number(entry.get("gradient_norm"))
    metrics.tokens_by_source = {
        name: int(count) for name, count in _numbers(entry.get("tokens_by_source")).items() if count >= 0
    }
    metrics.tokens = sum(metrics.tokens_by_source.values())
    slots = number(entry.get("slots"))
    if slots is not None and slots >= max(1, metrics.tokens):
        metrics.padding_share = 1 - metrics.tokens / slots
    seconds, waited = number(entry.get("seconds")), number(entry.get("wait_seconds"))
    if seconds is not None and seconds > 0:
        metrics.tokens_per_second = metrics.tokens / seconds
        if waited is not None:
            metrics.wait_share = min(1.0, max(0.0, waited / seconds))
    weights = {name: value for name, value in _numbers(entry.get("wanted_by_source")).items() if value >= 0}
    total = sum(weights.values())
    if total > 0:
        metrics.wanted_by_source = {name: value / total for name, value in weights.items()}
    return metrics


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > MAX_SOURCES:
        return {}
    found = {str(name): number(entry) for name, entry in value.items()}
    return {name: entry for name, entry in found.items() if entry is not None and entry < 2**63}


def _read_json(data: RunData, name: str, absent: str) -> Any:
    path = data.folder / name
    if not path.exists():
        data.notes.append(f"There is no {name}: {absent}.")
        return None
    size_bytes = path.stat().st_size
    if size_bytes > _DOCUMENT_BYTES:
        data.notes.append(f"{name} has {size_bytes:,} bytes, more than {_DOCUMENT_BYTES:,}; it is left out.")
        return None
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        data.notes.append(f"{name} is not valid JSON ({type(error).__name__}); it is left out.")
        return None


def _read_object(data: RunData, name: str, absent: str) -> dict[str, Any] | None:
    document = _read_json(data, name, absent)
    if document is not None and not isinstance(document, dict):
        data.notes.append(f"{name} is not a JSON object; it is left out.")
        return None
    return document


def read_object_if_there(data: RunData, name: str) -> dict[str, Any] | None:
    """A JSON object of the run folder that not every run has; None, with a note if the file is damaged."""
    return _read_object(data, name, "") if (data.folder / name).exists() else None


def _read_provenance(data: RunData) -> None:
    document = _read_object(data, "provenance.json", "no step has been traced to its records")
    if document is None:
        return
    pieces = document.get("pieces")
    if not isinstance(pieces, list):
        data.notes.append("provenance.json has no list `pieces`; it is left out.")
        return
    data.provenance_step = _whole(document.get("step"))
    data.provenance_rank = _whole(document.get("rank"))
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        words = {
            name: "" if piece.get(name) is None else str(piece[name])[:4096] for name in ProvenanceRow.__annotations__
        }
        data.provenance.append(ProvenanceRow(**words))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_job(data: RunData) -> None:
    job = _read_object(data, "job.json", "the job is not shown")
    if job is not None:
        data.job_name = str(job.get("name", ""))[:200]
        _fill_padding(data, job)
    source = data.folder / "job.yaml"
    if source.exists():
        with source.open("rb") as file:
            raw = file.read(_YAML_BYTES + 1)
        data.job_text = raw[:_YAML_BYTES].decode("utf-8", "replace")
        if len(raw) > _YAML_BYTES:
            data.notes.append("The job is longer than 1 MiB; only its beginning is shown.")
    elif job is not None:
        import yaml

        data.job_text = yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=120)[:_YAML_BYTES]


def _fill_padding(data: RunData, job: dict[str, Any]) -> None:
    """Where the log does not count slots: a step of packed rows has rows x sequence_length of them."""
    batch = job.get("batch")
    if not isinstance(batch, dict) or batch.get("layout", "rows") not in ("rows", "padded"):
        return
    rows, length = _whole(batch.get("rows")), _whole(batch.get("sequence_length"))
    if rows is None or length is None or not 0 < rows * length < 2**53:
        return
    for step in data.steps:
        if step.padding_share is None and 0 < step.tokens <= rows * length:
            step.padding_share = 1 - step.tokens / (rows * length)


def _read_versions(data: RunData) -> None:
    stored = data.summary.get("versions")
    if isinstance(stored, dict):
        data.versions = {str(name)[:100]: str(version)[:200] for name, version in list(stored.items())[:100]}
        return
    import platform
    from importlib import metadata

    data.versions["python"] = platform.python_version()
    for name in ("widestream", "torch", "numpy", "pyarrow"):
        try:
            data.versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if "widestream" not in data.versions:
        from widestream import __version__

        data.versions["widestream"] = __version__
    data.notes.append("The run left no versions; those of the machine that wrote this report are shown.")


def _read_piece_lengths(data: RunData) -> None:
    """All pieces of the run from its journal; those of the last step where there is none."""
    from widestream.inspection.journal import piece_lengths

    try:
        lengths, of = piece_lengths(data.folder)
    except Exception as error:  # a damaged journal or an absent engine must not cost the user the report
        data.notes.append(f"The journal could not be read for the lengths of pieces: {error}")
        lengths, of = [], ""
    if lengths:
        data.piece_lengths, data.piece_lengths_of = lengths, of
        return
    for row in data.provenance:
        try:
            length = int(row.stop) - int(row.start)
        except ValueError:
            continue
        if 0 < length < 2**53:
            data.piece_lengths.append(length)
    data.piece_lengths_of = "the last step"
