"""The `model:`, `optimizer:` and `training:` parts of a job file. Loads no torch."""

from __future__ import annotations

import difflib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from widestream.vwn.config import VWNConfig


class StrictModel(BaseModel):
    """A part of the job file: an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _name_unknown_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        known = list(cls.model_fields)
        problems = []
        for key in values:
            if key in cls.model_fields:
                continue
            near = difflib.get_close_matches(str(key), known, n=1)
            problems.append(
                f"unknown key {key!r}; " + (f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(known)}")
            )
        if problems:
            raise ValueError("; ".join(problems))
        return values


class TrainModelConfig(StrictModel):
    """`model:` of a job file: a `VWNConfig` without the vocabulary, which the tokenizer gives.

    Zero for `kv_heads`, `ffn_width`, `m`, `n` and `init_std` means the derived default; `VWNConfig` explains every field.
    """

    d_model: int = Field(128, ge=1)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(0, ge=0)
    ffn_width: int = Field(0, ge=0)
    m: int = Field(0, ge=0)
    n: int = Field(0, ge=0)
    r: float = Field(0.0, ge=0)
    plain: bool = False
    dynamic: bool = True
    carry: str = "ghc"
    embedding: Literal["table", "linear", "repeat"] = "table"
    reduce: Literal["linear", "slot", "sum"] = "linear"
    reduce_norm: Literal["auto", "rms", "layer", "none"] = "auto"
    reduce_init: Literal["normal", "identity"] = "normal"
    read_init: Literal["first", "rotate"] = "first"
    dyn_scale_init: float = 1.0
    mtp_depth: int = 1
    mtp_loss_weight: float = 0.3
    embedding_init_std: float = 0.3
    init_std: float = 0.0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False

    @model_validator(mode="after")
    def _sizes_fit(self) -> TrainModelConfig:
        self.vwn_config(vocabulary_size=2)
        return self

    def vwn_config(self, vocabulary_size: int) -> VWNConfig:
        """The full model config. Raises ValueError where sizes do not fit each other."""
        return VWNConfig(vocabulary_size=vocabulary_size, **self.model_dump())


class OptimizerConfig(StrictModel):
    """`optimizer:` of a job file: AdamW and its learning-rate schedule.

    Attributes:
        learning_rate: the peak.
        schedule: "cosine" falls from the peak to `final_fraction` of it over all steps after the warm-up;
            "constant" stays at the peak and falls in a straight line over the last `decay_steps`.
        warmup_steps: straight rise from 0 at the start; may exceed the training's steps.
        decay_steps: length of the tail of "constant".
        final_fraction: the last learning rate as a fraction of the peak.
        weight_decay: on matrices and GHC's dynamic W only (`widestream.vwn.param_groups`).
        beta1, beta2, eps: AdamW's.
        gradient_clip: largest global gradient norm; 0 for no limit.
    """

    learning_rate: float = Field(3e-3, gt=0, allow_inf_nan=False)
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = Field(20, ge=0)
    decay_steps: int = Field(0, ge=0)
    final_fraction: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.1, ge=0, allow_inf_nan=False)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-8, gt=0)
    gradient_clip: float = Field(1.0, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _no_unused_setting(self) -> OptimizerConfig:
        if self.schedule == "cosine" and self.decay_steps:
            raise ValueError("decay_steps belongs to schedule: constant; a cosine falls over all steps")
        return self


class TrainingConfig(StrictModel):
    """`training:` of a job file.

    Attributes:
        steps: optimizer steps of the whole run, resumed parts included.
        checkpoint_every: steps between checkpoints; the last step always gets one. 0: only the last.
        validate_every: steps between validations; the last step always gets one. 0: only the last.
        keep_checkpoints: newest checkpoints kept.
        threads: threads of torch on the CPU. "auto": torch's own choice.
        precision: "fp32", or "bf16" autocast of the backbone (GHC and the wide state stay float32).
        seed: of the initial weights. Default: the job's seed.
        device: "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:N".
        log_every: steps between printed lines where the output is no terminal.
        parallel: on several ranks, "ddp" keeps a whole model on each; "fsdp2" shards parameters, gradients and
            optimizer state over them.
    """

    steps: int = Field(ge=1)
    checkpoint_every: int = Field(100, ge=0)
    validate_every: int = Field(50, ge=0)
    keep_checkpoints: int = Field(2, ge=1)
    threads: int | Literal["auto"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int | None = Field(None, ge=0, lt=2**63)
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    log_every: int = Field(10, ge=1)
    parallel: Literal["ddp", "fsdp2"] = "ddp"

    @model_validator(mode="after")
    def _threads_in_range(self) -> TrainingConfig:
        if self.threads != "auto" and not 1 <= self.threads <= 4096:
            raise ValueError(f"threads is {self.threads}; it must be 1 to 4096, or auto")
        return self
