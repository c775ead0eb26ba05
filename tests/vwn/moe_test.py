"""Mixture of experts: the formula, the load-balance loss, padding, and decoding."""

import pytest
import torch
from torch.nn import functional

from widestream.vwn import KeyValueCache, VWNConfig, VWNTransformer
from widestream.vwn.moe import MixtureOfExperts, RouterRecord

SIZES = {"vocabulary_size": 31, "d_model": 24, "layers": 2, "heads": 3, "ffn_width": 16, "experts": 5}


def experts(**options):
    torch.manual_seed(0)
    return MixtureOfExperts(VWNConfig(**SIZES, **options, init_std=0.5)).double()


@pytest.mark.parametrize("k", [1, 2, 5])
def test_output_is_the_weighted_sum_of_the_chosen_experts(k):
    moe = experts(experts_per_token=k)
    x = torch.randn(9, 24, dtype=torch.float64)
    normed = moe.norm(x)
    scores = (normed @ moe.router.weight.T).softmax(-1)
    expected = torch.zeros_like(x)
    for t in range(9):
        chosen = scores[t].argsort(descending=True)[:k]
        for e in chosen:
            gate, up = (moe.gate_up[e] @ normed[t]).chunk(2)
            expected[t] += scores[t, e] / scores[t, chosen].sum() * (moe.down[e] @ (functional.silu(gate) * up))
    torch.testing.assert_close(moe(x), expected)


def test_load_balance_loss_is_one_when_even_and_the_number_of_experts_when_not():
    moe = experts(experts_per_token=1).requires_grad_(False)
    record = RouterRecord()
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[:5, :5] = 1000 * torch.eye(5)
    moe(torch.eye(5, 24, dtype=torch.float64), record)
    moe(torch.eye(5, 24, dtype=torch.float64)[:1].repeat(7, 1), record)
    assert [float(x) for x in record.losses] == pytest.approx([1, 5])
    torch.testing.assert_close(record.shares[0], torch.full((5,), 0.2).double())


def test_padding_is_seen_by_no_expert_and_counted_by_no_router():
    moe = experts()
    x = torch.randn(12, 24, dtype=torch.float64)
    real = torch.arange(12) % 3 > 0
    padded, alone = RouterRecord(real), RouterRecord()
    out = moe(x, padded)
    torch.testing.assert_close(out[real], moe(x[real], alone))
    assert not out[~real].any()
    torch.testing.assert_close(padded.losses, alone.losses)
    torch.testing.assert_close(padded.shares, alone.shares)


def test_only_padding_gives_zero_loss():
    record = RouterRecord(torch.zeros(3, dtype=torch.bool))
    experts()(torch.randn(3, 24, dtype=torch.float64), record)
    assert record.losses[0].item() == 0


def test_the_balance_loss_evens_the_load():
    torch.manual_seed(1)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, mtp_depth=1, experts_per_token=1, init_std=0.5))
    tokens = torch.randint(0, 31, (4, 32))
    before = model(tokens)
    assert before.expert_shares.shape == (3, 5)
    optimizer = torch.optim.Adam([p for n, p in model.named_parameters() if "router" in n], lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        model(tokens).router_loss.backward()
        optimizer.step()
    after = model(tokens)
    assert after.router_loss < before.router_loss
    assert after.expert_shares.amax() < before.expert_shares.amax()


def test_decoding_gives_the_logits_of_the_whole_sequence():
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=3)).double()
    tokens = torch.randint(0, 31, (1, 14))
    expected = model.logits(model(tokens).hidden[0])
    cache = KeyValueCache()
    for start, end in [(0, 4), (4, 5), (5, 14)]:
        torch.testing.assert_close(model.decode(tokens[0, start:end], cache), expected[end - 1])


def test_wrong_options_and_masks_are_refused():
    with pytest.raises(ValueError, match="number of experts, 5"):
        VWNConfig(**SIZES, experts_per_token=6)
    with pytest.raises(ValueError, match="padding must be bool"):
        VWNTransformer(VWNConfig(**SIZES))(torch.zeros(1, 4, dtype=torch.int64), padding=torch.zeros(1, 4))
