"""Widestream: a pretraining stack with a deterministic data plane and Virtual Width Networks."""

__version__ = "0.1.0"
