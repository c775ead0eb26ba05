"""The command line: ``widestream COMMAND``. docs/cli.md lists commands and exit codes.

A command module imports what it needs inside its functions, so that ``widestream --help`` loads no engine and no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and exits with its code."""
    from widestream.cli.app import run

    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


__all__ = ["main"]
