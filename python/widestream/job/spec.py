"""``Job``: all sections together, the rules between them, and the resolved form for the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from widestream.errors import InvalidArgumentError
from widestream.job.problems import explain, hint
from widestream.job.sections import Batch, Errors, Limits, Mesh, Mixture, Source, Stage, Tokenizer, Validation
from widestream.job.strategy import balance_of, check_order, cost_of, step_name
from widestream.job.values import ORIGIN, FilePath, Name, Section, Seed, Steps, base_folder

DEFAULT_STRATEGY: tuple[Any, ...] = (
    "mix",
    {"pack": "best_fit"},
    {"cost": "transformer"},
    {"distribute": "dp"},
    {"balance": "lpt"},
    "plan",
)
_SLAB_BYTES_PER_TOKEN = 29  # tokens, labels, position_ids of 8, segment_ids of 4, loss_mask of 1


def _broadcast_axes(step: Any) -> list[str] | None:
    """The axes of a {broadcast_at: ...} step, or None if it is no such step or a wrong one."""
    if not (isinstance(step, dict) and list(step) == ["broadcast_at"]):
        return None
    axes = [step["broadcast_at"]] if isinstance(step["broadcast_at"], str) else step["broadcast_at"]
    known = isinstance(axes, list) and all(axis in ("tp", "cp", "pp") for axis in axes)
    return axes if known and len(set(axes)) == len(axes) else None


def _whole_or_part(strategy: list[Any]) -> bool:
    """The whole line in its order, or nothing but its variable steps."""
    names = {step_name(step) for step in strategy}
    whole = {"mix", "pack", "cost", "distribute", "balance", "plan"}
    return check_order(strategy) and (whole <= names or not names & {"mix", "pack", "distribute", "plan"})


class Job(Section):
    """A job: what to read, in which mixture, in which shape. See docs/job.md for every key.

    ``Job.load(path)`` reads YAML; ``Job(sources=[{...}], ...)`` takes the same keys as values. Relative paths are
    relative to the job file, or to the working folder where there is none. Sizes are stored in bytes, durations in
    seconds, paths absolute. Not thread-safe while it is changed.

    Raises:
        InvalidArgumentError: an unknown key, a wrong value or a contradiction; the message names every one by path.
    """

    name: Name = Field(default="job", description="Of the run; default: the name of the file.")
    seed: Seed = Field(default=0, description="Everything random follows from it.")
    run_dir: FilePath | None = Field(
        default=None, description="Journal, state, checkpoints, logs, report; default: no journal."
    )
    tokenizer: Tokenizer = Field(description="How text becomes tokens.", examples=["{file: tokenizer.json}"])
    sources: list[Source] = Field(
        min_length=1, max_length=10_000, description="The data.", examples=["[{name: a, path: a/*.parquet}]"]
    )
    mixture: Mixture = Field(default_factory=lambda: Mixture(), description="Default: equal weights.")
    batch: Batch = Field(description="The shape of a step.", examples=["{sequence_length: 1024, rows: 64}"])
    validation: Validation = Field(default_factory=lambda: Validation(), description="Held-out documents.")
    lookahead_steps: Steps = Field(default=4, description="Steps planned ahead.")
    cache_dir: FilePath | None = Field(default=None, description="Indexes; default: ~/.cache/widestream.")
    data_roots: list[FilePath] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Nothing outside is opened; default: the job file's folder.",
    )
    strategy: list[Any] | None = Field(default=None, description="How a step is built: docs/job.md.")
    mesh: Mesh = Field(default_factory=lambda: Mesh(), description="The trainer's ranks.")
    errors: Errors = Field(default_factory=lambda: Errors(), description="What happens to bad records.")
    limits: Limits = Field(default_factory=lambda: Limits(), description="What the data plane may use.")
    runtime: Literal["embedded"] = Field(
        default="embedded", description="Where the roles run: threads of this process."
    )
    model: dict[str, Any] | None = Field(default=None, description="Read by widestream train only.")
    optimizer: dict[str, Any] | None = Field(default=None, description="Read by widestream train only.")
    training: dict[str, Any] | None = Field(default=None, description="Read by widestream train only.")

    _path: Path | None = PrivateAttr(default=None)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidArgumentError(explain(error, type(self), ORIGIN.get())) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Job:
        """Reads a YAML (or JSON) job file.

        Args:
            path: the file; relative paths in it are relative to its folder.
            overrides: ``"batch.rows=8"``, ``"sources.novels.path=/data/*.parquet"``: applied in order, values in YAML.

        Raises:
            NotFoundError: there is no such file.
            IoError: it cannot be read.
            InvalidArgumentError: it is no valid job; the message names keys by path and line.
        """
        from widestream.job.read import read_job_file

        values, origin = read_job_file(Path(path), overrides)
        token = ORIGIN.set(origin)
        try:
            job = cls(**values)
        finally:
            ORIGIN.reset(token)
        job._path = Path(path).parent.resolve() / Path(path).name
        return job

    @property
    def path(self) -> Path | None:
        """The file it was loaded from, or None."""
        return self._path

    @property
    def balance(self) -> str:
        """ "lpt", "multifit", "karmarkar_karp" or "none", from the strategy."""
        return balance_of(self.strategy)[0]

    @property
    def broadcast_at(self) -> list[str]:
        """Mesh axes along which only the first rank fetches, from the strategy."""
        found = [axes for axes in map(_broadcast_axes, self.strategy or []) if axes is not None]
        return list(found[0]) if found else []

    def resolve(self) -> dict[str, Any]:
        """The plain values that the engine reads: docs/formats/job.md. A fresh dict at every call.

        Sizes in bytes, durations in seconds, absolute paths; model, optimizer and training are not in it.
        """
        from widestream.job.resolve import resolve

        self._check()  # lists and dicts may have been changed in place
        return resolve(self)

    def to_json(self) -> str:
        """``resolve()`` as JSON with sorted keys: the input of the C++ API."""
        return json.dumps(self.resolve(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema (draft 2020-12) of the job file, for editors: docs/job.schema.json."""
        from widestream.job.schema import job_schema

        return job_schema()

    # --- rules between sections --------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _only_embedded(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("runtime") == "ray":
            raise InvalidArgumentError(
                "@runtime: found 'ray'; this version runs embedded only (all roles on threads of this process): "
                "write runtime: embedded, or leave it out"
            )
        return values

    @field_validator("strategy")
    @classmethod
    def _only_default(cls, strategy: list[Any] | None) -> list[Any] | None:
        if strategy is None:
            return None
        # broadcast_at, balance and cost vary; of the rest there is one form. A part of the line stands for all of it.
        broadcasts = [step for step in strategy if step_name(step) == "broadcast_at"]
        fixed = [step for step in strategy if step_name(step) in ("mix", "pack", "distribute", "plan")]
        plain = all(step in DEFAULT_STRATEGY for step in fixed) and len(fixed) in (0, 4)
        known = all(_broadcast_axes(step) is not None for step in broadcasts)
        if not (plain and known and _whole_or_part(strategy)):
            raise InvalidArgumentError(
                "this version supports only [mix, {pack: best_fit}, {cost: transformer}, {distribute: dp}, "
                "{balance: lpt}, plan], with other methods and groups ({balance: {method: multifit, group_size: 8}}), "
                "{balance: none}, other costs, and {broadcast_at: tp} (cp, pp, or a list of them); leave it out for the "
                "default"
            )
        balance_of(strategy)
        cost_of(strategy)
        return strategy

    @model_validator(mode="after")
    def _whole(self) -> Job:
        if self.data_roots is None:
            self.__dict__["data_roots"] = [str(base_folder())]
        self._check()
        if not self.mixture.stages:
            equal = {source.name: 1.0 for source in self.sources}
            self.mixture.__dict__["stages"] = [Stage(weights=equal)]
        return self

    def _check(self) -> None:
        index: dict[str, int] = {}
        for i, source in enumerate(self.sources):
            if source.name in index:
                raise InvalidArgumentError(
                    f"@sources[{i}].name: found {source.name!r} again, as sources[{index[source.name]}]; "
                    "give each source a name of its own"
                )
            index[source.name] = i
        if len(self.mixture.stages) * len(index) > 1_000_000:
            raise InvalidArgumentError(
                f"@mixture.stages: {len(self.mixture.stages)} stages of {len(index)} sources, expected at most "
                "1000000 weights in all"
            )
        for i, stage in enumerate(self.mixture.stages):
            for name in stage.weights:
                if name not in index:
                    raise InvalidArgumentError(
                        f"@mixture.stages[{i}].weights: there is no source {name[:128]!r}; {hint(name, index)}"
                    )
        if self.errors.record_bytes > self.limits.host_memory:
            raise InvalidArgumentError(
                f"@errors.record_bytes: found {self.errors.record_bytes}, more than limits.host_memory "
                f"{self.limits.host_memory}; lower it or raise the limit"
            )
        two_steps = 2 * _SLAB_BYTES_PER_TOKEN * self.batch.step_tokens
        if two_steps > self.limits.host_memory:
            raise InvalidArgumentError(
                f"@limits.host_memory: found {self.limits.host_memory}, but two steps of {self.batch.step_tokens} "
                f"tokens take {two_steps} bytes; raise it or make the step smaller"
            )
        context = self.mesh.cp
        self._check_split()
        if (self.mesh.dp or 1) * context * self.mesh.tp * self.mesh.pp > 2**20:
            raise InvalidArgumentError("@mesh: dp * cp * tp * pp is more than 1048576 ranks; lower one of them")

    def _check_split(self) -> None:
        """Rows that the context and sequence ranks cannot share evenly. The engine has the rules of thd."""
        mesh, batch = self.mesh, self.batch
        if batch.layout == "thd":
            return
        if mesh.cp > 1 and mesh.cp_split == "zigzag_document":
            raise InvalidArgumentError(
                "@mesh.cp_split: found 'zigzag_document', but the pieces of a row are not padded to multiples of "
                "2 * cp; write zigzag_row, or layout: thd"
            )
        zigzag = mesh.cp_split in (None, "zigzag_row")
        context = 1 if mesh.cp == 1 else 2 * mesh.cp if zigzag else mesh.cp
        multiple = context * (mesh.tp if mesh.sequence_parallel else 1)
        if batch.sequence_length % multiple:
            key = "cp" if mesh.cp > 1 else "tp"
            rule = ("2 * cp" if zigzag else "cp") if key == "cp" else "tp"
            rule += " * tp" if key == "cp" and mesh.sequence_parallel else ""
            raise InvalidArgumentError(
                f"@mesh.{key}: found {getattr(mesh, key)}, but sequence_length {batch.sequence_length} is no multiple "
                f"of {rule}: the ranks take equal slices of a row; change one of them"
            )
