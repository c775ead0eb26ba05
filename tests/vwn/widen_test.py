"""widen: the same logits at step 0, for our Transformer and the library's models; training goes on from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from widestream.vwn import VWNConfig, VWNTransformer, param_groups, widen

SIZES = {"vocabulary_size": 61, "d_model": 24, "layers": 2, "heads": 4, "ffn_width": 40}


def plain(**options):
    torch.manual_seed(0)
    return VWNTransformer(VWNConfig(**SIZES, plain=True, **options))


def train(model, logits_of, steps=3):
    tokens = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = logits_of(model, tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def ours(model, tokens):
    return model.logits(model(tokens).hidden[0]).view(*tokens.shape, -1)


@pytest.mark.parametrize("options", [{"r": 1}, {"r": 1.5}, {"r": 2}, {"r": 4, "m": 2}, {"r": 2, "carry": "identity"}])
@pytest.mark.parametrize("embedding", ["linear", "table"])
def test_our_transformer_keeps_its_logits_and_learns_on(options, embedding):
    model = plain(mtp_depth=1)
    train(model, ours)
    wide = widen(model, **options, embedding=embedding)
    tokens = torch.randint(0, 61, (2, 16))
    torch.testing.assert_close(ours(wide, tokens), ours(model, tokens), atol=1e-5, rtol=1e-5)
    losses = train(wide, ours, steps=6)
    assert losses[-1] < losses[0]
    read_later = [m.static.detach()[m.m :, : m.m].abs().sum() for m in wide.modules() if hasattr(m, "static")]
    if options["r"] > 1:
        assert any(mass > 0 for mass in read_later), "the new slots come to be read"


def test_tied_embeddings_stay_tied():
    wide = widen(plain(tie_embeddings=True), 2)
    assert wide.head.weight is wide.embedding.table.weight


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: widen(widen(plain(), 2), 2), "wide already"),
        (lambda: widen(torch.nn.Linear(2, 2), 2), "not Linear"),
        (lambda: widen(plain(), 2, carry="sinkhorn"), "cannot"),
        (lambda: widen(plain(), 1.4, m=2), "whole number of slots"),
        (lambda: widen(plain(), 2, m=5), "not a multiple of m = 5"),
    ],
)
def test_widen_refuses_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_example_compares_all_variants(tmp_path):
    script = Path(__file__).resolve().parents[2] / "examples" / "widen" / "widen.py"
    out = tmp_path / "widen.json"
    options = ["--steps", "2", "--seeds", "0", "--rates", "0.001", "--validation-rows", "2", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(script), *options], check=True, timeout=90, capture_output=True, env=environment
    )
    runs = json.loads(out.read_text())
    assert [run["variant"] for run in runs] == ["narrow", "wide r = 1 (n = m)", "wide r = 2"]
    assert len({run["before"] for run in runs}) == 1
