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
    list_checkpoints,
    load_latest,
    save_checkpoint,
)
from widestream.train.config import OptimizerConfig, TrainingConfig, TrainModelConfig
from widestream.train.display import Display, MixtureTally, Progress, SilentDisplay, make_display
from widestream.train.interrupt import Interrupted, StopRequest, stop_on_signals
from widestream.train.loss import Targets, step_loss
from widestream.train.metrics import MetricsLog, NoLog
from widestream.train.parallel import ParallelModel
from widestream.train.protocol import Batch, Loader
from widestream.train.ranks import PeerFailedError, Ranks, device_of
from widestream.train.schedule import learning_rate
from widestream.train.state import check_state, gather_state, random_state, restore_state
from widestream.train.validation import Unigram, Validation, Validator, share_microbatches
from widestream.vwn.model import VWNTransformer
from widestream.vwn.parameter_groups import param_groups

_RATE_HALF_LIFE_STEPS = 8


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
    """One training run on one rank of any number. Not thread-safe; `fit` is called once, from the main thread.

    All ranks make a trainer and call `fit`; only rank 0 touches the run folder. It gets `checkpoints/`,
    `metrics.jsonl` and, at the end, `summary.json`. A resumed run goes on from the newest whole checkpoint, on
    any number of ranks: with the same weights, bit for bit, on the same machine, thread count and ranks.
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
        ranks: Ranks | None = None,
        mock_data: bool = False,
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
            display: default: by the kind of standard output; silent on ranks other than 0.
            extra_meta: JSON values kept in every checkpoint's meta.json under "job" (tokenizer, name).
            ranks: all ranks, joined. Default: a world of one.
            mock_data: the loader's batches are no data; the log, the summary and checkpoints say so.

        Raises:
            FileExistsError: the run folder has checkpoints and `resume` is false.
            CheckpointError: the checkpoint belongs to another model.
        """
        self._ranks = ranks or Ranks()
        self._mark = {"mock_data": True} if mock_data else {}
        self._checkpoints = run_dir / "checkpoints"
        if self._ranks.main and not resume and (found := list_checkpoints(self._checkpoints)):
            raise FileExistsError(
                f"the run folder {run_dir} already has {found[-1][1].name}; go on with `{resume_command}`, "
                "or set another run_dir"
            )
        self._run_dir, self._loader, self._resume_command = run_dir, loader, resume_command
        self._optimizer_config, self._training = optimizer, training
        self._display = display or (make_display(log_every=training.log_every) if self._ranks.main else SilentDisplay())
        if training.threads != "auto":
            torch.set_num_threads(training.threads)
        self._device = device_of(training.device, self._ranks)
        torch.manual_seed(seed if training.seed is None else training.seed)
        self._config = model.vwn_config(vocabulary_size)
        self.model = VWNTransformer(self._config).to(self._device)
        self._parallel = ParallelModel(self.model, self._ranks, self._device, training.parallel)
        self._parameters = self._parallel.parameters
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
            "job": {**(extra_meta or {}), **self._mark},
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
        self._validator: Validator | None = None
        self._validated_step = 0
        self._checkpoint_step: int | None = None
        self._complete = False
        self._stop = StopRequest()
        self._stopping = False
        self._peer_gone = False
        if resume:
            self._resume()

    def fit(self) -> TrainResult:
        """Trains to the last step, or until SIGINT or SIGTERM, which end it cleanly within two seconds.

        Raises:
            DivergedError: a loss or gradient is not finite; the weights are those of the step before.
            InvalidArgumentError: the stream ended before the last step.
            Whatever the loader raises.
        """
        path = self._run_dir / "metrics.jsonl"
        log = MetricsLog(path, keep_steps=self._done) if self._ranks.main else NoLog()
        try:
            with stop_on_signals(self._stop):
                try:
                    self._train(log)
                    if self._stopping and self._checkpoint_step != self._done > 0:
                        self._save()
                except Interrupted:
                    self._ranks.leave_in_disorder()  # what is on disk is whole; _report_stop says where it stands
                except Exception as error:
                    # A rank that a signal ended tears the collectives of the others, who have the signal too.
                    failure = error if isinstance(error, PeerFailedError) else self._ranks.failure(error)
                    if not self._stop or failure is None or failure.rank is not None:
                        raise
                    self._peer_gone = True
                    self._ranks.leave_in_disorder()
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
        if self._ranks.main:
            write_summary(self._run_dir, summary)
        return TrainResult(self._done, False, self._checkpoint_step, summary)

    # ---- one step -----------------------------------------------------------------------------------------

    def _train(self, log: MetricsLog | NoLog) -> None:
        batches: Iterator[Batch] | None = None
        # Ranks agree at the end of every step; one alone may look at any time.
        while self._done < self._training.steps and not self._stopping and (self._ranks.parallel or not self._stop):
            began = time.perf_counter()
            if batches is None:
                batches = iter(self._loader)
            batch = next(batches, None)
            waited = time.perf_counter() - began
            record, waited = self._step(batch, waited)
            assert batch is not None
            seconds = time.perf_counter() - began
            self._count(batch, seconds, waited)
            record |= {
                "seconds": seconds,
                "wait_seconds": waited,
                "tokens_by_source": dict(batch.tokens_by_source),
                "wanted_by_source": dict(batch.wanted_by_source),
                **self._mark,
            }
            if self._due(self._training.validate_every):
                record |= self._validate()
            log.append(record)
            self._display.show(self._progress(record))
            if self._due(self._training.checkpoint_every):
                self._save()
        if not self._agree_to_stop() and self._done == self._training.steps:
            # A stop may have cut the last step short of its validation or checkpoint.
            if self._validated_step != self._done:
                self._validate()
            if self._checkpoint_step != self._done:
                self._save()
            self._complete = not self._stopping

    def _agree_to_stop(self) -> bool:
        """Whether a signal has reached any rank by now. A collective: ranks stop at the same place."""
        return self._heed(max(row[0] for row in self._ranks.gather([self._stop.number])))

    def _heed(self, number: float) -> bool:
        """Takes the signal that some rank got, if any, as this rank's own."""
        self._stop.join(int(number))
        self._stopping = number > 0
        return self._stopping

    def _step(self, batch: Batch | None, waited: float) -> tuple[dict[str, Any], float]:
        """Forward, backward and update; returns the step's record for the log and the longest wait of any rank."""
        microbatches = batch.microbatches if batch is not None else []
        targets = [Targets.of(mb, self._config.mtp_depth) for mb in microbatches]
        supervised = batch.supervised_tokens if batch is not None else 0
        counts, slots = self._agree_on_step(batch, targets)
        if counts[0] != supervised or not microbatches:
            raise RuntimeError(
                f"step {self._done}: the loss masks hold {counts[0]} supervised tokens, the loader counts {supervised}"
            )
        totals = torch.zeros(len(counts), dtype=torch.float64)
        weight = self._config.mtp_loss_weight
        matmul = torch.bfloat16 if self._training.precision == "bf16" else None
        self._optimizer.zero_grad(set_to_none=True)
        for number, (mb, target) in enumerate(zip(microbatches, targets, strict=True), start=1):
            # Padding alone adds nothing. But other ranks wait for this one's gradients, and a step that has no target at
            # all is an update with zero gradients on any number of ranks.
            if not target.counts[0] and counts[0] and not self._ranks.parallel:
                continue
            with self._parallel.accumulating(last=number == len(microbatches)):
                with self._autocast():
                    sums = self._parallel.losses(
                        mb.tokens.to(self._device),
                        mb.position_ids.to(self._device),
                        mb.cu_seqlens,
                        target.to(self._device),
                        matmul,
                    )
                step_loss(sums, counts, weight).backward()
            totals += torch.stack([total.detach() for total in sums]).double().cpu()
        rows = self._ranks.gather([self._stop.number, waited, *totals.tolist()])
        self._heed(max(row[0] for row in rows))
        _, _, *totals_by_depth = (sum(column) for column in zip(*rows, strict=True))
        losses = [total / max(count, 1) for total, count in zip(totals_by_depth, counts, strict=True)]
        gradient_norm = self._parallel.clip(self._optimizer_config.gradient_clip or float("inf"))
        if not all(map(_finite, (*losses, gradient_norm))):
            raise DivergedError(
                f"step {self._done}: loss {losses[0]}, gradient norm {gradient_norm}. The weights are those "
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
        record = {
            "step": self._done,
            "loss": losses[0],
            "mtp_losses": losses[1:],
            "learning_rate": rate,
            "gradient_norm": gradient_norm,
            "supervised_tokens": counts[0],
            "slots": slots,
        }
        return record, max(row[1] for row in rows)

    def _agree_on_step(self, batch: Batch | None, targets: list[Targets]) -> tuple[tuple[int, ...], int]:
        """Supervised tokens by depth and slots, over all ranks; all ranks must be at the same step."""
        step = batch.step if batch is not None else -1
        slots = sum(mb.tokens.numel() for mb in batch.microbatches) if batch is not None else 0
        depths = self._config.mtp_depth + 1
        counts = [sum(target.counts[depth] for target in targets) for depth in range(depths)]
        rows = self._ranks.gather([step, len(targets), slots, *counts])
        steps = [int(row[0]) for row in rows]
        if steps == [-1] * len(steps):
            raise InvalidArgumentError(
                f"the stream ended after {self._done} of {self._training.steps} steps; lower "
                "training.steps, or let the sources repeat"
            )
        if steps != [self._done] * len(steps):
            found = steps[0] if len(steps) == 1 else f"{steps} (by rank; -1 is the end of the stream)"
            raise RuntimeError(
                f"the loader gave step {found} where step {self._done} was expected: its position "
                "does not belong to this checkpoint"
            )
        if len(microbatches := {int(row[1]) for row in rows}) > 1:
            raise RuntimeError(
                f"step {self._done}: ranks have {sorted(microbatches)} microbatches; all need the same number"
            )
        totals = [int(sum(column)) for column in zip(*rows, strict=True)]
        return tuple(totals[3:]), totals[2]

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

    def _validate(self) -> dict[str, Any]:
        if self._validator is None:
            held_out = self._loader.validation_batches() if self._ranks.main else ()
            self._validator = Validator(share_microbatches(self._ranks, held_out), self._config.mtp_depth, self._ranks)
        if not self._validator.tokens:
            self._validated_step = self._done
            if self._done == self._training.steps:
                self._display.say("no validation: the loader holds out no documents")
            return {}
        self._unigram.settle(self._ranks)
        result = self._validator.run(
            self.model,
            self._parallel.evaluation_losses,
            self._unigram,
            device=self._device,
            autocast=self._autocast,
            stop=self._agree_to_stop,
        )
        self._parallel.end_evaluation()
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
            "ranks": self._ranks.world,
            "tokens_by_source": dict(sorted(self._mixture.realised.items())),
            "mixture_error": self._mixture.error(),
            "report": None,
            **self._mark,
        }

    def _report_stop(self) -> None:
        where = f"stopped by {self._stop.signal_name} after step {self._done} of {self._training.steps}"
        if self._peer_gone:
            where += " (another rank had ended before; see its message, or the launcher's)"
        if self._mark:
            self._display.say(f"{where}; a measurement on mock data does not go on")
        elif self._checkpoint_step is None:
            self._display.say(f"{where}; no checkpoint yet: `{self._resume_command}` starts from the beginning")
        else:
            self._display.say(f"{where}; go on from step {self._checkpoint_step} with: {self._resume_command}")

    # ---- state --------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self._unigram.settle(self._ranks)
        model, optimizer = gather_state(self._parallel, self._optimizer)
        if self._ranks.main:
            self._loader.commit()
            self._write(model, optimizer)
        self._checkpoint_step = self._done

    def _write(self, model: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
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
                model=model,
                optimizer={**optimizer, **random_state(self._device)},
                train={"unigram_counts": self._unigram.counts},
                loader=self._loader.state_dict(),
                meta={**self._meta, "figures": figures},
            ),
            keep=self._training.keep_checkpoints,
        )

    def _resume(self) -> None:
        """Rank 0 reads the checkpoint, the others get it from there: they need not see its disk."""
        checkpoint = load_latest(self._checkpoints, self._display.say) if self._ranks.main else None
        if checkpoint is not None:
            check_state(checkpoint, self._meta, self._parallel, self._unigram.counts)
            if checkpoint.step > self._training.steps:
                raise CheckpointError(
                    f"the checkpoint is at step {checkpoint.step}, training.steps is {self._training.steps}"
                )
            for section in ("optimizer", "training"):
                if checkpoint.meta.get(section) != self._meta[section]:
                    self._display.say(f"note: {section}: differs from the run so far; the new values hold from here on")
        state = checkpoint and {
            "step": checkpoint.step,
            "figures": checkpoint.meta["figures"],
            "loader": checkpoint.loader,
        }
        state = self._ranks.share_json(state)
        if state is None:
            self._display.say(f"no checkpoint in {self._checkpoints}: starting from the beginning")
            return
        restore_state(checkpoint, self._parallel, self._optimizer, self._device)
        if checkpoint is not None:
            self._unigram.counts = checkpoint.train["unigram_counts"]
        self._ranks.share(self._unigram.counts)
        figures = state["figures"]
        self._done = self._checkpoint_step = state["step"]
        self._tokens, self._last_loss = figures["tokens"], figures["last_loss"]
        self._train_seconds, self._wait_seconds = figures["train_seconds"], figures["wait_seconds"]
        self._mixture.realised, self._mixture.wanted = figures["realised"], figures["wanted"]
        self._validated_step = figures["validated_step"]
        if figures["validation"]:
            values = figures["validation"]
            self._validation = Validation(**{**values, "mtp_losses": tuple(values["mtp_losses"])})
        self._loader.load_state_dict(state["loader"])
        self._display.say(f"resumed from step {state['step']}")


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> Path:
    """Writes `summary.json` of a run, whole or not at all; the report's author sets "report" and rewrites."""
    path = run_dir / "summary.json"
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(dict(summary), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def _finite(value: float) -> bool:
    return value - value == 0.0
