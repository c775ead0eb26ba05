"""One self-contained HTML file about a training run: no script, no network, nothing beside it."""

from widestream.report.write import write_report

__all__ = ["write_report"]
