"""Recompute: the same values and gradients, less memory kept."""

import math

import pytest
import torch
from torch.nn import functional

from widestream.vwn import VWNConfig, VWNTransformer
from widestream.vwn.recompute import optimal_block_length

SIZES = {"vocabulary_size": 31, "d_model": 24, "layers": 3, "heads": 3, "ffn_width": 40}
TOKENS = torch.arange(40).view(2, 20) % 31


def gradients(model):
    model.zero_grad()
    out = model(TOKENS)
    loss = sum(functional.cross_entropy(model.logits(h), TOKENS.flatten()) for h in out.hidden)
    if out.router_loss is not None:
        loss = loss + out.router_loss
    loss.backward()
    return float(loss.detach()), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", [("layer", 0), ("block", 0), ("block", 1), ("block", 4), ("block", 99)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"m": 2, "n": 3, "dynamic": False},
        {"carry": "identity"},
        {"carry": "sinkhorn"},
        {"experts": 4, "mtp_depth": 1},
    ],
)
def test_values_and_gradients_are_the_same(kind, options):
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, **{"m": 2, "n": 4, **options})).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mixer." in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    loss, expected = gradients(model)
    model.set_recompute(*kind)
    found_loss, found = gradients(model)
    assert found_loss == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-9)


def kept_bytes(model):
    """Bytes allocated by a forward pass and still held at its end, while its output lives."""
    with torch.profiler.profile(profile_memory=True) as profile:
        out = model(TOKENS.repeat(4, 4))
    assert out.wide.requires_grad
    return sum(event.self_cpu_memory_usage for event in profile.key_averages())


def test_less_memory_is_held_between_forward_and_backward():
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=16))
    held = {}
    for kind in ("none", "layer", "block"):
        model.set_recompute(kind)
        held[kind] = kept_bytes(model)
    states_bytes = 2 * 3 * 640 * 8 * 24 * 4  # of all six sub-layers
    assert held["none"] - held["block"] > states_bytes / 2, held
    assert held["none"] - held["layer"] > states_bytes / 2, held


def test_the_optimal_length():
    assert [optimal_block_length(r, 64) for r in (1.5, 4, 8)] == [5, 7, 7]
    assert optimal_block_length(1, 1) == 1
    for r, count in ((1.5, 24), (4, 64), (8, 48)):

        def cost(length, r=r, count=count):  # first states, and states while a block is rebuilt
            return r * count / length + (r + 2) * length

        best = optimal_block_length(r, count)
        assert cost(best) <= 1.02 * min(cost(length) for length in range(1, count))
        assert math.isfinite(cost(best))


def test_what_does_not_fit_is_refused():
    model = VWNTransformer(VWNConfig(**SIZES, plain=True))
    with pytest.raises(ValueError, match="plain model has none"):
        model.set_recompute("block")
    with pytest.raises(ValueError, match="none, layer or block"):
        model.set_recompute("all")
