"""``widestream train``: joins a job's stream and a model, and leaves a run folder with a report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from widestream.errors import InvalidArgumentError
from widestream.inspection import write_provenance
from widestream.job import Job
from widestream.loader import DataLoader, Microbatch
from widestream.loader.mock import MockLoader, is_mock
from widestream.report import write_report
from widestream.train.checkpoint import CheckpointError, checkpoint_path, load_latest
from widestream.train.config import OptimizerConfig, StrictModel, TrainingConfig, TrainModelConfig
from widestream.train.display import Display, SilentDisplay, make_display
from widestream.train.generation import generate, load_model
from widestream.train.ranks import Ranks, device_of, environment_ranks, join_ranks
from widestream.train.trainer import Trainer, TrainResult, write_summary

_SAMPLE_TOKENS = 60
Section = TypeVar("Section", bound=StrictModel)


class _LastBatch:
    """The loader, remembering the last batch that it gave: the report shows where its tokens come from."""

    def __init__(self, loader: DataLoader | MockLoader) -> None:
        self.loader = loader
        self.last: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.last = batch
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def commit(self) -> None:
        self.loader.commit()

    def validation_batches(self) -> list[Microbatch]:
        return self.loader.validation_batches()


def run(
    job: Job,
    *,
    resume: bool = False,
    fork: bool = False,
    mock_data: bool = False,
    overrides: Sequence[str] = (),
    job_file: Path | None = None,
) -> TrainResult:
    """Trains the job's model on its stream, and writes summary.json and report.html into its run folder.

    Under torchrun every rank calls it; rank 0 alone prints and writes.

    Args:
        job: with ``run_dir`` and ``training``; ``model`` and ``optimizer`` default.
        resume: go on from the newest checkpoint of the run folder; without one, from the beginning.
        fork: with ``resume``: accept changed settings, drop later decisions of the journal.
        mock_data: train on the job's first batch, over and over, to measure the trainer without the data plane. Not with
            ``resume``; such a run cannot be resumed either.
        overrides: the ``--set`` options, repeated in the messages that say what to type.
        job_file: where the job came from, for the same messages.

    Raises:
        InvalidArgumentError: the job lacks a part, or a part is wrong.
        Other errors of widestream.errors: as the loader and the checkpoints raise them.
    """
    if job.run_dir is None:
        raise InvalidArgumentError("the job has no `run_dir`; training keeps its checkpoints and journal there")
    if mock_data and resume:
        raise InvalidArgumentError("a run on mock data is a measurement from its first step on; leave --resume out")
    if job.training is None:
        raise InvalidArgumentError("the job has no `training` section; give at least training: {steps: 500}")
    model = _section("model", TrainModelConfig, job.model or {})
    optimizer = _section("optimizer", OptimizerConfig, job.optimizer or {})
    training = _section("training", TrainingConfig, job.training)
    if job.mesh.cp * job.mesh.tp * job.mesh.pp > 1:
        raise InvalidArgumentError(
            "the job's `mesh` has cp, tp or pp above 1; `widestream train` is data-parallel: set mesh.dp alone"
        )
    ranks = environment_ranks()
    if job.mesh.dp not in (None, ranks.world):
        raise InvalidArgumentError(
            f"the job's mesh.dp is {job.mesh.dp}, but {ranks.world} rank(s) were started; start mesh.dp ranks with "
            "torchrun --nproc-per-node, or leave mesh.dp out: then it is the number of ranks"
        )
    command = " ".join(
        ["widestream train", shlex.quote(str(job_file or "JOB")), "--resume"]
        + [f"--set {shlex.quote(override)}" for override in overrides]
    )
    with join_ranks(device_of(training.device, ranks)) as ranks:
        return _Run(job, model, optimizer, training, ranks, command, mock_data).train(resume, fork)


@dataclasses.dataclass(frozen=True)
class _Run:
    """One rank's part of `run`."""

    job: Job
    model: TrainModelConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    ranks: Ranks
    resume_command: str
    mock_data: bool

    def train(self, resume: bool, fork: bool) -> TrainResult:
        job, main = self.job, self.ranks.main
        assert job.run_dir is not None
        run_dir = Path(job.run_dir)
        display: Display = SilentDisplay()
        state = None
        if main:
            run_dir.mkdir(parents=True, exist_ok=True)
            display = make_display(log_every=self.training.log_every)
            checkpoint = load_latest(run_dir / "checkpoints", display.say) if resume else None
            state = checkpoint.loader if checkpoint else None
            if state is not None and is_mock(state):
                raise CheckpointError(
                    f"the checkpoints in {run_dir} come from a run on mock data (--mock-data): it measured, and learned a "
                    "single batch. Set another run_dir, or remove them"
                )
            if self.mock_data:
                display.say("mock data: every step is the job's first batch; nothing is learned, no journal is kept")
        # Every rank opens the state that rank 0 read: none can begin elsewhere because it sees another disk.
        state = self.ranks.share_json(state)
        with self._loader(state, fork) as loader:
            if main:
                _write_json(run_dir / "job.json", job.model_dump(mode="json", exclude_none=True))
            recording = _LastBatch(loader)
            trainer = self._trainer(run_dir, recording, resume, display)
            result = trainer.fit()
            if result.summary is None or not main:
                return result
            if recording.last is not None and isinstance(loader, DataLoader):
                write_provenance(recording.last, loader, run_dir)
            summary = {**result.summary, "report": str(run_dir / "report.html"), "versions": _versions()}
            write_summary(run_dir, summary)
            write_report(run_dir)
            _print_end(job, loader, summary, run_dir)
            return dataclasses.replace(result, summary=summary)

    def _loader(self, state: dict[str, Any] | None, fork: bool) -> DataLoader | MockLoader:
        if self.mock_data:
            return MockLoader(self.job)
        return DataLoader(self.job, state=state, fork=fork)

    def _trainer(self, run_dir: Path, recording: _LastBatch, resume: bool, display: Display) -> Trainer:
        job, loader = self.job, recording.loader
        return Trainer(
            run_dir,
            recording,
            vocabulary_size=loader.vocabulary_size,
            model=self.model,
            optimizer=self.optimizer,
            training=self.training,
            seed=job.seed,
            resume=resume,
            resume_command=self.resume_command,
            display=display,
            extra_meta={
                "name": job.name,
                "tokenizer": job.tokenizer.model_dump(mode="json") if job.tokenizer else None,
                "stream_hash": loader.stream_hash,
            },
            ranks=self.ranks,
            mock_data=self.mock_data,
        )


