"""The cost model's constants from measured steps: seconds = constant + linear * sum(L) + quadratic * sum(L^2)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from widestream.errors import InvalidArgumentError

LEAST_STEPS = 8
MOST_LINEAR_TOKENS = 2**22
_LEAST_EXPLAINED = 0.9
_MOST_UNCERTAINTY = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted seconds, each with the half width of its 95 % confidence interval.

    Attributes:
        constant_seconds: a step's, whatever it holds.
        linear_seconds: a token's.
        quadratic_seconds: of one unit of L^2.
        linear_tokens: ``linear / quadratic``, for ``{cost: {linear_tokens: N}}``.
        explained: share of the variance of the times that the fit explains, at most 1.
        steps: measured steps.
    """

    constant_seconds: tuple[float, float]
    linear_seconds: tuple[float, float]
    quadratic_seconds: tuple[float, float]
    linear_tokens: tuple[int, int]
    explained: float
    steps: int


def calibrate(lengths: Sequence[Iterable[int]], seconds: Sequence[float]) -> Calibration:
    """Least squares of relative errors over steps.

    Args:
        lengths: for each measured step of one rank, the token counts of its pieces.
        seconds: the time of each.

    Raises:
        InvalidArgumentError: fewer than 8 steps, times that are not positive, lengths too alike to tell the parts
            apart, a fit that explains less than 90 % of the variance, a part that comes out negative, or a break-even
            known to no better than 50 %.
    """
    import numpy as np

    if len(lengths) != len(seconds):
        raise InvalidArgumentError(f"calibrate: {len(lengths)} steps of lengths for {len(seconds)} times")
    if len(seconds) < LEAST_STEPS:
        raise InvalidArgumentError(f"calibrate: {len(seconds)} steps, expected at least {LEAST_STEPS}; measure more")
    if not all(math.isfinite(value) and value > 0 for value in seconds):
        raise InvalidArgumentError("calibrate: a step's seconds are not a positive number")
    columns = []
    for step in lengths:
        values = np.asarray(list(step), dtype=np.float64)
        if not (values > 0).all():
            raise InvalidArgumentError("calibrate: a piece has no tokens, or fewer")
        columns.append((1.0, values.sum(), (values * values).sum()))
    matrix = np.asarray(columns)
    times = np.asarray(seconds, dtype=np.float64)
    scale = matrix.max(axis=0)
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    if scale.min() <= 0 or np.linalg.cond(scaled) > 1e5:
        raise InvalidArgumentError(
            "calibrate: the steps are too alike to tell the linear part from the quadratic one; measure steps of other "
            "sizes, some of many short pieces and some of few long ones"
        )
    # A step's time varies in proportion to it, so the residuals are relative ones.
    weighted = scaled / times[:, None]
    fit = np.linalg.lstsq(weighted, np.ones(len(times)), rcond=None)[0]
    relative_residuals = 1 - weighted @ fit
    residuals = times - scaled @ fit
    freedom = len(times) - 3
    variance = float(relative_residuals @ relative_residuals) / freedom
    covariance = variance * np.linalg.inv(weighted.T @ weighted)
    spread = float(((times - times.mean()) ** 2).sum())
    explained = 1 - float(residuals @ residuals) / spread if spread > 0 else 0.0
    if explained < _LEAST_EXPLAINED:
        raise InvalidArgumentError(
            f"calibrate: the fit explains {explained:.0%} of the variance of the times, expected at least "
            f"{_LEAST_EXPLAINED:.0%}; something else than the lengths decides them: measure on a quiet machine, without "
            "warm-up steps"
        )
    # Student's t at 97.5 % by its expansion around the normal distribution (Abramowitz and Stegun 26.7.5).
    z = 1.959964
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    half = student * np.sqrt(np.diag(covariance))
    constant, linear, quadratic = (
        (float(value / by), float(width / by)) for value, width, by in zip(fit, half, scale, strict=True)
    )
    if linear[0] <= 0 or quadratic[0] <= 0:
        raise InvalidArgumentError(
            f"calibrate: the fit has {linear[0]:.3g} seconds a token and {quadratic[0]:.3g} a square of one, expected "
            "both above 0; measure more steps, and longer pieces"
        )
    # The ratio's variance to first order.
    gradient = np.asarray([0.0, 1 / fit[1], -1 / fit[2]])
    relative = student * math.sqrt(float(gradient @ covariance @ gradient))
    ratio = linear[0] / quadratic[0]
    if relative > _MOST_UNCERTAINTY or ratio > MOST_LINEAR_TOKENS:
        raise InvalidArgumentError(
            f"calibrate: both parts are equal at {ratio:.0f} tokens, to within {relative:.0%}; expected at most "
            f"{MOST_LINEAR_TOKENS} to within {_MOST_UNCERTAINTY:.0%}; measure more steps, and longer pieces"
        )
    tokens = (round(ratio), round(ratio * relative))
    return Calibration(constant, linear, quadratic, tokens, explained, len(times))


def read_steps(path: Path) -> tuple[list[list[int]], list[float]]:
    """Steps of a JSON Lines file: ``{"lengths": [812, 95], "seconds": 0.31}`` a line.

    Raises:
        InvalidArgumentError: a line that is something else; the message says which.
    """
    lengths: list[list[int]] = []
    seconds: list[float] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                step: Any = json.loads(line)
            except ValueError as error:
                raise InvalidArgumentError(f"{path}:{number}: no JSON: {error}") from error
            good = isinstance(step, dict) and isinstance(step.get("lengths"), list)
            if not good or not all(type(length) is int for length in step["lengths"]):
                raise InvalidArgumentError(f'{path}:{number}: expected {{"lengths": [812, 95], "seconds": 0.31}}')
            if type(step.get("seconds")) not in (int, float):
                raise InvalidArgumentError(f"{path}:{number}: seconds are missing or no number")
            lengths.append(step["lengths"])
            seconds.append(float(step["seconds"]))
    return lengths, seconds
