"""Widestream: a pretraining stack with a deterministic data plane and Virtual Width Networks.

Names are loaded when first used: ``import widestream`` alone loads neither torch, pyarrow, numpy nor pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widestream import errors, job, loader, testing, tokenizer, units, vwn
    from widestream.job import Job
    from widestream.loader import Batch, ClientPlaceTree, DataLoader, Microbatch
    from widestream.tokenizer import Tokenizer

__version__ = "0.1.0"

_LAZY = {
    "Batch": "widestream.loader",
    "ClientPlaceTree": "widestream.loader",
    "DataLoader": "widestream.loader",
    "Job": "widestream.job",
    "Microbatch": "widestream.loader",
    "Tokenizer": "widestream.tokenizer",
}
_LAZY_MODULES = ("errors", "job", "loader", "testing", "tokenizer", "units", "vwn")

__all__ = [
    "Batch",
    "ClientPlaceTree",
    "DataLoader",
    "Job",
    "Microbatch",
    "Tokenizer",
    "__version__",
    "errors",
    "job",
    "loader",
    "testing",
    "tokenizer",
    "units",
    "vwn",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in _LAZY_MODULES:
        value = importlib.import_module(f"widestream.{name}")
    else:
        raise AttributeError(f"module 'widestream' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
