"""``calibrate``: the cost model's constants from measured steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from widestream.cli.options import Json


def calibrate(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help='JSON Lines of one rank\'s steps: {"lengths": [812, 95], "seconds": 0.31}'),
    ],
    as_json: Json = False,
) -> None:
    """Fit the cost of a piece to measured step times; refuses a bad fit."""
    from widestream.calibration import calibrate as fit
    from widestream.calibration import read_steps
    from widestream.cli.output import print_json, print_text

    found = fit(*read_steps(file))
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    for name in ("constant_seconds", "linear_seconds", "quadratic_seconds"):
        value, half = getattr(found, name)
        print_text(f"{name}: {value:.4g} +- {half:.2g}")
    tokens, half = found.linear_tokens
    print_text(f"explained: {found.explained:.2%} of the variance of {found.steps} steps; intervals of 95 %")
    print_text(f"strategy: [{{cost: {{linear_tokens: {tokens}}}}}]  # +- {half}")
