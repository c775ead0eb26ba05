"""The sections of a job: sources, mixture, batch and the small ones."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool, StrictStr, field_validator, model_validator

from widestream import units
from widestream.errors import InvalidArgumentError
from widestream.job.values import (
    MAX_CLOCK,
    MAX_STEP_TOKENS,
    Axis,
    BlockBytes,
    BlockRecords,
    Clock,
    Epochs,
    FilePath,
    Length,
    Memory,
    MeshSize,
    Name,
    Padding,
    Paths,
    RecordBytes,
    Rows,
    Seconds,
    Section,
    Share,
    StageTensor,
    StepTokens,
    Text,
    Threads,
    Weight,
)


def _wrong(key: str, message: str) -> InvalidArgumentError:
    """An error of a rule between keys, at ``key`` of the section (see problems.explain)."""
    return InvalidArgumentError(f"@{key}: {message}")


class Tokenizer(Section):
    """How text becomes token ids."""

    file: FilePath = Field(description="A .tiktoken or tokenizer.json file.", examples=["tokenizers/tokenizer.json"])
    pattern: StrictStr | None = Field(
        default=None, description="gpt2, r50k or cl100k; only where the file does not say it."
    )
    append: list[Text] = Field(default=[], max_length=16, description="Special tokens put after each text.")


class Shuffle(Section):
    """How the records of a source are ordered inside an epoch. ``false`` = file order."""

    mode: Literal["blocks", "off", "full"] = Field(default="blocks", description="blocks, off (file order) or full.")
    records: BlockRecords = Field(default=1000, description="A block closes on reaching this many records,")
    bytes: BlockBytes = Field(default=2**20, description="or this many raw bytes.")

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if value is None or value is True:
            return {}
        if value is False or value == "off":
            return {"mode": "off"}
        if value == "full" or (isinstance(value, dict) and value.get("mode") == "full"):
            raise InvalidArgumentError(
                "full needs a format with random access to single records, but a Parquet row group is decoded as a "
                "whole and JSON Lines has no index; write {records: 100k, bytes: 64MiB} for larger blocks"
            )
        if isinstance(value, dict | Shuffle):
            if (
                isinstance(value, dict)
                and "records" in value
                and units.count_word(value["records"])
                not in (
                    None,
                    "records",
                )
            ):
                raise _wrong("records", f"found {value['records']!r}, which is not in records; write e.g. 10k records")
            return value
        raise InvalidArgumentError(f"found {value!r}, expected false or {{records: 1000, bytes: 1MiB}}")


class Source(Section):
    """One data set of the mixture."""

    name: Name = Field(description="Unique in the job.", examples=["novels"])
    path: Paths = Field(
        min_length=1, max_length=100_000, description="Files, folders or globs.", examples=["data/*.parquet"]
    )
    text: Text = Field(default="text", description="The column, key or member that holds the text.")
    format: Literal["parquet", "jsonl", "megatron", "text", "webdataset"] | None = Field(
        default=None, description="Default: from the file names."
    )
    max_epochs: Epochs | None = Field(default=None, description="Times the source may be read; default: no limit.")
    on_exhausted: Literal["renormalise", "stop", "error"] = Field(
        default="renormalise", description="What happens after that."
    )
    shuffle: Shuffle = Field(default_factory=lambda: Shuffle(), description="false, or the size of a block.")


class Stage(Section):
    """A part of the mixture's schedule."""

    until: Clock | None = Field(
        default=None, description="Where the stage ends, counted from the start; the last may omit it."
    )
    weights: dict[str, Weight] = Field(
        description="Weight per source; a source left out is not drawn.", examples=["{novels: 0.6}"]
    )
    ramp: Clock = Field(default=0, description="Length over which the weights move from those of the stage before.")

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: dict[str, float]) -> dict[str, float]:
        if not any(weight > 0 for weight in weights.values()):
            raise InvalidArgumentError("all are 0, nothing would be drawn; give a source a weight")
        return weights


