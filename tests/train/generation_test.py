"""Sampling from a checkpoint."""

import pytest
import torch

from tests.train.fake_loader import VOCABULARY, FakeLoader
from widestream.train import (
    CheckpointError,
    OptimizerConfig,
    Trainer,
    TrainingConfig,
    TrainModelConfig,
    generate,
    load_model,
)
from widestream.train.generation import choose
from widestream.vwn import VWNConfig, VWNTransformer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    Trainer(
        run,
        FakeLoader(microbatches=1, rows=6, strides=1),
        vocabulary_size=VOCABULARY,
        model=TrainModelConfig(d_model=32, layers=2, heads=2),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=5),
        training=TrainingConfig(steps=40, threads=1, device="cpu", validate_every=0),
        extra_meta={"tokenizer": "t.json"},
    ).fit()
    return run / "checkpoints" / "step_000040"


def test_a_trained_model_goes_on_counting(trained):
    model, meta = load_model(trained)
    assert meta["job"] == {"tokenizer": "t.json"} and meta["step"] == 40
    ids = list(generate(model, [6, 7, 8, 9], max_new_tokens=4, temperature=0))
    assert ids == [10, 11, 12, 13]


def test_a_full_context_goes_on_from_its_newest_half(trained):
    model, _ = load_model(trained)
    prompt, context = [6, 7, 8, 9], 5
    found = list(generate(model, prompt, max_new_tokens=6, temperature=0, context_tokens=context))
    tokens, seen = list(prompt), list(prompt)
    for token in found:
        if len(seen) > context:
            seen = tokens[-(context // 2 + 1) :]
        with torch.no_grad():
            expected = model.logits(model(torch.tensor([seen])).hidden[0][-1]).argmax()
        assert token == expected
        tokens.append(token)
        seen.append(token)
    one = list(generate(model, prompt, max_new_tokens=3, temperature=0, context_tokens=1))
    assert len(one) == 3


def test_the_seed_decides_and_stop_ids_end(trained):
    model, _ = load_model(trained)

    def sample(seed, **options):
        return list(generate(model, [6], max_new_tokens=12, temperature=3.0, seed=seed, **options))

    assert sample(1) == sample(1) and any(sample(1) != sample(seed) for seed in range(2, 6))
    whole = sample(1)
    assert sample(1, stop_ids=[whole[4]]) == whole[: whole.index(whole[4])]


def test_choice_follows_top_k_and_top_p():
    logits = torch.tensor([0.1, 0.5, 0.25, 0.15]).log()

    def chosen(temperature=1.0, top_k=0, top_p=1.0):
        generator = torch.Generator().manual_seed(0)
        return {choose(logits, temperature, top_k, top_p, generator) for _ in range(300)}

    assert chosen() == {0, 1, 2, 3}
    assert chosen(top_k=2) == {1, 2}
    assert chosen(top_p=0.5) == {1}
    assert chosen(top_p=0.51) == {1, 2}
    assert chosen(top_p=0.76) == {1, 2, 3}
    assert chosen(top_k=3, top_p=0.8) == {1, 2}, "top_p counts within the top k"
    assert chosen(temperature=0) == {1}


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"max_new_tokens": -1}, {"context_tokens": 0}],
)
def test_arguments_out_of_range_are_refused_at_once(options):
    model = VWNTransformer(VWNConfig(vocabulary_size=9, d_model=8, layers=1, heads=2))
    with pytest.raises(ValueError, match="generate needs"):
        generate(model, [1], **{"max_new_tokens": 1, **options})
    with pytest.raises(ValueError, match="0 to 8"):
        generate(model, [9], max_new_tokens=1)
    with pytest.raises(ValueError, match="at least one id"):
        generate(model, [], max_new_tokens=1)


def test_no_checkpoint_is_an_error_with_the_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"meta\.json cannot be read"):
        load_model(tmp_path)
