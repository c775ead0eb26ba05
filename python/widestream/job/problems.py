"""From pydantic's errors to sentences that say where, what was found, and what to write instead."""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from widestream.job.values import Origin

Location = tuple[str | int, ...]

_MAX_PROBLEMS = 20
# Words of other loaders for keys of ours, which edit distance would not find.
_OTHER_WORDS = {
    "batch_size": "rows",
    "global_batch_size": "rows",
    "context_length": "sequence_length",
    "seq_len": "sequence_length",
    "seq_length": "sequence_length",
    "max_seq_len": "sequence_length",
    "max_length": "sequence_length",
    "files": "path",
    "glob": "path",
    "data": "sources",
    "datasets": "sources",
    "column": "text",
    "field": "text",
    "epochs": "max_epochs",
    "proportions": "weights",
    "ratios": "weights",
    "mix": "mixture",
    "out_dir": "run_dir",
    "output_dir": "run_dir",
    "num_threads": "threads",
    "workers": "threads",
    "num_workers": "threads",
    "memory": "host_memory",
    "val": "validation",
}


def hint(word: str, candidates: typing.Iterable[str]) -> str:
    """``did you mean "rows"?`` or ``valid: a, b``."""
    names = list(candidates)
    found = nearest(word, names)
    if found:
        return f'did you mean "{found}"?'
    more = f" and {len(names) - _MAX_PROBLEMS} more" if len(names) > _MAX_PROBLEMS else ""
    return "valid: " + ", ".join(names[:_MAX_PROBLEMS]) + more


def nearest(word: str, names: list[str]) -> str | None:
    """The name that was probably meant, or None."""
    folded = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word[:128]).lower().replace("-", "_")
    if _OTHER_WORDS.get(folded) in names:
        return _OTHER_WORDS[folded]
    close = difflib.get_close_matches(folded, [name.lower() for name in names], n=1, cutoff=0.6)
    return next((name for name in names if close and name.lower() == close[0]), None)


def path_text(location: Location) -> str:
    """``sources[2].shuffle.records``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def explain(error: ValidationError, model: type[BaseModel], origin: Origin) -> str:
    """All problems of one validation, one line each."""
    problems = [_problem(details, model, origin) for details in error.errors(include_url=False)]
    shown = problems[:_MAX_PROBLEMS]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more")
    if len(shown) == 1:
        return f"{origin.name}: {shown[0]}"
    return f"{origin.name}: {len(problems)} problems\n" + "\n".join(f"  {problem}" for problem in shown)


def _problem(details: Any, model: type[BaseModel], origin: Origin) -> str:
    location = tuple(part for part in details["loc"] if part != "[key]")
    message = _message(details, model, location)
    # A rule that joins several keys begins its message with the path of the key to change, from its section.
    inner = re.match(r"@([\w.\[\]]+): ", message)
    if inner:
        message = message[inner.end() :]
        location += tuple(int(p) if p.isdigit() else p for p in re.findall(r"\w+", inner[1]))
    line = next((origin.lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in origin.lines), None)
    where = path_text(location) + (f" (line {line})" if line else "")
    return f"{where}: {message}" if where else message


def _message(details: Any, model: type[BaseModel], location: Location) -> str:
    kind, context, found = details["type"], details.get("ctx") or {}, _show(details["input"])
    if kind == "extra_forbidden":
        owner = model_at(model, location[:-1])
        return "unknown key; " + hint(str(location[-1]), owner.model_fields if owner else [])
    if kind == "missing":
        owner = model_at(model, location[:-1])
        name = str(location[-1])
        field = owner.model_fields.get(name) if owner else None
        return "missing; write e.g. " + (f"{name}: {field.examples[0]}" if field and field.examples else f"{name}: ...")
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context["expected"]))
        return f"found {found}; {hint(str(details['input']), choices)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"found {found}, expected keys and values"
    if kind == "list_type":
        return f"found {found}, expected a list"
    if kind == "string_type":
        return f"found {found}, expected text; put it in quotes"
    if kind == "string_pattern_mismatch":
        return f"found {found}, expected 1 to 128 letters, digits, '_', '.' or '-'"
    if kind == "bool_type":
        return f"found {found}, expected true or false"
    return f"found {found}; {details['msg']}"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return f"keys and values ({len(value)})"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    if value is None:
        return "nothing"
    return text if len(text) <= 80 else text[:80] + "..."


def model_at(model: type[BaseModel], location: Location) -> type[BaseModel] | None:
    """The section that a location lies in, or None if it is inside a plain value."""
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        if not (isinstance(current, type) and issubclass(current, BaseModel)) or part not in current.model_fields:
            return None
        current = _section_of(current.model_fields[part].annotation)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _section_of(annotation: Any) -> Any:
    """``Shuffle`` out of ``Shuffle``, ``Shuffle | None``, ``list[Shuffle]``."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, list, typing.Annotated):
        for argument in typing.get_args(annotation):
            inner = _section_of(argument)
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                return inner
        return None
    return annotation
