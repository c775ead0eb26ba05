"""Text from a trained model: `load_model` reads a checkpoint, `generate` samples token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widestream.train.checkpoint import CheckpointError, check_tensors, load_checkpoint
from widestream.vwn.attention import KeyValueCache
from widestream.vwn.config import VWNConfig
from widestream.vwn.model import VWNTransformer


def load_model(checkpoint: Path, device: str = "cpu") -> tuple[VWNTransformer, dict[str, Any]]:
    """The model of a checkpoint folder, in evaluation mode, and the checkpoint's meta.json.

    Raises:
        CheckpointError: the folder is no whole checkpoint.
    """
    loaded = load_checkpoint(checkpoint)
    try:
        model = VWNTransformer(VWNConfig.from_dict(loaded.meta["model"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {checkpoint}: its model settings are not valid: {error}") from error
    parameters = dict(model.named_parameters())
    check_tensors(loaded.model, parameters, "model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(loaded.model[name])
    return model.to(device).eval(), loaded.meta


def generate(
    model: VWNTransformer,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
    context_tokens: int = 1024,
) -> Iterator[int]:
    """Yields new token ids one by one.

    Args:
        model: in evaluation mode.
        prompt: at least one id.
        max_new_tokens: ids to yield at most.
        temperature: 0 takes the most likely id (lowest id where equal).
        top_k: sample among the k most likely ids; 0 for all.
        top_p: sample among the smallest set of ids with at least this probability together.
        seed: of the sampling; the same arguments give the same ids on the same machine.
        stop_ids: ids that end the text; not yielded.
        context_tokens: most tokens that the model sees; when full, it goes on from the newest half.

    Raises:
        ValueError: an argument is out of range.
    """
    vocabulary = model.config.vocabulary_size
    if not prompt or not all(0 <= token < vocabulary for token in prompt):
        raise ValueError(f"the prompt must have at least one id, all of 0 to {vocabulary - 1}")
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1 or max_new_tokens < 0 or context_tokens < 1:
        raise ValueError(
            "generate needs temperature >= 0, top_k >= 0, 0 < top_p <= 1, max_new_tokens >= 0 and "
            f"context_tokens >= 1, not {(temperature, top_k, top_p, max_new_tokens, context_tokens)}"
        )
    return _sample(
        model,
        list(prompt),
        max_new_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        frozenset(stop_ids),
        context_tokens,
    )


def _sample(
    model: VWNTransformer,
    tokens: list[int],
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop_ids: frozenset[int],
    context_tokens: int,
) -> Iterator[int]:
    device = model.head.weight.device
    generator = torch.Generator().manual_seed(seed)
    cache, new = KeyValueCache(), tokens[-context_tokens:]
    for _ in range(max_new_tokens):
        if cache.length + len(new) > context_tokens:
            cache, new = KeyValueCache(), tokens[-(context_tokens // 2 + 1) :]
        logits_V = model.decode(torch.tensor(new, device=device), cache).float().cpu()
        token = choose(logits_V, temperature, top_k, top_p, generator)
        if token in stop_ids:
            return
        tokens.append(token)
        new = [token]
        yield token


def choose(logits_V: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> int:
    """One id from float32 logits [V]: temperature, then top-k, then top-p."""
    if temperature == 0:
        return int(logits_V.argmax())
    values, ids = torch.sort(logits_V / temperature, descending=True, stable=True)
    if top_k:
        values, ids = values[:top_k], ids[:top_k]
    probability = values.softmax(0)
    before = probability.cumsum(0) - probability
    keep = max(1, int((before < top_p).sum()))  # each id whose predecessors do not yet reach top_p
    index = torch.multinomial(probability[:keep], 1, generator=generator)
    return int(ids[index])
