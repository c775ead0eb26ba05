"""The chunked loss against plain cross-entropy, and multi-token targets against their definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.train.fake_loader import FakeLoader, FakeMicrobatch
from widestream.train import loss as loss_module
from widestream.train.loss import Targets, linear_cross_entropy, step_loss


@pytest.mark.parametrize("chunk_logits", [1, 40, 1 << 20])
def test_equals_plain_cross_entropy_with_gradients(monkeypatch, chunk_logits):
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(0)
    hidden = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    position, target = torch.tensor([0, 2, 3, 8]), torch.tensor([10, 0, 4, 4])
    found = linear_cross_entropy(hidden, weight, position, target)
    expected = functional.cross_entropy(hidden[position] @ weight.T, target, reduction="sum")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found * 0.3, (hidden, weight)),
        torch.autograd.grad(expected * 0.3, (hidden, weight)),
    )


def test_huge_logits_stay_finite_and_no_targets_are_zero():
    hidden = torch.full((2, 1), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    both = torch.tensor([0, 1])
    found = linear_cross_entropy(hidden, weight, both, torch.tensor([0, 1]))
    assert found.item() == pytest.approx(2e4)
    found.backward()
    assert hidden.grad.isfinite().all() and weight.grad.isfinite().all()
    nothing = torch.zeros(0, dtype=torch.int64)
    empty = linear_cross_entropy(hidden, weight, nothing, nothing)
    assert empty.item() == 0
    (gradient,) = torch.autograd.grad(empty, hidden)
    assert not gradient.any()


def test_no_gradient_is_formed_where_none_is_needed_and_a_second_backward_is_refused():
    hidden, weight = torch.randn(3, 2), torch.randn(4, 2)
    at = torch.arange(3)
    assert not linear_cross_entropy(hidden, weight, at, at).requires_grad
    total = linear_cross_entropy(hidden.requires_grad_(), weight, at, at)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once only"):
        total.backward()


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    depths=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_targets_by_definition(lengths, depths, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    mask = torch.rand(1, tokens, generator=generator) < 0.7
    labels = torch.randint(0, 50, (1, tokens), generator=generator)
    blank = torch.zeros(1, tokens, dtype=torch.int64)
    targets = Targets.of(FakeMicrobatch(blank, labels, mask, blank, cu, max(lengths)), depths)
    for depth in range(depths + 1):
        expected = []
        for start, end in zip(cu.tolist(), cu.tolist()[1:], strict=False):
            expected += [(t, int(labels[0, t + depth])) for t in range(start, end - depth) if mask[0, t + depth]]
        assert list(zip(targets.positions[depth].tolist(), targets.labels[depth].tolist(), strict=True)) == expected
    assert targets.counts == tuple(len(x) for x in targets.labels)


def test_the_fake_loader_counts_what_the_targets_hold():
    batch = FakeLoader().batch(3)
    assert sum(Targets.of(mb, 0).counts[0] for mb in batch.microbatches) == batch.supervised_tokens > 0


def test_step_loss_weighs_depths_equally():
    sums = tuple(torch.tensor(x) for x in (10.0, 6.0, 8.0))
    assert float(step_loss(sums, (5, 3, 2), 0.4)) == pytest.approx(2 + 0.2 * 2 + 0.2 * 4)
    assert float(step_loss(sums[:1], (5,), 0.4)) == pytest.approx(2)
    assert float(step_loss(sums, (5, 0, 2), 0.0)) == pytest.approx(2)