class Mixture(Section):
    """Which source the next piece comes from. ``weights`` alone is one stage; neither: equal weights."""

    unit: Literal["tokens", "samples"] = Field(default="tokens", description="What weights, until and ramp count.")
    stages: list[Stage] = Field(default=[], max_length=1000, description="The stages in order.")
    weights: dict[str, Weight] | None = Field(default=None, description="Short for one stage.")

    @model_validator(mode="before")
    @classmethod
    def _same_unit(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("stages"), list):
            return value
        unit = value.get("unit", "tokens")
        for index, stage in enumerate(value["stages"]):
            for key in ("until", "ramp"):
                text = stage.get(key) if isinstance(stage, dict) else None
                if units.count_word(text) not in (None, unit):
                    raise _wrong(f"stages[{index}].{key}", f"found {text!r}, but the unit of the mixture is {unit}")
        return value

    @model_validator(mode="after")
    def _schedule(self) -> Mixture:
        if self.weights is not None:
            if self.stages:
                raise _wrong("weights", "given beside stages; write the weights in the stages, or no stages")
            self.__dict__["stages"] = [Stage(weights=self.weights)]
            self.__dict__["weights"] = None
            self.__pydantic_fields_set__.add("stages")
        begin = 0
        for index, stage in enumerate(self.stages):
            at = f"stages[{index}]"
            if stage.until is None and index + 1 < len(self.stages):
                raise _wrong(f"{at}.until", "missing; only the last stage may go on for ever: say where this one ends")
            if stage.until is not None and stage.until <= begin:
                before = f"more than {begin}" + (", where the stage before ends" if index else "")
                raise _wrong(f"{at}.until", f"found {stage.until}, expected {before}; until counts from the start")
            length = (MAX_CLOCK if stage.until is None else stage.until) - begin
            if stage.ramp and index == 0:
                raise _wrong(f"{at}.ramp", "the first stage has no weights before it to move from; remove it")
            if stage.ramp > length:
                raise _wrong(f"{at}.ramp", f"found {stage.ramp}, longer than its stage of {length}; shorten it")
            begin = stage.until if stage.until is not None else begin
        return self


