"""What a job file alone does not tell: files, folders, sections of the trainer, and the sources themselves."""

from __future__ import annotations

import glob
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from widestream.errors import WidestreamError
from widestream.units import format_bytes

if TYPE_CHECKING:
    from widestream.job.spec import Job


@dataclass(frozen=True)
class Finding:
    """Something to change ("error": the job cannot run) or to look at ("warning")."""

    level: Literal["error", "warning"]
    key: str  # path of the key, "" if it is none
    message: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def check_files(job: Job) -> list[Finding]:
    """Files and folders that the job names, and what the machine has. Opens no source."""
    findings = _check_tokenizer(job) + _check_roots(job) + _check_paths(job) + _check_run_dir(job)
    return findings + _check_weights(job) + _check_machine(job) + _check_training(job)


def check_sources(job: Job) -> tuple[list[Finding], list[dict[str, Any]]]:
    """Opens every source and builds the first batch, without a journal.

    Returns findings, and name, format, shards and records (where metadata tells) of each source.
    """
    try:
        from widestream.loader import DataLoader
        from widestream.loader.engine import core

        core()
    except ImportError as error:
        return [Finding("warning", "", f"the sources were not opened: the engine cannot be loaded ({error})")], []
    looked_at = job.model_copy(deep=True)
    looked_at.run_dir = None
    try:
        with DataLoader(looked_at, rank=0, tensors="numpy") as loader:
            sources = list(loader.sources)
            if next(loader, None) is None:
                return [Finding("error", "sources", "they hold no token: the stream is empty")], sources
            return [], sources
    except WidestreamError as error:
        return [Finding("error", "", str(error))], []


def _check_tokenizer(job: Job) -> list[Finding]:
    file = Path(job.tokenizer.file)
    if not file.is_file():
        return [Finding("error", "tokenizer.file", f"there is no file {file}")]
    if not os.access(file, os.R_OK):
        return [Finding("error", "tokenizer.file", f"{file} cannot be read; change its permissions")]
    return []


def _check_roots(job: Job) -> list[Finding]:
    return [
        Finding("error", f"data_roots[{i}]", f"there is no folder {root}")
        for i, root in enumerate(job.data_roots or [])
        if not Path(root).is_dir()
    ]


def _check_paths(job: Job) -> list[Finding]:
    roots = [Path(root).resolve() for root in job.data_roots or []]
    findings = []
    for i, source in enumerate(job.sources):
        for j, path in enumerate(source.path):
            key = f"sources[{i}].path[{j}]"
            # A file whose name looks like a pattern is itself.
            found: str | None = path if Path(path).exists() else next(glob.iglob(path, recursive=True), None)  # noqa: PTH207
            if found is None:
                what = "nothing matches" if glob.has_magic(path) else "there is no file or folder"
                findings.append(Finding("error", key, f"source {source.name}: {what} {path}"))
            elif not any(Path(found).resolve().is_relative_to(root) for root in roots):
                listed = ", ".join(str(root) for root in roots[:5])
                message = f"source {source.name}: {found} is outside of data_roots ({listed}); add its folder there"
                findings.append(Finding("error", key, message))
            elif not os.access(found, os.R_OK):
                findings.append(Finding("error", key, f"source {source.name}: {found} cannot be read"))
    return findings


def _check_run_dir(job: Job) -> list[Finding]:
    if job.run_dir is None:
        return []
    folder = Path(job.run_dir)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return [Finding("error", "run_dir", f"{folder} is no folder")]
    if not os.access(folder, os.W_OK):
        return [Finding("error", "run_dir", f"{folder} cannot be written; change its permissions, or choose another")]
    return []


def _check_weights(job: Job) -> list[Finding]:
    drawn = {name for stage in job.mixture.stages for name, weight in stage.weights.items() if weight > 0}
    return [
        Finding("warning", f"sources[{i}]", f"source {source.name} has no weight in any stage: it is never drawn")
        for i, source in enumerate(job.sources)
        if source.name not in drawn
    ]


def _check_machine(job: Job) -> list[Finding]:
    findings = []
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if job.limits.host_memory > memory:
        limit = format_bytes(job.limits.host_memory)
        findings.append(Finding("warning", "limits.host_memory", f"{limit} is more than this machine's {memory} bytes"))
    ranks = job.mesh.dp or 1
    if job.batch.step_rows and job.batch.step_rows < ranks:
        message = f"{job.batch.step_rows} rows for {ranks} data-parallel ranks: some get only filler in every step"
        findings.append(Finding("warning", "batch.rows", message))
    return findings


def _check_training(job: Job) -> list[Finding]:
    """The trainer's sections by the trainer's own rules."""
    if job.model is None and job.optimizer is None and job.training is None:
        return []
    from pydantic import ValidationError

    from widestream.train.config import OptimizerConfig, TrainingConfig, TrainModelConfig

    findings = []
    sections = (("model", TrainModelConfig), ("optimizer", OptimizerConfig), ("training", TrainingConfig))
    for name, section in sections:
        try:
            section(**(getattr(job, name) or {}))
        except ValidationError as error:
            for details in error.errors(include_url=False):
                key = ".".join(str(part) for part in (name, *details["loc"]))
                findings.append(Finding("error", key, details["msg"].removeprefix("Value error, ")))
    return findings
