"""Self-speculative decoding gives the text of greedy decoding, whatever the heads propose."""

import pytest
import torch
from torch.nn import functional

from widestream.vwn import KeyValueCache, VWNConfig, VWNTransformer, speculative_decode

SIZES = {"vocabulary_size": 31, "d_model": 24, "layers": 2, "heads": 3, "ffn_width": 40}


def model(depth, **options):
    torch.manual_seed(4)
    options = options or {"m": 2, "n": 4}
    return VWNTransformer(VWNConfig(**SIZES, mtp_depth=depth, **options)).double()


def trained(depth, steps=60):
    """Learns to count, so that the heads propose well."""
    net = model(depth).float()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = (torch.randint(0, 31, (8, 1), generator=generator) + torch.arange(14)) % 31
        out = net(rows)
        loss = sum(
            functional.cross_entropy(
                net.logits(h).view(8, 14, 31)[:, : 13 - d].flatten(0, 1), rows[:, 1 + d :].flatten()
            )
            for d, h in enumerate(out.hidden)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def greedy(net, prompt, count):
    cache, tokens, new = KeyValueCache(), list(prompt), list(prompt)
    for _ in range(count):
        new = [int(net.decode(torch.tensor(new), cache).argmax())]
        tokens += new
    return tokens[len(prompt) :]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
@pytest.mark.parametrize("prompt", [[3], [1, 2], [5, 9, 2, 7, 7, 1, 0, 30]])
@pytest.mark.parametrize("options", [{}, {"plain": True}, {"m": 2, "n": 3, "kv_heads": 1}])
def test_an_untrained_model_gives_the_greedy_text(depth, prompt, options):
    net = model(depth, **options)
    found = speculative_decode(net, prompt, max_new_tokens=25)
    assert found.tokens == greedy(net, prompt, 25)
    assert 0 <= found.accepted <= found.proposed


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_trained_model_gives_the_greedy_text_in_fewer_passes(depth):
    net = trained(depth)
    found = speculative_decode(net, [4, 5, 6], max_new_tokens=24)
    assert found.tokens == greedy(net, [4, 5, 6], 24)
    assert found.acceptance_rate > 0.5
    assert found.passes < 24 and found.tokens_per_pass > 1 and found.tokens_per_second > 0


@pytest.mark.parametrize("depth", [2, 3])
def test_proposals_are_those_of_the_whole_sequence(depth):
    """The caches of the depths hold what a pass over the whole text computes: no rejected proposal stays."""
    from widestream.vwn.speculative import _Decoder

    net = model(depth)
    decoder = _Decoder(net, [3, 8])
    with torch.no_grad():
        for _ in range(9):
            decoder.step(limit=1000)
            text = decoder.tokens + decoder.proposals
            last = decoder.cache.length - 1
            hidden = net(torch.tensor([text])).hidden
            expected = [int(net.logits(hidden[d][last : last + 1]).argmax()) for d in range(1, depth + 1)]
            assert decoder.proposals == expected


def test_near_ties_are_settled_by_a_pass_of_their_own():
    net = model(2)
    with torch.no_grad():
        net.head.weight[1::2] = net.head.weight[:-1:2]  # every two ids tie exactly
    found = speculative_decode(net, [3, 8], max_new_tokens=12)
    assert found.tokens == greedy(net, [3, 8], 12)
    assert found.passes > 12


def test_stop_ids_and_limits():
    net = trained(2)
    assert speculative_decode(net, [4, 5], max_new_tokens=20, stop_ids=[9]).tokens == [6, 7, 8]
    for count in range(6):
        assert len(speculative_decode(net, [4, 5], max_new_tokens=count).tokens) == count
    with pytest.raises(ValueError, match="at least one id"):
        speculative_decode(net, [], max_new_tokens=1)
    with pytest.raises(ValueError, match="0 to 30"):
        speculative_decode(net, [31], max_new_tokens=1)