class Batch(Section):
    """The shape of a step."""

    sequence_length: Length = Field(description="Tokens of a row (S).", examples=["1024"])
    rows: Rows | None = Field(default=None, description="Rows per step over all ranks; not with layout thd.")
    tokens: StepTokens | None = Field(
        default=None, description="Real tokens per step over all ranks: layout thd; with layout rows instead of rows."
    )
    microbatch_tokens: StepTokens | None = Field(
        default=None, description="Padded cap per rank; default: one microbatch."
    )
    layout: Literal["rows", "thd", "padded"] = Field(
        default="rows", description="Packed rows, 1 x T, or one piece a row."
    )
    max_piece_tokens: Length | None = Field(
        default=None, description="thd: the longest piece; default: sequence_length."
    )
    overflow: Literal["split", "truncate", "drop", "error"] = Field(
        default="split", description="Documents longer than a row."
    )
    last_step: Literal["fill", "drop"] = Field(default="fill", description="A short step at the end of the stream.")
    cross_document_attention: StrictBool = Field(default=False, description="true: a row is one segment.")
    pad_documents_to: Padding | None = Field(
        default=None, description="thd: each piece fills a multiple of it in memory, beside what the mesh asks."
    )
    pad_microbatch_to: Padding | None = Field(
        default=None, description="thd: the tokens of each context rank are a multiple of it (16 or 32 for fp8)."
    )
    microbatch_pieces: Rows | None = Field(
        default=None, description="thd: most pieces of a microbatch; bounds cu_seqlens of fixed_shapes."
    )
    fixed_shapes: StrictBool = Field(
        default=False, description="true: all microbatches have the same shapes, for compilers and CUDA graphs."
    )

    @model_validator(mode="before")
    @classmethod
    def _in_tokens(cls, value: Any) -> Any:
        for key in ("sequence_length", "tokens", "microbatch_tokens", "max_piece_tokens"):
            word = units.count_word(value.get(key)) if isinstance(value, dict) else None
            if word not in (None, "tokens"):
                raise _wrong(key, f"found {value[key]!r}, expected a number of tokens")
        return value

    @model_validator(mode="after")
    def _size(self) -> Batch:
        length = self.max_piece_tokens or self.sequence_length
        if self.layout == "thd":
            if self.rows is not None:
                raise _wrong("rows", "layout thd has no rows: remove it, tokens says the size of a step")
            if not self.tokens:
                raise _wrong("tokens", "missing; layout thd needs the real tokens of a step, e.g. tokens: 65_536")
            if self.tokens < length:
                raise _wrong("tokens", f"found {self.tokens}, less than one piece of {length} tokens; raise it")
            if self.fixed_shapes and not self.microbatch_tokens:
                raise _wrong("fixed_shapes", "every microbatch is padded to microbatch_tokens, which is missing")
        else:
            if self.max_piece_tokens is not None:
                raise _wrong("max_piece_tokens", f"layout {self.layout} cuts at sequence_length: remove it")
            for key in ("pad_documents_to", "pad_microbatch_to", "microbatch_pieces"):
                if getattr(self, key) is not None:
                    raise _wrong(
                        key, f"rows of layout {self.layout} are sequence_length wide and not padded further: remove it"
                    )
            self._check_rows()
        if self.microbatch_tokens and self.microbatch_tokens < length:
            raise _wrong(
                "microbatch_tokens",
                f"found {self.microbatch_tokens}, but a single row or piece holds {length} tokens; raise it",
            )
        if self.step_tokens > MAX_STEP_TOKENS:
            raise _wrong("sequence_length", f"a step of {self.step_tokens} tokens, expected at most {MAX_STEP_TOKENS}")
        return self

    def _check_rows(self) -> None:
        if self.rows is not None and self.tokens is not None:
            raise _wrong("tokens", "given beside rows; keep one of them")
        if self.rows is None and not self.tokens:
            raise _wrong("rows", f"missing; layout {self.layout} needs the rows of a step, e.g. rows: 64")
        if self.tokens:
            if self.layout == "padded":
                raise _wrong("tokens", "layout padded is sized by rows: write rows instead, or layout: rows")
            if self.tokens % self.sequence_length:
                raise _wrong(
                    "tokens",
                    f"found {self.tokens}, no multiple of sequence_length {self.sequence_length}; write e.g. "
                    f"{max(1, self.tokens // self.sequence_length) * self.sequence_length}",
                )

    @property
    def step_rows(self) -> int:
        """Rows per step over all ranks; 0 for layout thd."""
        return 0 if self.layout == "thd" else self.rows or (self.tokens or 0) // self.sequence_length

    @property
    def step_tokens(self) -> int:
        """Most tokens of a step over all ranks, padding included (thd: without)."""
        return (self.tokens or 0) if self.layout == "thd" else self.step_rows * self.sequence_length


class Validation(Section):
    """Held-out documents: never in the training stream."""

    fraction: Share = Field(default=0.0, description="Share of the records held out.")
    by: Literal["hash"] = Field(
        default="hash", description="By the hash of the text: equal texts fall on the same side."
    )
    tokens: StepTokens = Field(
        default=65_536, description="Held-out tokens that a validation looks at, the first in the order of the stream."
    )

    @field_validator("fraction")
    @classmethod
    def _some_left(cls, fraction: float) -> float:
        if fraction >= 1:
            raise InvalidArgumentError("found 1, which leaves nothing to train on; write e.g. 0.5%")
        return fraction


