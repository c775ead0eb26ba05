"""Trainer: trains a VWNTransformer on a loader's batches. Entry point: `Trainer(...).fit()`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widestream.errors import InvalidArgumentError
from widestream.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_tensors,
    list_checkpoints,
    load_latest,
    save_checkpoint,
)
from widestream.train.config import OptimizerConfig, TrainingConfig, TrainModelConfig
from widestream.train.display import Display, MixtureTally, Progress, make_display
from widestream.train.interrupt import Interrupted, StopRequest, stop_on_signals
from widestream.train.loss import Targets, loss_sums, step_loss
from widestream.train.metrics import MetricsLog
from widestream.train.protocol import Batch, Loader
from widestream.train.schedule import learning_rate
from widestream.train.validation import Unigram, Validation, Validator
from widestream.vwn.model import VWNTransformer
from widestream.vwn.parameter_groups import param_groups

_RATE_HALF_LIFE_STEPS = 8
_OPTIMIZER_SLOTS = ("step", "exp_avg", "exp_avg_sq")


class DivergedError(InvalidArgumentError, FloatingPointError):
    """A loss or gradient became infinite or not a number."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainResult:
    """How a training ended.

    Attributes:
        step: optimizer steps done.
        interrupted: a signal ended it before the last step.
        checkpoint_step: step of the newest checkpoint, or None.
        summary: what `summary.json` holds; None when interrupted.
    """

    step: int
    interrupted: bool
    checkpoint_step: int | None
    summary: dict[str, Any] | None


