"""Checks the include direction of the C++ tree: data flows down one street, includes go the same way.

A room of engine/ may include itself and the rooms before it in STREET, less the shortcuts in FORBIDDEN.
The engine sees no Python, torch or CUDA, and Arrow only in engine/formats/arrow. Headers have
`#pragma once`, and project files are included by their full path from the root. Standard library only.

    python scripts/check_includes.py [ROOT]
"""

import re
import sys
from pathlib import Path

STREET = (
    "base",
    "job",
    "storage",
    "formats",
    "transform",
    "source",
    "convert",
    "plan",
    "construct",
    "deliver",
    "runtime",
    "scale",
    "simulate",
)

# Shortcuts that the street's order would allow and the design does not, with the headers that are allowed.
FORBIDDEN: dict[tuple[str, str], tuple[str, ...]] = {
    # The planner touches no payload: of a source it knows only the messages. (storage: its journal.)
    ("plan", "formats"): (),
    ("plan", "transform"): (),
    ("plan", "source"): ("engine/source/messages.h",),
    # A constructor knows no storage.
    ("construct", "storage"): (),
    ("construct", "formats"): (),
    # Delivery moves finished slabs.
    ("deliver", "storage"): (),
    ("deliver", "formats"): (),
    ("deliver", "transform"): (),
    ("deliver", "source"): (),
    # Pure policy over profiles.
    ("scale", "storage"): (),
    ("scale", "formats"): (),
    ("scale", "transform"): (),
    ("scale", "runtime"): (),
}

# Other top folders and the engine-independent folders that they may include.
NEIGHBOURS = {
    "bindings": ("engine", "bindings"),
    "fuzz": ("engine", "fuzz"),
    "ops": ("ops",),
    "benchmarks": ("engine", "benchmarks"),
    "tests": ("engine", "tests"),
}

FOREIGN = re.compile(r"^(Python\.h|nanobind/|pybind11/|torch/|ATen/|c10/|cuda|cudnn|ray/)")
ARROW = re.compile(r"^(arrow|parquet)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def check_engine_include(name: str, target: str) -> str | None:
    """What is wrong with engine file `name` including project file `target`, or None."""
    parts = target.split("/")
    if parts[0] != "engine" or len(parts) < 3:
        return f"the engine may not include '{target}'"
    room, other = name.split("/")[1], parts[1]
    if other not in STREET:
        return f"'{target}' is in no room of the street ({' > '.join(STREET)})"
    if STREET.index(other) > STREET.index(room):
        return f"'{target}' goes up the street: {room} comes before {other}"
    allowed = FORBIDDEN.get((room, other))
    if allowed is not None and target not in allowed and not name.endswith("_test.cc"):
        only = f" (only {', '.join(allowed)})" if allowed else ""
        return f"{room} may not know {other}{only}"
    return None


def check_file(root: Path, path: Path) -> list[str]:
    """The faults of one file as "path:line: what"."""
    name = path.relative_to(root).as_posix()
    top = name.split("/")[0]
    text = path.read_text(encoding="utf-8")
    faults = []
    # A header in plain C, for other compilers too, has a guard instead.
    guarded = name.endswith("_abi.h") and "#ifndef WIDESTREAM_" in text
    if path.suffix == ".h" and "#pragma once" not in text and not guarded:
        faults.append(f"{name}:1: a header without #pragma once")
    if top == "engine" and (name.count("/") < 2 or name.split("/")[1] not in STREET):
        faults.append(f"{name}:1: is in no room of the street ({' > '.join(STREET)})")
        return faults
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        quote, target = match.groups()
        fault = None
        if quote == '"':
            if not (root / target).is_file():
                fault = f"'{target}' is not a file of the project (give the path from the root)"
            elif top == "engine":
                fault = check_engine_include(name, target)
            elif target.split("/")[0] not in NEIGHBOURS[top]:
                fault = f"{top} may include {' and '.join(NEIGHBOURS[top])}, not '{target}'"
        elif target.startswith(("engine/", "bindings/", "ops/")):
            fault = f'<{target}> is ours: write "{target}"'
        elif top == "engine" and FOREIGN.match(target):
            fault = f"the engine knows no Python, torch or CUDA: <{target}>"
        elif top == "engine" and ARROW.match(target) and not name.startswith("engine/formats/arrow/"):
            fault = f"<{target}>: Arrow may be seen in engine/formats/arrow only"
        elif top == "ops" and ARROW.match(target):
            fault = f"operators know no Arrow: <{target}>"
        if fault:
            faults.append(f"{name}:{line}: {fault}")
    return faults


def check_tree(root: Path) -> tuple[int, list[str]]:
    """(number of files, faults) of all C++ files below `root`."""
    faults: list[str] = []
    files = 0
    for top in ("engine", *NEIGHBOURS):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in {".h", ".cc", ".cu"}:
                files += 1
                faults += check_file(root, path)
    return files, faults


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    files, faults = check_tree(root)
    print("\n".join([*faults, f"{files} files, {len(faults)} faults"]))
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