def _section(name: str, kind: type[Section], values: dict[str, Any]) -> Section:
    try:
        return kind(**values)
    except (ValidationError, ValueError) as error:
        problems = (
            "; ".join(f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors())
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise InvalidArgumentError(f"job: {name}: {problems}") from None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("widestream", "torch", "numpy", "pyarrow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _print_end(job: Job, loader: DataLoader | MockLoader, summary: dict[str, Any], run_dir: Path) -> None:
    """The summary, a sample of text, and what to type next. The command line is the one place that prints."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    table = Table(title=f"{job.name}: {summary['steps']} steps", show_header=False)
    for label, value in _summary_rows(summary):
        table.add_row(label, value)
    console.print(table)
    if isinstance(loader, MockLoader):
        console.print("On mock data: the speed is the trainer's ceiling, everything else means nothing.", style="bold")
        return
    console.print("A sample of the model's text:", style="bold")
    console.print(_sample(job, loader, run_dir, summary["steps"]), markup=False)
    relative = _short(run_dir)
    console.print(f"\nReport: {_short(run_dir / 'report.html')}", style="bold", markup=False)
    console.print("Try next:", style="bold")
    for line in (
        f"widestream generate {relative} --prompt 'It is a truth'",
        f"widestream explain {relative} --step {summary['steps'] - 1}",
        f"widestream state {relative}",
        f"widestream journal {relative}",
    ):
        console.print(f"  {line}", markup=False)


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("training loss", f"{summary['final_loss']:.3f} nats a token")]
    if summary["validation_loss"] is not None:
        loss, unigram = summary["validation_loss"], summary["unigram_cross_entropy"]
        rows += [
            ("validation loss", _nats_and_bits(loss, summary["validation_bits_per_byte"])),
            ("unigram on the same tokens", _nats_and_bits(unigram, summary["unigram_bits_per_byte"])),
            ("ratio", f"{loss / unigram:.3f}"),
        ]
    tokens = sum(summary["tokens_by_source"].values())
    rows += [
        ("tokens", f"{tokens:,}"),
        ("speed", f"{summary['tokens_per_second']:,.0f} tokens/s"),
        ("waiting for data", f"{100 * summary['data_wait_share']:.2f} % of the time"),
        ("mixture, largest error", f"{100 * summary['mixture_error']:.3f} % of all tokens"),
    ]
    return rows


def _nats_and_bits(nats: float, bits: float | None) -> str:
    return f"{nats:.3f} nats a token" + (f", {bits:.3f} bits a byte" if bits is not None else "")


def _sample(job: Job, loader: DataLoader, run_dir: Path, step: int) -> str:
    from widestream.loader.engine import core

    assert job.tokenizer is not None  # the loader refuses text without one
    tokenizer = core().Tokenizer.from_file(job.tokenizer.file, pattern=job.tokenizer.pattern or "")
    prompt = "The "
    ids = tokenizer.encode(prompt).tolist()
    model, _ = load_model(checkpoint_path(run_dir / "checkpoints", step))
    stop = [token for name in job.tokenizer.append if (token := tokenizer.special_token_id(name)) is not None]
    new = list(generate(model, ids, max_new_tokens=_SAMPLE_TOKENS, temperature=0.8, top_p=0.95, seed=0, stop_ids=stop))
    return prompt + loader.decode(new).decode("utf-8", "replace")


def _short(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    path = path.resolve()
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