class Trainer:
    """One training run in one process. Not thread-safe; `fit` is called once, from the main thread.

    The run folder gets `checkpoints/`, `metrics.jsonl` and, at the end, `summary.json`. A resumed run goes on
    from the newest whole checkpoint with the same weights, bit for bit, on the same machine and thread count.
    """

    def __init__(
        self,
        run_dir: Path,
        loader: Loader,
        *,
        vocabulary_size: int,
        model: TrainModelConfig,
        optimizer: OptimizerConfig,
        training: TrainingConfig,
        seed: int = 0,
        resume: bool = False,
        resume_command: str = "widestream train JOB --resume",
        display: Display | None = None,
        extra_meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Builds the model, or restores it and moves the loader.

        Args:
            run_dir: the run folder; created where needed.
            loader: the stream, not yet iterated.
            vocabulary_size: ids of the tokenizer, special tokens included.
            model, optimizer, training: the job's sections.
            seed: of the initial weights, unless `training.seed` is set.
            resume: go on from the newest checkpoint of the run folder.
            resume_command: what a message tells the user to type.
            display: default: by the kind of standard output.
            extra_meta: JSON values kept in every checkpoint's meta.json under "job" (tokenizer, name).

        Raises:
            FileExistsError: the run folder has checkpoints and `resume` is false.
            CheckpointError: the checkpoint belongs to another model.
        """
        self._checkpoints = run_dir / "checkpoints"
        if not resume and (found := list_checkpoints(self._checkpoints)):
            raise FileExistsError(
                f"the run folder {run_dir} already has {found[-1][1].name}; go on with `{resume_command}`, "
                "or set another run_dir"
            )
        self._run_dir, self._loader, self._resume_command = run_dir, loader, resume_command
        self._optimizer_config, self._training = optimizer, training
        self._display = display or make_display(log_every=training.log_every)
        if training.threads != "auto":
            torch.set_num_threads(training.threads)
        self._device = _device(training.device)
        torch.manual_seed(seed if training.seed is None else training.seed)
        self._config = model.vwn_config(vocabulary_size)
        self.model = VWNTransformer(self._config).to(self._device)
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = torch.optim.AdamW(
            param_groups(self.model, optimizer.weight_decay),
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.eps,
            fused=True,
        )
        self._meta = {
            "model": self._config.to_dict(),
            "optimizer": optimizer.model_dump(),
            "training": training.model_dump(),
            "job": dict(extra_meta or {}),
        }
        self._unigram = Unigram(vocabulary_size)
        self._mixture = MixtureTally()
        self._done = 0
        self._tokens = 0
        self._train_seconds = 0.0
        self._wait_seconds = 0.0
        self._rate: tuple[float, float] = (0.0, 0.0)
        self._last_loss = float("nan")
        self._validation: Validation | None = None
        self._validated_step = 0
        self._checkpoint_step: int | None = None
        self._complete = False
        self._stop = StopRequest()
        if resume:
            self._resume()

    def fit(self) -> TrainResult:
        """Trains to the last step, or until SIGINT or SIGTERM, which end it cleanly within two seconds.

        Raises:
            DivergedError: a loss or gradient is not finite; the weights are those of the step before.
            InvalidArgumentError: the stream ended before the last step.
            Whatever the loader raises.
        """
        log = MetricsLog(self._run_dir / "metrics.jsonl", keep_steps=self._done)
        try:
            with stop_on_signals(self._stop):
                try:
                    self._train(log)
                    if self._stop and self._checkpoint_step != self._done > 0:
                        self._save()
                except Interrupted:
                    pass  # what is on disk is whole; _report_stop says where it stands
                self._stop.answered()
                self._display.close()
                log.close()
                if not self._complete:
                    self._report_stop()
                    return TrainResult(self._done, True, self._checkpoint_step, None)
        finally:
            self._display.close()
            log.close()
        summary = self._summary()
        write_summary(self._run_dir, summary)
        return TrainResult(self._done, False, self._checkpoint_step, summary)

    # ---- one step -----------------------------------------------------------------------------------------

    def _train(self, log: MetricsLog) -> None:
        validator: Validator | None = None
        batches: Iterator[Batch] | None = None
        while self._done < self._training.steps and not self._stop:
            began = time.perf_counter()
            if batches is None:
                batches = iter(self._loader)
            batch = next(batches, None)
            waited = time.perf_counter() - began
            if batch is None:
                raise InvalidArgumentError(
                    f"the stream ended after {self._done} of {self._training.steps} steps; lower "
                    "training.steps, or let the sources repeat"
                )
            if batch.step != self._done:
                raise RuntimeError(
                    f"the loader gave step {batch.step} where step {self._done} was expected: its position "
                    "does not belong to this checkpoint"
                )
            record = self._step(batch)
            seconds = time.perf_counter() - began
            self._count(batch, seconds, waited)
            record |= {
                "seconds": seconds,
                "wait_seconds": waited,
                "tokens_by_source": dict(batch.tokens_by_source),
                "wanted_by_source": dict(batch.wanted_by_source),
                "slots": sum(mb.tokens.numel() for mb in batch.microbatches),
            }
            if self._due(self._training.validate_every):
                validator = validator or Validator(self._loader.validation_batches(), self._config.mtp_depth)
                record |= self._validate(validator)
            log.append(record)
            self._display.show(self._progress(record))
            if self._due(self._training.checkpoint_every):
                self._save()
        if self._done == self._training.steps and not self._stop:
            # A stop may have cut the last step short of its validation or checkpoint.
            if self._validated_step != self._done:
                depth = self._config.mtp_depth
                self._validate(validator or Validator(self._loader.validation_batches(), depth))
            if self._checkpoint_step != self._done:
                self._save()
            self._complete = not self._stop

    def _step(self, batch: Batch) -> dict[str, Any]:
        """Forward, backward and update; returns the step's record for the log."""
        targets = [Targets.of(mb, self._config.mtp_depth) for mb in batch.microbatches]
        counts = tuple(sum(column) for column in zip(*(t.counts for t in targets), strict=True))
        if not counts or counts[0] != batch.supervised_tokens:
            raise RuntimeError(
                f"step {batch.step}: the loss masks hold {counts[0] if counts else 0} supervised tokens, the "
                f"loader counts {batch.supervised_tokens}"
            )
        totals = torch.zeros(len(counts), dtype=torch.float64)
        weight = self._config.mtp_loss_weight
        matmul = torch.bfloat16 if self._training.precision == "bf16" else None
        self._optimizer.zero_grad(set_to_none=True)
        for mb, target in zip(batch.microbatches, targets, strict=True):
            if not target.counts[0]:
                continue
            with self._autocast():
                output = self.model(mb.tokens.to(self._device), mb.position_ids.to(self._device), mb.cu_seqlens)
                sums = loss_sums(self.model, output, target.to(self._device), matmul_dtype=matmul)
            step_loss(sums, counts, weight).backward()
            totals += torch.stack([total.detach() for total in sums]).double().cpu()
        losses = [float(total) / max(count, 1) for total, count in zip(totals, counts, strict=True)]
        gradient_norm = self._clip()
        if not all(map(_finite, (*losses, gradient_norm))):
            raise DivergedError(
                f"step {batch.step}: loss {losses[0]}, gradient norm {gradient_norm}. The weights are those "
                f"of step {self._done}; lower optimizer.learning_rate or raise warmup_steps, then "
                f"`{self._resume_command}`"
            )
        rate = learning_rate(self._optimizer_config, self._done, self._training.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        for target in targets:
            self._unigram.add(target.labels[0])
        self._done += 1
        self._last_loss = losses[0]
        return {
            "step": self._done,
            "loss": losses[0],
            "mtp_losses": losses[1:],
            "learning_rate": rate,
            "gradient_norm": gradient_norm,
            "supervised_tokens": counts[0],
        }

    def _clip(self) -> float:
        parameters = [p for p in self._parameters.values() if p.grad is not None]
        limit = self._optimizer_config.gradient_clip or float("inf")
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        enabled = self._training.precision == "bf16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=enabled)

    def _due(self, every: int) -> bool:
        return self._done == self._training.steps or bool(every and self._done % every == 0)

    # ---- figures ------------------------------------------------------------------------------------------

    def _count(self, batch: Batch, seconds: float, waited: float) -> None:
        tokens = sum(batch.tokens_by_source.values())
        self._mixture.add(batch.tokens_by_source, batch.wanted_by_source)
        self._tokens += tokens
        self._train_seconds += seconds
        self._wait_seconds += waited
        fade = 0.5 ** (1 / _RATE_HALF_LIFE_STEPS)
        self._rate = (self._rate[0] * fade + tokens, self._rate[1] * fade + seconds)

    def _validate(self, validator: Validator) -> dict[str, Any]:
        if not validator.tokens:
            self._validated_step = self._done
            if self._done == self._training.steps:
                self._display.say("no validation: the loader holds out no documents")
            return {}
        result = validator.run(
            self.model,
            self._unigram,
            device=self._device,
            autocast=self._autocast,
            stop=lambda: bool(self._stop),
        )
        if result is None:
            return {}
        self._validation, self._validated_step = result, self._done
        return {"validation": dataclasses.asdict(result)}

    def _progress(self, record: dict[str, Any]) -> Progress:
        tokens, seconds = self._rate
        left = (self._training.steps - self._done) * self._train_seconds / max(1, self._done)
        return Progress(
            step=self._done,
            steps=self._training.steps,
            loss=record["loss"],
            learning_rate=record["learning_rate"],
            gradient_norm=record["gradient_norm"],
            tokens_per_second=tokens / max(seconds, 1e-9),
            data_wait_share=self._wait_seconds / max(self._train_seconds, 1e-9),
            validation=self._validation,
            shares=self._mixture.shares(),
            seconds_left=left,
        )

    def _summary(self) -> dict[str, Any]:
        validation = self._validation
        return {
            "final_loss": self._last_loss,
            "validation_loss": validation.loss if validation else None,
            "validation_mtp_losses": list(validation.mtp_losses) if validation else None,
            "unigram_cross_entropy": validation.unigram_cross_entropy if validation else None,
            "validation_bits_per_byte": validation.bits_per_byte if validation else None,
            "unigram_bits_per_byte": validation.unigram_bits_per_byte if validation else None,
            "tokens_per_second": self._tokens / max(self._train_seconds, 1e-9),
            "data_wait_share": self._wait_seconds / max(self._train_seconds, 1e-9),
            "steps": self._done,
            "tokens_by_source": dict(sorted(self._mixture.realised.items())),
            "mixture_error": self._mixture.error(),
            "report": None,
        }

    def _report_stop(self) -> None:
        where = f"stopped by {self._stop.signal_name} after step {self._done} of {self._training.steps}"
        if self._checkpoint_step is None:
            self._display.say(f"{where}; no checkpoint yet: `{self._resume_command}` starts from the beginning")
        else:
            self._display.say(f"{where}; go on from step {self._checkpoint_step} with: {self._resume_command}")

    # ---- state --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._loader.commit()
        optimizer: dict[str, Tensor] = {"rng/torch": torch.get_rng_state()}
        if self._device.type == "cuda":
            optimizer["rng/cuda"] = torch.cuda.get_rng_state(self._device)
        for name, parameter in self._parameters.items():
            for slot, value in self._optimizer.state[parameter].items():
                optimizer[f"{name}/{slot}"] = value.detach().cpu()
        figures = {
            "tokens": self._tokens,
            "train_seconds": self._train_seconds,
            "wait_seconds": self._wait_seconds,
            "realised": self._mixture.realised,
            "wanted": self._mixture.wanted,
            "last_loss": self._last_loss,
            "validated_step": self._validated_step,
            "validation": dataclasses.asdict(self._validation) if self._validation else None,
        }
        save_checkpoint(
            self._checkpoints,
            Checkpoint(
                step=self._done,
                model={name: p.detach().cpu() for name, p in self._parameters.items()},
                optimizer=optimizer,
                train={"unigram_counts": self._unigram.counts},
                loader=self._loader.state_dict(),
                meta={**self._meta, "figures": figures},
            ),
            keep=self._training.keep_checkpoints,
        )
        self._checkpoint_step = self._done

    def _resume(self) -> None:
        checkpoint = load_latest(self._checkpoints, self._display.say)
        if checkpoint is None:
            self._display.say(f"no checkpoint in {self._checkpoints}: starting from the beginning")
            return
        if checkpoint.meta.get("model") != self._meta["model"]:
            raise CheckpointError(
                f"the checkpoint of step {checkpoint.step} is of another model: "
                f"{_differences(checkpoint, self._meta)}. Restore the model: section, or set another run_dir"
            )
        if checkpoint.step > self._training.steps:
            raise CheckpointError(
                f"the checkpoint is at step {checkpoint.step}, training.steps is {self._training.steps}"
            )
        for section in ("optimizer", "training"):
            if checkpoint.meta.get(section) != self._meta[section]:
                self._display.say(f"note: {section}: differs from the run so far; the new values hold from here on")
        check_tensors(checkpoint.model, self._parameters, "model")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(checkpoint.model[name])
        self._restore_optimizer(checkpoint.optimizer)
        check_tensors(checkpoint.train, {"unigram_counts": self._unigram.counts}, "token count")
        self._unigram.counts = checkpoint.train["unigram_counts"]
        figures = checkpoint.meta["figures"]
        self._done = self._checkpoint_step = checkpoint.step
        self._tokens, self._last_loss = figures["tokens"], figures["last_loss"]
        self._train_seconds, self._wait_seconds = figures["train_seconds"], figures["wait_seconds"]
        self._mixture.realised, self._mixture.wanted = figures["realised"], figures["wanted"]
        self._validated_step = figures["validated_step"]
        if figures["validation"]:
            values = figures["validation"]
            self._validation = Validation(**{**values, "mtp_losses": tuple(values["mtp_losses"])})
        self._loader.load_state_dict(checkpoint.loader)
        self._display.say(f"resumed from step {checkpoint.step}")

    def _restore_optimizer(self, saved: dict[str, Tensor]) -> None:
        expected: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            expected[f"{name}/step"] = torch.zeros(())
            expected[f"{name}/exp_avg"] = expected[f"{name}/exp_avg_sq"] = parameter
        rng = {key: value for key, value in saved.items() if key.startswith("rng/")}
        check_tensors({k: v for k, v in saved.items() if k not in rng}, expected, "optimizer")
        for name, parameter in self._parameters.items():
            self._optimizer.state[parameter] = {
                slot: saved[f"{name}/{slot}"].to(self._device) for slot in _OPTIMIZER_SLOTS
            }
        torch.set_rng_state(rng["rng/torch"])
        if "rng/cuda" in rng and self._device.type == "cuda":
            torch.cuda.set_rng_state(rng["rng/cuda"], self._device)


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Writes `summary.json` of a run, whole or not at all; the report's author sets "report" and rewrites."""
    path = run_dir / "summary.json"
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(dict(summary), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _finite(value: float) -> bool:
    return value - value == 0.0


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"training.device is {name}, but torch sees no CUDA device here; use auto or cpu")
    return torch.device(name)


def _differences(checkpoint: Checkpoint, meta: Mapping[str, Any]) -> str:
    old, new = checkpoint.meta.get("model") or {}, meta["model"]
    names = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} was {old.get(name)!r}, is {new[name]!r}" for name in names)
