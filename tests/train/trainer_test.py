"""Training as a whole: learns, resumes bit by bit, stops cleanly, and leaves the promised files."""

import json
import math
import os
import signal
import threading
import time

import pytest
import torch
from torch.nn import functional

from tests.train.fake_loader import VOCABULARY, FakeLoader
from widestream.errors import InvalidArgumentError
from widestream.train import (
    CheckpointError,
    DivergedError,
    OptimizerConfig,
    Trainer,
    TrainingConfig,
    TrainModelConfig,
    list_checkpoints,
    load_checkpoint,
    read_metrics,
)

MODEL = TrainModelConfig(d_model=16, layers=2, heads=2, m=2, n=3, mtp_depth=2)


class Lines:
    """A display that keeps what it is told."""

    def __init__(self):
        self.said, self.progress = [], []

    def show(self, progress):
        self.progress.append(progress)

    def say(self, message):
        self.said.append(message)

    def close(self):
        pass


def trainer(run_dir, *, steps=6, loader=None, resume=False, model=MODEL, display=None, **training):
    settings = {"checkpoint_every": 3, "validate_every": 3, "threads": 1, "device": "cpu", **training}
    return Trainer(
        run_dir,
        loader or FakeLoader(),
        vocabulary_size=VOCABULARY,
        model=model,
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=2),
        training=TrainingConfig(steps=steps, **settings),
        seed=3,
        resume=resume,
        display=display or Lines(),
    )


def weights(run_dir, step):
    loaded = load_checkpoint(run_dir / "checkpoints" / f"step_{step:06d}")
    return {**loaded.model, **loaded.optimizer, **loaded.train}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_resumed_run_has_the_same_weights_bit_for_bit(tmp_path, precision):
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    trainer(straight, precision=precision).fit()
    # The whole run's settings, stopped after step 3 as a killed run would be.
    with pytest.raises(KeyboardInterrupt):
        trainer(halves, precision=precision, loader=FailingLoader(at=4)).fit()
    loader = FakeLoader()
    result = trainer(halves, resume=True, precision=precision, loader=loader).fit()
    assert loader.delivered == [3, 4, 5] and result.step == loader.committed == 6
    expected, found = weights(straight, 6), weights(halves, 6)
    assert set(expected) == set(found)
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    logs = [read_metrics(run / "metrics.jsonl") for run in (straight, halves)]
    timing = {"seconds", "wait_seconds"}
    one, two = ([{k: v for k, v in r.items() if k not in timing} for r in log] for log in logs)
    assert one == two and [record["step"] for record in one] == [1, 2, 3, 4, 5, 6]


