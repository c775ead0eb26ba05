"""The steps of ``strategy``: their shapes, and what the engine reads of them."""

from __future__ import annotations

from typing import Any

from widestream.errors import InvalidArgumentError

BALANCE_METHODS = ("lpt", "multifit", "karmarkar_karp", "none")
DEFAULT_COST = {"linear_tokens": 49_152, "constant_tokens": 0, "window_tokens": 0, "window_layers": 0, "layers": 1}
_SHAPE_KEYS = (
    "layers",
    "hidden_size",
    "heads",
    "kv_heads",
    "head_size",
    "intermediate_size",
    "gated",
    "experts",
    "active_experts",
    "vocabulary",
    "window_tokens",
    "window_layers",
)
_ORDER = ("mix", "pack", "cost", "distribute", "balance", "broadcast_at", "plan")


def step_name(step: Any) -> str | None:
    """``mix``, ``balance`` and so on; None for what is no step."""
    name = step if isinstance(step, str) else next(iter(step)) if isinstance(step, dict) and len(step) == 1 else None
    return name if name in _ORDER else None


def step_value(strategy: list[Any] | None, name: str) -> Any:
    """What the step says, or None if the strategy has no such step."""
    for step in strategy or []:
        if isinstance(step, dict) and list(step) == [name]:
            return step[name]
    return None


def balance_of(strategy: list[Any] | None) -> tuple[str, int]:
    """Method and group size (0: all ranks together) of ``{balance: lpt}`` or ``{balance: {method, group_size}}``.

    Raises:
        InvalidArgumentError: neither of these.
    """
    value = step_value(strategy, "balance")
    if value is None:
        return "lpt", 0
    if isinstance(value, str):
        value = {"method": value}
    if not isinstance(value, dict) or set(value) - {"method", "group_size"}:
        raise InvalidArgumentError(
            f"balance: found {value!r}, expected a method or {{method: lpt, group_size: 8}}; write e.g. {{balance: lpt}}"
        )
    method, size = value.get("method", "lpt"), value.get("group_size", 0)
    if method not in BALANCE_METHODS:
        raise InvalidArgumentError(f"balance: found method {method!r}, expected one of {', '.join(BALANCE_METHODS)}")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= 2**22:
        raise InvalidArgumentError(f"balance: found group_size {size!r}, expected a number of data-parallel ranks")
    return method, size


def cost_of(strategy: list[Any] | None) -> dict[str, int]:
    """The cost model's integers, of ``{cost: transformer}``, ``{cost: {transformer: {layers, ...}}}`` or calibrated
    ``{cost: {linear_tokens, ...}}``.

    Raises:
        InvalidArgumentError: none of these, or a shape that makes no sense.
    """
    value = step_value(strategy, "cost")
    if value is None or value == "transformer":
        return dict(DEFAULT_COST)
    if isinstance(value, dict) and list(value) == ["transformer"]:
        return _shape_cost(value["transformer"])
    if not isinstance(value, dict) or set(value) - set(DEFAULT_COST):
        raise InvalidArgumentError(
            f"cost: found {value!r}, expected transformer, {{transformer: {{layers: 32, hidden_size: 4096, heads: 32}}}} "
            f"or {{linear_tokens: 49152}}"
        )
    for key, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidArgumentError(f"cost: found {key} {number!r}, expected a whole number from 0 on")
    return DEFAULT_COST | value


def check_order(strategy: list[Any]) -> bool:
    """Whether the steps are known, each at most once and in the order in which they are done."""
    names = [step_name(step) for step in strategy]
    places = [_ORDER.index(name) for name in names if name is not None]
    return len(places) == len(names) and places == sorted(set(places))


def _shape_cost(shape: Any) -> dict[str, int]:
    from widestream.loader.engine import core

    if not isinstance(shape, dict) or set(shape) - set(_SHAPE_KEYS):
        raise InvalidArgumentError(f"cost: found transformer {shape!r}, expected keys of {', '.join(_SHAPE_KEYS)}")
    whole = core().TransformerShape()
    for key, value in shape.items():
        right = isinstance(value, bool) if key == "gated" else isinstance(value, int) and not isinstance(value, bool)
        if not right or not 0 <= value < 2**32:
            raise InvalidArgumentError(
                f"cost: found {key} {value!r}, expected {'true or false' if key == 'gated' else 'a number'}"
            )
        setattr(whole, key, value)
    return dict(core().transformer_cost(whole))
