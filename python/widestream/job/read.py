"""Reading a job file: YAML, ``${ENV}``, overrides; with the line of every key for messages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from widestream.errors import InvalidArgumentError, IoError, NotFoundError
from widestream.job.problems import Location, path_text
from widestream.job.values import Origin

_MAX_FILE_BYTES = 16 * 2**20
_MAX_DEPTH = 24
_MAX_VALUES = 500_000
_OPAQUE = ("model", "optimizer", "training")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """PyYAML's safe loader with YAML 1.2's plain scalars: no dates, no sexagesimal numbers, ``off`` is text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F_]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|\.inf|\.nan)",
        "-+0123456789.",
    ),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def _integer(loader: Any, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    if len(text) > 40:
        raise InvalidArgumentError(f"line {node.start_mark.line + 1}: a number of {len(text)} digits")
    return int(text, 16) if text[:2] == "0x" else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def read_job_file(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], Origin]:
    """The values of a job file with variables and overrides put in, and where they come from."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such job file") from None
    except OSError as error:
        raise IoError(error.errno, f"{path}: the job file cannot be read: {error.strerror}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidArgumentError(f"{path}: more than {_MAX_FILE_BYTES} bytes; use globs instead of listing files")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: no UTF-8 text at byte {error.start}; save it as UTF-8") from None
    lines: dict[Location, int] = {}
    values = parse_yaml(text, str(path), lines)
    if not isinstance(values, dict):
        raise InvalidArgumentError(f"{path}: expected keys and values, such as `sources:`; see docs/job.md")
    values = _expand(values, (), str(path))
    for override in overrides:
        apply_override(values, override, lines)
    values.setdefault("name", re.sub(r"[^A-Za-z0-9_.-]", "_", path.stem)[:128] or "job")
    folder = path.parent.resolve()
    return values, Origin(folder=folder, name=str(path), lines=lines)


def parse_yaml(text: str, name: str, lines: dict[Location, int] | None = None) -> Any:
    """One YAML document as plain values. Bounded in depth and size; repeated keys are errors."""
    try:
        _check_depth(text, name)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _walk(node, (), name, lines if lines is not None else {}, [0], [])
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidArgumentError(f"{name}{where}: no valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{name}: no valid YAML: {error}") from None


def _check_depth(text: str, name: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise InvalidArgumentError(f"{name}, line {line}: nested deeper than {_MAX_DEPTH} levels; no job is")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _walk(
    node: yaml.Node,
    path: Location,
    name: str,
    lines: dict[Location, int],
    count: list[int],
    open_nodes: list[yaml.Node],
) -> None:
    """Notes lines, counts values with aliases written out, and refuses repeated keys and cycles."""
    line = node.start_mark.line + 1
    count[0] += 1
    if count[0] > _MAX_VALUES:
        raise InvalidArgumentError(f"{name}, line {line}: more than {_MAX_VALUES} values; no job is so large")
    if any(node is other for other in open_nodes):
        raise InvalidArgumentError(f"{name}, line {line}: an alias that contains itself; write the values out")
    open_nodes.append(node)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines.setdefault((*path, index), item.start_mark.line + 1)
            _walk(item, (*path, index), name, lines, count, open_nodes)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            where = f"{name}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidArgumentError(f"{where}: a key that is no plain text")
            if key.tag == "tag:yaml.org,2002:merge":
                _walk(value, path, name, lines, count, open_nodes)
                continue
            if key.value in seen:
                raise InvalidArgumentError(
                    f"{where}: the key {path_text((*path, key.value))} occurs twice; keep one of them"
                )
            seen.add(key.value)
            key.tag = "tag:yaml.org,2002:str"  # a source may be called 1984
            lines[(*path, key.value)] = key.start_mark.line + 1
            _walk(value, (*path, key.value), name, lines, count, open_nodes)
    open_nodes.pop()


def _expand(value: Any, path: Location, name: str) -> Any:
    """Puts environment variables in: ``${DATA}``, ``${DATA:-/default}``; ``$${`` is a plain ``${``."""
    if isinstance(value, dict):
        return {key: _expand(item, (*path, key), name) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, (*path, index), name) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        variable, default = match[1], match[2]
        found = os.environ.get(variable, default)
        if found is None:
            raise InvalidArgumentError(
                f"{name}: {path_text(path)}: the environment variable {variable} is not set; set it, or write "
                f"${{{variable}:-default}}"
            )
        return found

    parts = value.split("$${")
    expanded = "${".join(_VARIABLE.sub(replace, part) for part in parts)
    if path and path[0] in _OPAQUE and expanded != value:
        # No type is known here that would read the text as a number.
        number = parse_yaml(expanded, name)
        return number if isinstance(number, bool | int | float) else expanded
    return expanded


def apply_override(values: dict[str, Any], override: str, lines: dict[Location, int] | None = None) -> None:
    """Sets ``a.b.c=value`` in place. A list is indexed by number, or by the name of its item: ``sources.novels.text=t``."""
    key, equals, text = override.partition("=")
    parts = [part for part in re.split(r"[.\[\]]+", key.strip()) if part]
    if not equals or not parts:
        raise InvalidArgumentError(f"override {override!r}: expected key=value; write e.g. batch.rows=8")
    value = parse_yaml(text, f"override {override!r}")
    current: Any = values
    location: Location = ()
    for position, part in enumerate(parts):
        is_last = position == len(parts) - 1
        step: str | int = part
        if isinstance(current, list):
            step = _index(current, part, override)
        elif not isinstance(current, dict):
            raise InvalidArgumentError(
                f"override {override!r}: {path_text(location)} is a plain value, it has no {part!r}"
            )
        location = (*location, step)
        if is_last:
            current[step] = value
        elif isinstance(current, dict):
            if current.get(part) is None:
                current[part] = {}
            current = current[part]
        else:
            current = current[step]
    if lines is not None:  # messages about the new value must not point into the file
        for known in [known for known in lines if known[: len(location)] == location]:
            del lines[known]


def _index(items: list[Any], part: str, override: str) -> int:
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == part:
            return index
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    names = [str(item["name"]) for item in items if isinstance(item, dict) and "name" in item]
    known = f"; its names: {', '.join(names[:20])}" if names else ""
    raise InvalidArgumentError(f"override {override!r}: there is no item {part!r} in a list of {len(items)}{known}")