class FailingLoader(FakeLoader):
    """Dies when step `at` is asked for, as a killed process does: the trainer has no time to save."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def batch(self, step):
        if step == self.at:
            raise KeyboardInterrupt
        return super().batch(step)


def test_the_model_learns_and_the_summary_has_every_promised_figure(tmp_path):
    display = Lines()
    result = trainer(tmp_path, steps=60, validate_every=20, checkpoint_every=0, display=display).fit()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == result.summary
    assert set(summary) >= {
        "final_loss",
        "validation_loss",
        "unigram_cross_entropy",
        "tokens_per_second",
        "data_wait_share",
        "steps",
        "tokens_by_source",
        "mixture_error",
        "report",
    }
    assert summary["validation_loss"] < 0.8 * summary["unigram_cross_entropy"]
    assert summary["steps"] == 60
    # One byte a token in the fake data: nats a token and bits a byte differ by ln 2 alone.
    ratio = summary["validation_loss"] / summary["validation_bits_per_byte"]
    assert ratio == pytest.approx(math.log(2))
    delivered = sum(summary["tokens_by_source"].values())
    assert summary["mixture_error"] == pytest.approx(abs(summary["tokens_by_source"]["a"] / delivered - 0.75))
    assert [p.step for p in display.progress] == list(range(1, 61))
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [60]


def test_unigram_is_the_add_one_model_of_the_delivered_targets(tmp_path):
    result = trainer(tmp_path).fit()
    loader = FakeLoader()
    counts = torch.ones(VOCABULARY, dtype=torch.float64)
    for step in range(6):
        for mb in loader.batch(step).microbatches:
            for label in mb.labels[mb.loss_mask].tolist():
                counts[label] += 1
    nats, tokens = 0.0, 0
    for mb in loader.validation_batches():
        for label in mb.labels[mb.loss_mask].tolist():
            nats -= math.log(counts[label] / counts.sum())
            tokens += 1
    assert result.summary["unigram_cross_entropy"] == pytest.approx(nats / tokens, rel=1e-9)


def test_first_update_equals_a_plain_loop_over_the_whole_step(tmp_path):
    """The microbatches' summed loss over global counts, written out: same loss and same gradient norm."""
    one = trainer(tmp_path / "one", steps=1)
    batch = FakeLoader().batch(0)
    model = one.model
    sums, counts = [0.0] * 3, [0] * 3
    for mb in batch.microbatches:
        hidden = model(mb.tokens, mb.position_ids, mb.cu_seqlens).hidden
        labels, mask = mb.labels.flatten().tolist(), mb.loss_mask.flatten().tolist()
        for start, end in zip(mb.cu_seqlens.tolist(), mb.cu_seqlens.tolist()[1:], strict=False):
            for t in range(start, end):
                for depth in range(3):
                    if t + depth < end and mask[t + depth]:
                        logits = model.logits(hidden[depth][t])
                        target = torch.tensor(labels[t + depth])
                        sums[depth] = sums[depth] + functional.cross_entropy(logits, target)
                        counts[depth] += 1
    losses = [total / count for total, count in zip(sums, counts, strict=True)]
    (losses[0] + 0.15 * losses[1] + 0.15 * losses[2]).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    model.zero_grad()
    one.fit()
    (record,) = read_metrics(tmp_path / "one" / "metrics.jsonl")
    assert record["loss"] == pytest.approx(losses[0].item(), rel=1e-5)
    assert record["mtp_losses"] == pytest.approx([x.item() for x in losses[1:]], rel=1e-5)
    assert record["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert record["supervised_tokens"] == batch.supervised_tokens == counts[0]
    assert record["tokens_by_source"] == batch.tokens_by_source
    assert record["wanted_by_source"] == batch.wanted_by_source
    assert record["slots"] == sum(mb.tokens.numel() for mb in batch.microbatches)


def test_microbatch_boundaries_do_not_change_the_gradient(tmp_path):
    class OneMicrobatch(FakeLoader):
        def batch(self, step):
            batch = super().batch(step)
            first, second = batch.microbatches
            cu = torch.cat((first.cu_seqlens, second.cu_seqlens[1:] + first.tokens.numel()))
            stacked = {
                name: torch.cat((getattr(first, name), getattr(second, name)))
                for name in ("tokens", "labels", "loss_mask", "position_ids")
            }
            batch.microbatches = [type(first)(**stacked, cu_seqlens=cu, max_seqlen=0)]
            return batch

    trainer(tmp_path / "two").fit()
    trainer(tmp_path / "one", loader=OneMicrobatch()).fit()
    logs = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two")]
    for one, two in zip(*logs, strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
        assert one["gradient_norm"] == pytest.approx(two["gradient_norm"], rel=1e-3)


class SignallingLoader(FakeLoader):
    """Sends this process a signal when step `at` is asked for; may then keep the trainer waiting."""

    def __init__(self, at, number, hold=0.0):
        super().__init__()
        self.at, self.number, self.hold = at, number, hold
        self.sent_at = 0.0

    def batch(self, step):
        if step == self.at:
            self.sent_at = time.monotonic()
            os.kill(os.getpid(), self.number)
            end = time.monotonic() + self.hold
            while time.monotonic() < end:
                time.sleep(0.01)
        return super().batch(step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_a_checkpoint_and_resume_agrees(tmp_path, number):
    trainer(tmp_path / "straight").fit()
    run, display = tmp_path / "run", Lines()
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    result = trainer(run, loader=SignallingLoader(4, number), display=display).fit()
    assert result.interrupted and result.summary is None and result.step == result.checkpoint_step == 5
    assert signal.Signals(number).name in display.said[-1] and "--resume" in display.said[-1]
    assert not (run / "summary.json").exists()
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    assert not trainer(run, resume=True).fit().interrupted
    expected, found = weights(tmp_path / "straight", 6), weights(run, 6)
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_signal_during_a_long_wait_for_data_ends_the_wait(tmp_path):
    loader, display = SignallingLoader(4, signal.SIGINT, hold=100.0), Lines()
    result = trainer(tmp_path, loader=loader, display=display).fit()
    assert result.interrupted and result.checkpoint_step == 3
    assert "go on from step 3" in display.said[-1]


def test_a_second_signal_does_not_wait(tmp_path):
    class Twice(SignallingLoader):
        def batch(self, step):
            if step == self.at:
                os.kill(os.getpid(), signal.SIGINT)
            return super().batch(step)

    result = trainer(tmp_path, loader=Twice(4, signal.SIGINT)).fit()
    assert result.interrupted and result.step == 4 and result.checkpoint_step == 3


def test_an_interrupt_before_the_first_checkpoint_says_so(tmp_path):
    display = Lines()
    result = trainer(tmp_path, loader=SignallingLoader(0, signal.SIGINT, hold=100.0), display=display).fit()
    assert result.checkpoint_step is None and "no checkpoint yet" in display.said[-1]
    assert trainer(tmp_path, resume=True, steps=3).fit().step == 3


def test_training_off_the_main_thread_works_without_signal_handlers(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(trainer(tmp_path, steps=2).fit()))
    thread.start()
    thread.join(timeout=60)
    assert results[0].step == 2


def test_a_finished_run_resumes_to_its_summary(tmp_path):
    first = trainer(tmp_path).fit()
    again = trainer(tmp_path, resume=True).fit()
    assert again.summary == first.summary


def test_a_run_folder_with_checkpoints_is_not_overwritten(tmp_path):
    trainer(tmp_path, steps=3).fit()
    with pytest.raises(FileExistsError, match="--resume"):
        trainer(tmp_path)


def test_another_model_is_refused_with_the_difference(tmp_path):
    trainer(tmp_path, steps=3).fit()
    with pytest.raises(CheckpointError, match="layers was 2, is 3"):
        trainer(tmp_path, resume=True, model=TrainModelConfig(**{**MODEL.model_dump(), "layers": 3}))


def test_a_loader_out_of_step_is_refused(tmp_path):
    trainer(tmp_path, steps=3).fit()

    class Stuck(FakeLoader):
        def load_state_dict(self, state):
            self.next_step = state["next_step"] + 1

    with pytest.raises(RuntimeError, match="gave step 4 where step 3"):
        trainer(tmp_path, resume=True, loader=Stuck()).fit()


def test_a_stream_that_ends_early_and_a_wrong_count_are_errors(tmp_path):
    class Short(FakeLoader):
        def __iter__(self):
            yield self.batch(0)

    with pytest.raises(InvalidArgumentError, match="ended after 1 of 6 steps"):
        trainer(tmp_path / "short", loader=Short()).fit()

    class Miscounting(FakeLoader):
        def batch(self, step):
            batch = super().batch(step)
            batch.supervised_tokens += 1
            return batch

    with pytest.raises(RuntimeError, match="supervised tokens"):
        trainer(tmp_path / "wrong", loader=Miscounting()).fit()


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path):
    run = trainer(tmp_path)
    with torch.no_grad():
        run.model.head.weight[0, 0] = float("nan")
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    with pytest.raises(DivergedError, match="step 0: loss nan"):
        run.fit()
    for name, parameter in run.model.named_parameters():
        assert torch.equal(parameter.nan_to_num(), before[name].nan_to_num()), name


def test_no_held_out_documents_is_said_and_not_fatal(tmp_path):
    display = Lines()
    result = trainer(tmp_path, loader=FakeLoader(validation=0), display=display).fit()
    assert result.summary["validation_loss"] is None
    assert any("no validation" in line for line in display.said)


def test_old_checkpoints_go(tmp_path):
    trainer(tmp_path, steps=8, checkpoint_every=2, keep_checkpoints=3).fit()
    assert [step for step, _ in list_checkpoints(tmp_path / "checkpoints")] == [4, 6, 8]
