"""The data loader: batches of a job's stream, for one rank."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widestream.loader.batch import Batch, Microbatch, Span
    from widestream.loader.data_loader import DataLoader
    from widestream.loader.place_tree import ClientPlaceTree, Place

# Loaded when used: the host process needs the engine of this package, but neither numpy nor the job's schema.
_LAZY = {
    "Batch": "widestream.loader.batch",
    "ClientPlaceTree": "widestream.loader.place_tree",
    "DataLoader": "widestream.loader.data_loader",
    "Microbatch": "widestream.loader.batch",
    "Place": "widestream.loader.place_tree",
    "Span": "widestream.loader.batch",
}

__all__ = ["Batch", "ClientPlaceTree", "DataLoader", "Microbatch", "Place", "Span"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'widestream.loader' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
