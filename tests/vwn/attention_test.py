"""Document attention: equal to a dense mask, and its cost is that of the documents."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widestream.vwn import DocumentLayout, document_attention
from widestream.vwn.attention import apply_rotary, rotary_table


def cu(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def dense_attention(q, k, v, lengths):
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    position = torch.arange(q.shape[0])
    mask = (document[:, None] == document[None]) & (position[:, None] >= position[None])
    repeat = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeat, dim=1) for x in (k, v))
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return (weights @ v).transpose(0, 1)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(lambda x: sum(x) > 0),
    waste=st.sampled_from([0, 50, 4096]),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    seed=st.integers(0, 1000),
)
def test_equals_dense_masked_attention_with_gradients(lengths, waste, heads, seed):
    torch.manual_seed(seed)
    tokens, (query_heads, kv_heads) = sum(lengths), heads
    q = torch.randn(tokens, query_heads, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(tokens, kv_heads, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    layout = DocumentLayout.from_cu_seqlens(cu(lengths), tokens, waste)
    out = document_attention(q, k, v, layout)
    gradient = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), gradient)
    expected_out = dense_attention(q, k, v, lengths)
    expected = torch.autograd.grad(expected_out, (q, k, v), gradient)
    torch.testing.assert_close(out, expected_out, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-11)


@given(lengths=st.lists(st.integers(0, 3000), min_size=1, max_size=60), waste=st.integers(0, 5000))
@settings(max_examples=60, deadline=None)
def test_pairs_stay_near_the_sum_of_squares(lengths, waste):
    layout = DocumentLayout.from_cu_seqlens(cu(lengths), sum(lengths), waste)
    exact = sum(length**2 for length in lengths)
    assert exact <= layout.pairs <= exact + waste * len(layout.groups)
    assert sum(group.documents for group in layout.groups) == sum(length > 0 for length in lengths)
    ends = layout.document_end.tolist()
    assert all(end > t for t, end in enumerate(ends)) and ends == sorted(ends)


def test_many_short_documents_share_few_calls():
    lengths = [20 + i % 13 for i in range(500)]
    layout = DocumentLayout.from_cu_seqlens(cu(lengths), sum(lengths))
    assert len(layout.groups) <= 40
    assert layout.pairs < 2 * sum(x**2 for x in lengths)


def test_equal_documents_need_no_gather():
    layout = DocumentLayout.from_cu_seqlens(cu([16] * 4), 64)
    assert layout.padded_index is None and len(layout.groups) == 1


@pytest.mark.parametrize(
    ("bounds", "message"),
    [([0, 5], "number of tokens, 8"), ([1, 8], "goes from 1 to 8"), ([0, 6, 4, 8], "falls")],
)
def test_borders_that_do_not_fit_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        DocumentLayout.from_cu_seqlens(torch.tensor(bounds, dtype=torch.int32), 8)


def test_rotary_scores_depend_on_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def score(i, j):
        at = [apply_rotary(x, rotary_table(torch.tensor([p]), 8, 10000.0)) for x, p in ((q, i), (k, j))]
        return (at[0] * at[1]).sum()

    torch.testing.assert_close(score(7, 3), score(104, 100), atol=1e-5, rtol=1e-5)
    assert not torch.isclose(score(7, 3), score(7, 4))
    torch.testing.assert_close(score(5, 5), (q * k).sum(), atol=1e-6, rtol=1e-6)


def test_no_tokens():
    layout = DocumentLayout.from_cu_seqlens(torch.zeros(1, dtype=torch.int32), 0)
    empty = torch.zeros(0, 2, 4)
    assert document_attention(empty, empty, empty, layout).shape == (0, 2, 4)
