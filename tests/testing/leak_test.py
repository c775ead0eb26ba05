"""B-09: assert_no_leak passes on models that keep documents apart, and finds those that do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from widestream import testing
from widestream.vwn import VWNConfig, VWNTransformer

VOCABULARY = 40


def model(**changes: object) -> VWNTransformer:
    torch.manual_seed(0)
    settings = {"d_model": 16, "layers": 2, "heads": 2, "m": 2, "n": 3, "mtp_depth": 1, **changes}
    return VWNTransformer(VWNConfig(vocabulary_size=VOCABULARY, **settings))


class Logits(nn.Module):
    """The model with its head, as most models are."""

    def __init__(self, inner: VWNTransformer, ignored: tuple[str, ...] = ()):
        super().__init__()
        self.inner, self.ignored = inner, ignored

    def forward(self, tokens, position_ids, cu_seqlens):
        if "cu_seqlens" in self.ignored:
            cu_seqlens = None
        if "position_ids" in self.ignored:
            position_ids = None
        return self.inner.logits(self.inner(tokens, position_ids, cu_seqlens).hidden[0])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("changes", [{}, {"plain": True, "m": 0, "n": 0}], ids=["wide", "plain"])
def test_B09_our_model_does_not_leak(changes, rows):
    inner = model(**changes)
    testing.assert_no_leak(inner, vocabulary_size=VOCABULARY, rows=rows, compare_alone=True)
    testing.assert_no_leak(Logits(inner), vocabulary_size=VOCABULARY, rows=rows, compare_alone=True)
    assert inner.training


@pytest.mark.parametrize("rows", [1, 2])
def test_B09_dropped_cu_seqlens_are_found(rows):
    with pytest.raises(AssertionError, match="document 0 leaks into document 1"):
        testing.assert_no_leak(Logits(model(), ("cu_seqlens",)), vocabulary_size=VOCABULARY, rows=rows)


def test_positions_that_run_on_are_found_where_asked_for():
    leaky = Logits(model(), ("position_ids",))
    # Rotary positions are relative: packed and alone agree. Absolute ones do not.
    testing.assert_no_leak(leaky, vocabulary_size=VOCABULARY, compare_alone=True)

    class Absolute(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, VOCABULARY), nn.Embedding(99, VOCABULARY)

        def forward(self, input_ids):
            return self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))

    torch.manual_seed(0)
    testing.assert_no_leak(Absolute(), vocabulary_size=VOCABULARY)
    with pytest.raises(AssertionError, match="document 1 has other logits alone"):
        testing.assert_no_leak(Absolute(), vocabulary_size=VOCABULARY, compare_alone=True)


class Neighbour(nn.Module):
    """A convolution over the row: the next position's logits see the token before, whosever it is."""

    def __init__(self, stop_at_borders: bool, backwards: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, VOCABULARY)
        self.stop, self.shift = stop_at_borders, -1 if backwards else 1

    def forward(self, tokens, *, segment_ids, **others):
        assert set(others) == {"position_ids", "cu_seqlens", "max_seqlen"}
        x = self.embedding(tokens)
        before = x.roll(self.shift, 1)
        if self.stop:
            before = before * (segment_ids == segment_ids.roll(self.shift, 1)).unsqueeze(-1)
        return {"logits": x + before}["logits"]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_convolution_across_borders_is_found_in_either_direction(backwards):
    torch.manual_seed(0)
    testing.assert_no_leak(Neighbour(True, backwards), vocabulary_size=VOCABULARY)
    with pytest.raises(AssertionError, match="leaks into document"):
        testing.assert_no_leak(Neighbour(False, backwards), vocabulary_size=VOCABULARY)


def test_a_model_that_does_not_look_is_found():
    with pytest.raises(AssertionError, match="do not depend on its tokens at all"):
        testing.assert_no_leak(lambda tokens: torch.ones(*tokens.shape, 5), vocabulary_size=VOCABULARY)


def test_numbers_that_are_none_are_found():
    with pytest.raises(AssertionError, match="not finite"):
        testing.assert_no_leak(lambda tokens: tokens.unsqueeze(-1) / 0.0 * 0.0, vocabulary_size=VOCABULARY)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"documents": [4]}, "at least two"), ({"vocabulary_size": 1}, "at least 2"), ({"rows": 0}, "at least 1")],
)
def test_arguments_and_results_of_wrong_sizes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        testing.assert_no_leak(model(), **{"vocabulary_size": VOCABULARY, **wrong})
    with pytest.raises(ValueError, match="it must return logits"):
        testing.assert_no_leak(lambda tokens: torch.ones(3, 3), vocabulary_size=VOCABULARY)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 3), st.integers(0, 9))
def test_it_goes_with_hypothesis(documents, rows, seed):
    testing.assert_no_leak(model(), vocabulary_size=VOCABULARY, documents=documents, rows=rows, seed=seed)


def test_a_callable_of_numpy_values_works():
    def bag(tokens, segment_ids):
        tokens, segment_ids = np.asarray(tokens), np.asarray(segment_ids)
        same = (segment_ids[0][:, None] == segment_ids[0][None, :]).astype(float)
        return (same @ np.eye(VOCABULARY)[tokens[0]])[None]

    testing.assert_no_leak(bag, vocabulary_size=VOCABULARY)
