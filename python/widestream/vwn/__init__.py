"""Virtual Width Networks: Transformers whose residual stream is wider than their backbone.

`VWNConfig` loads without torch; every other name imports torch when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from widestream.vwn.config import VWNConfig, slots_for_width

if TYPE_CHECKING:
    from widestream.vwn.attention import DocumentLayout, KeyValueCache, document_attention
    from widestream.vwn.ghc import GHC, GHCMixer, initial_coefficients
    from widestream.vwn.model import MTPHead, VWNOutput, VWNTransformer
    from widestream.vwn.monitors import Monitor, MonitorReport
    from widestream.vwn.parameter_groups import param_groups
    from widestream.vwn.speculative import SpeculativeText, speculative_decode
    from widestream.vwn.upcycling import widen
    from widestream.vwn.width import OverWidthEmbedding, Reduce, SegmentMix

_HOMES = {
    "DocumentLayout": "attention",
    "GHC": "ghc",
    "GHCMixer": "ghc",
    "KeyValueCache": "attention",
    "MTPHead": "model",
    "Monitor": "monitors",
    "MonitorReport": "monitors",
    "OverWidthEmbedding": "width",
    "Reduce": "width",
    "SegmentMix": "width",
    "SpeculativeText": "speculative",
    "VWNOutput": "model",
    "VWNTransformer": "model",
    "document_attention": "attention",
    "initial_coefficients": "ghc",
    "param_groups": "parameter_groups",
    "speculative_decode": "speculative",
    "widen": "upcycling",
}

__all__ = [
    "GHC",
    "DocumentLayout",
    "GHCMixer",
    "KeyValueCache",
    "MTPHead",
    "Monitor",
    "MonitorReport",
    "OverWidthEmbedding",
    "Reduce",
    "SegmentMix",
    "SpeculativeText",
    "VWNConfig",
    "VWNOutput",
    "VWNTransformer",
    "document_attention",
    "initial_coefficients",
    "param_groups",
    "slots_for_width",
    "speculative_decode",
    "widen",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