class Mesh(Section):
    """The trainer's ranks."""

    dp: MeshSize | None = Field(default=None, description="Data parallel; default: the world size, 1 outside torchrun.")
    cp: MeshSize = Field(default=1, description="Context parallel.")
    tp: MeshSize = Field(default=1, description="Tensor parallel.")
    pp: MeshSize = Field(default=1, description="Pipeline stages.")
    vpp: MeshSize = Field(
        default=1, description="Virtual pipeline stages: microbatches come in multiples of it and of pp."
    )
    ep: MeshSize = Field(default=1, description="Expert parallel, inside dp * cp * tp.")
    dp_replicate: MeshSize | None = Field(default=None, description="HSDP: dp is dp_replicate * dp_shard.")
    dp_shard: MeshSize | None = Field(default=None, description="HSDP: ranks that share one copy of the weights.")
    order: list[Axis] = Field(
        default=["pp", "dp", "cp", "tp"],
        min_length=4,
        max_length=4,
        description="Axes from the outermost to the innermost, whose ranks are neighbours.",
    )
    sequence_parallel: StrictBool = Field(
        default=False, description="true: tp ranks split the sequence between their layers, so tp counts in padding."
    )
    cp_split: Literal["zigzag_document", "zigzag_row", "contiguous", "ulysses"] | None = Field(
        default=None, description="How context ranks share tokens; default: zigzag, by document in thd, else by row."
    )
    every_stage: list[StageTensor] = Field(
        default=[], description="Tensors that every pipeline stage gets, beside the first and the last."
    )

    @model_validator(mode="before")
    @classmethod
    def _replicas(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None in (value.get("dp_replicate"), value.get("dp_shard")):
            return value
        replicate, shard = (_size(value[key]) for key in ("dp_replicate", "dp_shard"))
        if replicate and shard:
            product = replicate * shard
            if value.get("dp") is None:
                return {**value, "dp": product}
            if _size(value["dp"]) not in (None, product):
                raise _wrong("dp", f"found {value['dp']!r}, but dp_replicate * dp_shard is {product}; leave dp out")
        return value

    @model_validator(mode="after")
    def _axes(self) -> Mesh:
        if len(set(self.order)) != len(self.order):
            raise _wrong("order", f"found {self.order}, expected each of pp, dp, cp and tp once")
        dp = self.dp or 1
        # Without dp, it comes from the world size, and the engine checks the rest.
        if self.dp and self.dp_replicate and dp % self.dp_replicate:
            raise _wrong("dp_replicate", f"found {self.dp_replicate}, which does not divide dp {dp}")
        if self.dp and self.dp_shard and dp % self.dp_shard:
            raise _wrong("dp_shard", f"found {self.dp_shard}, which does not divide dp {dp}")
        if self.dp and (dp * self.cp * self.tp) % self.ep:
            raise _wrong("ep", f"found {self.ep}, which does not divide the ranks of a stage, dp * cp * tp")
        return self

    def replicas(self, dp: int) -> int:
        """Copies of the weights among ``dp`` data-parallel ranks (HSDP)."""
        return self.dp_replicate or (max(1, dp // self.dp_shard) if self.dp_shard else 1)


def _size(value: object) -> int | None:
    try:
        return units.parse_count(value)
    except InvalidArgumentError:
        return None  # the field's own check says what is wrong


class Errors(Section):
    """What happens to bad records."""

    bad_record: Literal["skip", "error"] = Field(default="skip", description="skip counts it against the budget.")
    record_bytes: RecordBytes = Field(default=32 * 2**20, description="Longer records are bad.")
    budget: Share = Field(default=0.001, description="An error once bad > 10 + budget * examined, per source.")


class Limits(Section):
    """What the data plane may use on one host."""

    host_memory: Memory = Field(default=2 * 2**30, description="Bytes of all buffers together.")
    threads: Threads = Field(default=0, description="auto or 0: one per core.")
    read_deadline: Seconds = Field(default=30.0, description="A read that takes longer is an error.")
