"""Types of single values in a job: numbers with units, names, paths; and the base of every section."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from widestream import units
from widestream.errors import InvalidArgumentError
from widestream.job.problems import explain

MAX_CLOCK = 10**18  # tokens or samples
MAX_STEP_TOKENS = 2**31 - 1  # cu_seqlens are int32
MAX_BLOCK = 2**40


@dataclass(frozen=True)
class Origin:
    """Where the values being validated come from: for relative paths and for messages."""

    folder: Path | None = None  # of the job file; None: the working folder
    name: str = "job"
    lines: dict[tuple[str | int, ...], int] = field(default_factory=dict)


_NO_FILE = Origin()
ORIGIN: ContextVar[Origin] = ContextVar("ORIGIN", default=_NO_FILE)


def base_folder() -> Path:
    return ORIGIN.get().folder or Path.cwd()


class Section(BaseModel):
    """A part of the job. Unknown keys are errors; assignments are checked like the file's values."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=False)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise InvalidArgumentError(explain(error, type(self), ORIGIN.get())) from None


def number(
    parse: Callable[[object], float], low: float, high: float, schema_type: str, example: str
) -> tuple[PlainValidator, WithJsonSchema]:
    """A validator of a quantity with units between two limits, and its JSON schema."""

    def check(value: object) -> float:
        result = parse(value)
        if not low <= result <= high:
            raise InvalidArgumentError(f"found {value!r}, expected {low} to {high}")
        return result

    schema: dict[str, Any] = {
        "anyOf": [{"type": schema_type, "minimum": low, "maximum": high}, {"type": "string"}],
        "examples": [example],
    }
    return PlainValidator(check), WithJsonSchema(schema)


def check_path(value: str) -> str:
    """An absolute path: ``~`` expanded, relative ones from the folder of the job file."""
    if "://" in value:
        raise InvalidArgumentError(
            f"found the address {value!r}; this version reads local files only: copy the data and give its folder"
        )
    if not value or "\0" in value:
        raise InvalidArgumentError(f"found {value!r}, expected a path")
    path = os.path.normpath(base_folder() / Path(value).expanduser())
    if len(path.encode()) > 4096:
        raise InvalidArgumentError(f"a path of {len(path.encode())} bytes, expected at most 4096")
    return path


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


Seed = Annotated[int, *number(units.parse_count, 0, 2**64 - 1, "integer", "17")]
Clock = Annotated[int, *number(units.parse_count, 0, MAX_CLOCK, "integer", "20M tokens")]
StepTokens = Annotated[int, *number(units.parse_count, 0, MAX_STEP_TOKENS, "integer", "65_536")]
Length = Annotated[int, *number(units.parse_count, 1, 2**24, "integer", "1024")]
Rows = Annotated[int, *number(units.parse_count, 1, 2**24, "integer", "64")]
BlockRecords = Annotated[int, *number(units.parse_count, 1, MAX_BLOCK, "integer", "10k")]
BlockBytes = Annotated[int, *number(units.parse_bytes, 1, MAX_BLOCK, "integer", "8MiB")]
Epochs = Annotated[int, *number(units.parse_count, 1, 2**32 - 1, "integer", "2")]
MeshSize = Annotated[int, *number(units.parse_count, 1, 65_536, "integer", "2")]
Padding = Annotated[int, *number(units.parse_count, 1, 2**20, "integer", "128")]
Axis = Literal["pp", "dp", "cp", "tp"]
StageTensor = Literal["tokens", "labels", "loss_mask", "position_ids", "segment_ids"]
Steps = Annotated[int, *number(units.parse_count, 1, 1024, "integer", "4")]
RecordBytes = Annotated[int, *number(units.parse_bytes, 1, 2**30, "integer", "32MiB")]
Memory = Annotated[int, *number(units.parse_bytes, 2**24, 2**50, "integer", "2GiB")]
Seconds = Annotated[float, *number(units.parse_seconds, 0.001, 86_400, "number", "30s")]
Share = Annotated[float, *number(units.parse_share, 0, 1, "number", "0.5%")]


def _parse_weight(value: object) -> float:
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return units.parse_share(value)
    number_, unit = units.parse_number(value, "a weight", "0.6 or 60%")
    if unit:
        raise InvalidArgumentError(f"found {value!r}, expected a weight; write e.g. 0.6 or 60%")
    return number_


Weight = Annotated[float, *number(_parse_weight, 0, 1e15, "number", "0.6")]


def _parse_threads(value: object) -> int:
    return 0 if value == "auto" else units.parse_count(value)


Threads = Annotated[int, *number(_parse_threads, 0, 1024, "integer", "auto")]

Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=1024)]
FilePath = Annotated[str, StringConstraints(strict=True, max_length=4096), AfterValidator(check_path)]
Paths = Annotated[
    list[FilePath],
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
