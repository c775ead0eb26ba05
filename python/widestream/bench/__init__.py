"""Named workloads, each measured beside a peer or a floor in the same run. ``widestream bench NAME``.

A figure is a ratio of medians of interleaved runs (A B A B ...). A workload checks its own output before it reports.
"""

from widestream.bench.harness import WORKLOADS, Figure, run_workload

__all__ = ["WORKLOADS", "Figure", "run_workload"]
