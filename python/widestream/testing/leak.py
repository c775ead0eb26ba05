"""assert_no_leak: the logits of a packed document do not depend on its neighbours."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def assert_no_leak(
    model: Callable[..., Any],
    *,
    vocabulary_size: int,
    documents: Sequence[int] = (7, 1, 12, 5),
    rows: int = 1,
    seed: int = 0,
    tolerance: float = 1e-5,
    compare_alone: bool = False,
) -> None:
    """Fails if a document's logits change when the tokens of another document of the same row do.

    Documents of random tokens are packed end to end. Each in turn gets other tokens: its own logits must change, those
    of all others must stay. Causality is not checked, nor needed.

    Args:
        model: any callable that takes token ids as its first argument, `tokens` or `input_ids`, and whichever it has of
            `position_ids`, `cu_seqlens`, `segment_ids`, `max_seqlen` by name (all of them if it takes `**kwargs`), as
            the loader delivers them (docs/batch.md). A torch module is called in evaluation mode without gradients, and
            left in the mode in which it was. Returns logits [B, S, V] or [T, V], or something with `logits`, or with
            `hidden` whose first entry is the final hidden state.
        vocabulary_size: ids are drawn below it; at least 2.
        documents: tokens of the documents of a row, at least two.
        rows: rows, with padding behind the documents if it is more than 1.
        seed: of the tokens.
        tolerance: largest difference of a logit, relative to the largest logit.
        compare_alone: each document's logits must also be those that it has alone; that finds positions that run on.

    Raises:
        AssertionError: names the document that leaks, the one it leaks into, and by how much.
        ValueError: the arguments, or what the model returned, have wrong sizes.
    """
    if len(documents) < 2 or min(documents) < 1 or vocabulary_size < 2 or rows < 1:
        raise ValueError(
            f"documents {list(documents)} must be at least two lengths from 1 up, vocabulary_size {vocabulary_size} at "
            f"least 2, rows {rows} at least 1"
        )
    random = np.random.default_rng(seed)
    packed = _Packed(documents, rows)
    tokens = random.integers(0, vocabulary_size, packed.shape)
    tokens[packed.segment_ids == 0] = 0
    before = _logits(model, packed, tokens)
    scale = max(float(np.abs(before).max()), 1e-30)
    _check_finite(before)
    for changed, (begin, end) in enumerate(packed.spans):
        other = tokens.reshape(-1).copy()
        # Another id at every position.
        other[begin:end] = (other[begin:end] + random.integers(1, vocabulary_size, end - begin)) % vocabulary_size
        after = _logits(model, packed, other.reshape(packed.shape))
        difference = np.abs(after - before).max(axis=1) / scale
        assert difference[begin:end].max() > 0, (
            f"the logits of document {changed} do not depend on its tokens at all: the model does not look at them"
        )
        for reached, (first, last) in enumerate(packed.spans):
            worst = float(difference[first:last].max())
            assert reached == changed or worst <= tolerance, (
                f"document {changed} leaks into document {reached}: its tokens change the other's logits by {worst:.3g} of "
                f"the largest logit (tolerance {tolerance:g}), first at position "
                f"{int(np.argmax(difference[first:last] > tolerance))} of {last - first}. The model must restrict "
                "attention, convolutions and the like to cu_seqlens or segment_ids"
            )
    if compare_alone:
        _check_alone(model, packed, tokens, before, scale, tolerance)


def _check_alone(
    model: Callable[..., Any], packed: _Packed, tokens: Array, before: Array, scale: float, tolerance: float
) -> None:
    for number, (begin, end) in enumerate(packed.spans):
        alone = _Packed([end - begin], 1)
        logits = _logits(model, alone, tokens.reshape(1, -1)[:, begin:end])
        worst = float(np.abs(logits - before[begin:end]).max()) / scale
        assert worst <= tolerance, (
            f"document {number} has other logits alone than packed, by {worst:.3g} of the largest logit (tolerance "
            f"{tolerance:g}): positions must restart at each document (position_ids)"
        )


class _Packed:
    """The layout of the packed documents: the same in every row, and padding of 3 tokens behind them if there are rows."""

    def __init__(self, documents: Sequence[int], rows: int) -> None:
        padding = 3 if rows > 1 else 0
        lengths = [*documents, *([padding] if padding else [])]
        width = sum(lengths)
        self.shape = (rows, width)
        self.position_ids = np.tile(np.concatenate([np.arange(length) for length in lengths]), (rows, 1))
        segments = [*range(1, len(documents) + 1), *([0] if padding else [])]
        self.segment_ids = np.tile(np.repeat(segments, lengths), (rows, 1)).astype(np.int32)
        borders = np.cumsum([0, *(lengths * rows)])
        self.cu_seqlens = borders.astype(np.int32)
        self.max_seqlen = max(lengths)
        each = len(lengths)
        self.spans = [
            (int(borders[row * each + number]), int(borders[row * each + number + 1]))
            for row in range(rows)
            for number in range(len(documents))
        ]

    def arguments(self) -> dict[str, Any]:
        return {
            "position_ids": self.position_ids,
            "cu_seqlens": self.cu_seqlens,
            "segment_ids": self.segment_ids,
            "max_seqlen": self.max_seqlen,
        }


def _logits(model: Callable[..., Any], packed: _Packed, tokens: Array) -> Array:
    """[T, V] in float64."""
    arguments = _wanted(model, packed.arguments())
    output = _call(model, tokens.astype(np.int64), arguments)
    if hasattr(output, "logits"):
        output = output.logits
    elif hasattr(output, "hidden"):
        output = output.hidden
    if isinstance(output, tuple | list):
        output = output[0]
    if hasattr(output, "detach"):
        output = output.detach().cpu().double().numpy()
    logits = np.asarray(output, dtype=np.float64)
    if logits.ndim < 2 or logits.size // logits.shape[-1] != tokens.size:
        raise ValueError(
            f"the model returned the shape {list(logits.shape)} for tokens {list(tokens.shape)}; it must return logits "
            "[B, S, V] or [T, V]"
        )
    return logits.reshape(tokens.size, -1)


def _check_finite(logits: Array) -> None:
    assert np.isfinite(logits).all(), "the model's logits are not finite: nothing can be said about leaks"


def _wanted(model: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that the model takes by name."""
    function = getattr(model, "forward", model)
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _call(model: Callable[..., Any], tokens: Array, arguments: Mapping[str, Any]) -> Any:
    from widestream.loader.batch import torch_installed

    if not torch_installed():
        return model(tokens, **arguments)
    import torch

    device: Any = "cpu"
    if isinstance(model, torch.nn.Module):
        first = next(model.parameters(), None)
        device = first.device if first is not None else "cpu"
    converted = {
        name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    was_training = isinstance(model, torch.nn.Module) and model.training
    if isinstance(model, torch.nn.Module):
        model.eval()
    try:
        with torch.no_grad():
            return model(torch.from_numpy(tokens).to(device), **converted)
    finally:
        if was_training and isinstance(model, torch.nn.Module):
            model.train()
