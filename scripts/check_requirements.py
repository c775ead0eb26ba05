"""Compares installed Python packages with the pins in requirements/. Standard library only.

--missing FILE...   prints the pins of these files that are not installed as pinned, one a line
--has-torch         prints the folder of an installed torch that is new enough; exit status 1 if none
--versions NAME...  prints "name version" lines
"""

import importlib.metadata
import re
import sys
from pathlib import Path

MINIMUM_TORCH = (2, 11)


def pins(path: Path) -> dict[str, str]:
    """The `name==version` lines of a requirements file, with those it includes by `-r`."""
    found: dict[str, str] = {}
    for raw in path.read_text(encoding="utf-8").splitlines():
        line = raw.split("#")[0].strip()
        if line.startswith("-r "):
            found.update(pins(path.parent / line[3:].strip()))
        elif line:
            name, separator, version = line.partition("==")
            if not separator or not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
                raise SystemExit(f"{path}: '{raw}' is not of the form name==version")
            found[name] = version
    return found


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_is_new_enough(version: str | None) -> bool:
    """True for a torch that the package supports: the pin is only what is installed where there is none."""
    match = re.match(r"(\d+)\.(\d+)", version or "")
    return match is not None and (int(match[1]), int(match[2])) >= MINIMUM_TORCH


def missing(files: list[Path]) -> list[str]:
    """Pins that are not installed, or in another version."""
    wanted: dict[str, str] = {}
    for file in files:
        wanted.update(pins(file))
    result = []
    for name, version in wanted.items():
        found = installed_version(name)
        satisfied = torch_is_new_enough(found) if name == "torch" else found == version
        if not satisfied:
            result.append(f"{name}=={version}")
    return result


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--missing", *files] if files:
            print("\n".join(missing([Path(file) for file in files])))
        case ["--has-torch"]:
            if not torch_is_new_enough(installed_version("torch")):
                return 1
            print(importlib.metadata.distribution("torch").locate_file(""))
        case ["--versions", *names] if names:
            for name in names:
                print(name, installed_version(name))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
