"""``python -m widestream.hosting ROOT NAME READY_FD``: the host process, described by JSON on its standard input.

Exec'd by the first rank of a node. It says that ranks can attach by writing to READY_FD.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from widestream.errors import WidestreamError
from widestream.hosting.folder import HostFolder
from widestream.hosting.process import HostDescription, log, run_host
from widestream.hosting.start import READY


def main(arguments: list[str]) -> int:
    root, name, ready = Path(arguments[0]), arguments[1], int(arguments[2])

    def on_ready() -> None:
        os.write(ready, READY)
        os.close(ready)

    try:
        description = HostDescription.from_json(sys.stdin.buffer.read())
        run_host(HostFolder(root, root / name, Path(os.devnull)), description, on_ready)
    except WidestreamError as error:
        log(f"error: {error}")
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
