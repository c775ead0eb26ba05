"""Checkpoints: one folder `step_XXXXXX`, complete or absent, without pickle.

    step_000120/
      model.safetensors       parameters by name
      optimizer.safetensors   "<parameter>/<slot>" and "rng/torch"
      train.safetensors       the trainer's own tensors (token counts)
      loader.json             the loader's state
      meta.json               version, step, settings, and the size and CRC-32 of every other file

A checkpoint is written into a hidden temporary folder, made durable, and renamed: `kill -9` at any moment
leaves either the old checkpoints or the old ones and the new one. Reading checks every size and sum.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

FORMAT_VERSION = 1
_NAME = re.compile(r"^step_(\d{6,})$")
_TEMPORARY = re.compile(r"^\.tmp-step_\d{6,}-\d+$")
_TENSOR_FILES = ("model", "optimizer", "train")
_JSON_LIMIT_BYTES = 256 << 20


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or of another model; the message says which file and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything of one checkpoint, tensors on the CPU.

    Attributes:
        step: optimizer steps done.
        model, optimizer, train: tensors by name.
        loader: the loader's state (JSON values).
        meta: settings and figures (JSON values).
    """

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    train: dict[str, Tensor]
    loader: dict[str, Any]
    meta: dict[str, Any]


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lives."""
    return folder / f"step_{step:06d}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of all checkpoint folders, oldest first; nothing is opened."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), path) for path in folder.iterdir() if (m := _NAME.match(path.name)) and path.is_dir()]
    return sorted(found)


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes a checkpoint, durable when this returns, and removes all but the newest `keep`.

    Leftovers of writers that were killed are removed too. One writer a folder.

    Raises:
        OSError: the disk is full or refuses; the older checkpoints are as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if _TEMPORARY.match(path.name):
            shutil.rmtree(path)
    final = checkpoint_path(folder, checkpoint.step)
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    temporary.mkdir()
    try:
        files: dict[str, dict[str, int]] = {}
        for name in _TENSOR_FILES:
            tensors = {key: value.contiguous() for key, value in getattr(checkpoint, name).items()}
            _write(temporary / f"{name}.safetensors", safetensors.torch.save(tensors), files)
        _write(temporary / "loader.json", _json_bytes(checkpoint.loader), files)
        meta = {
            **checkpoint.meta,
            "format": "widestream-checkpoint",
            "version": FORMAT_VERSION,
            "step": checkpoint.step,
            "files": files,
        }
        _write(temporary / "meta.json", _json_bytes(meta), {})
        _sync_folder(temporary)
        if final.exists():  # the same step again, after a resume from an older checkpoint
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_folder(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for _, path in list_checkpoints(folder)[:-keep]:
        if path != final:
            shutil.rmtree(path)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads and checks one checkpoint folder.

    Raises:
        CheckpointError: it is not a whole, undamaged checkpoint of a version this code reads.
    """
    meta = _read_meta(path)
    contents: dict[str, bytes] = {}
    for name, expected in meta["files"].items():
        data = _read(path / name)
        if len(data) != expected["bytes"] or zlib.crc32(data) != expected["crc32"]:
            raise CheckpointError(
                f"checkpoint file {path / name} is damaged: {len(data)} bytes with CRC-32 "
                f"{zlib.crc32(data):08x}; meta.json says {expected['bytes']} bytes, {expected['crc32']:08x}. "
                "Use another checkpoint of the run"
            )
        contents[name] = data
    tensors: list[dict[str, Tensor]] = []
    for name in _TENSOR_FILES:
        try:
            tensors.append(safetensors.torch.load(contents[f"{name}.safetensors"]))
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"checkpoint file {path / name}.safetensors: {error}") from error
    model, optimizer, train = tensors
    loader = _parse(path / "loader.json", contents["loader.json"])
    return Checkpoint(meta["step"], model, optimizer, train, loader, meta)


def load_latest(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint below `folder`; None where there is none at all.

    Damaged ones are skipped, each with a message.

    Raises:
        CheckpointError: there are checkpoints, but none is whole: nothing starts from zero unasked.
    """
    found = list_checkpoints(folder)
    problem = ""
    for _, path in reversed(found):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            problem = str(error)
            report(f"skipping a checkpoint: {error}")
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoint(s) in {folder} is whole; bring one back, or remove them all to start "
            f"from the beginning (the oldest: {problem})"
        )
    return None


def check_tensors(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str, where: str = "checkpoint"
) -> None:
    """Raises CheckpointError unless both have the same names, shapes and dtypes."""
    missing = sorted(set(expected) - set(found))
    surplus = sorted(set(found) - set(expected))
    if missing or surplus:
        parts = [
            f"{len(names)} {verb} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
            for names, verb in ((missing, "missing"), (surplus, "not expected"))
            if names
        ]
        raise CheckpointError(
            f"the {where}'s {what} tensors do not belong to this model: {'; '.join(parts)}. "
            "The model: section must be that of the run that wrote it"
        )
    for name, tensor in expected.items():
        other = found[name]
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            raise CheckpointError(
                f"the {where}'s {what} tensor {name} is {list(other.shape)} {other.dtype}; this model needs "
                f"{list(tensor.shape)} {tensor.dtype}. The model: section must be that of the writing run"
            )


def _read_meta(path: Path) -> dict[str, Any]:
    meta = _parse(path / "meta.json", _read(path / "meta.json"))
    problem = None
    files = meta.get("files")
    if meta.get("format") != "widestream-checkpoint":
        problem = "it is not a checkpoint's"
    elif meta.get("version") != FORMAT_VERSION:
        problem = f"version {meta.get('version')!r}; this Widestream reads version {FORMAT_VERSION}"
    elif not isinstance(meta.get("step"), int) or not isinstance(files, dict):
        problem = "step or files is missing"
    else:
        wanted = {f"{name}.safetensors" for name in _TENSOR_FILES} | {"loader.json"}
        whole = all(
            isinstance(entry, dict) and all(isinstance(entry.get(key), int) for key in ("bytes", "crc32"))
            for entry in files.values()
        )
        if set(files) != wanted or not whole:
            problem = f"it lists the files {sorted(files)}; a checkpoint has {sorted(wanted)}"
    if problem:
        raise CheckpointError(f"checkpoint file {path / 'meta.json'}: {problem}")
    return meta


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint file {path} cannot be read: {error.strerror}") from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    if len(data) > _JSON_LIMIT_BYTES:
        raise CheckpointError(f"checkpoint file {path} has {len(data)} bytes; the limit is {_JSON_LIMIT_BYTES}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"checkpoint file {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"checkpoint file {path} holds a {type(value).__name__}, not an object")
    return value


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def _write(path: Path, data: bytes, files: dict[str, dict[str, int]]) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    files[path.name] = {"bytes": len(data), "crc32": zlib.crc32(data)}


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
