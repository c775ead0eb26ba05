"""The one place that loads the C++ engine: Python learns of ``_core`` here and nowhere else."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path
from types import ModuleType

import widestream
from widestream.errors import NotFoundError


@functools.cache
def core() -> ModuleType:
    """The extension module, told where its Parquet glue for the installed pyarrow is."""
    from widestream import _core

    glue = _find_glue()
    if not (glue.parent.parent / "pyarrow").is_dir():
        _preload_arrow()
    _core.set_arrow_glue(str(glue))
    return _core


def _preload_arrow() -> None:
    """Loads libarrow and libparquet where the glue, which looks beside its own package, would not find them."""
    import ctypes
    import importlib.util

    spec = importlib.util.find_spec("pyarrow")
    if spec is None or spec.origin is None:
        return
    for pattern in ("libarrow.so.*", "libparquet.so.*"):
        for library in sorted(Path(spec.origin).parent.glob(pattern)):
            ctypes.CDLL(str(library))


def _find_glue() -> Path:
    """The glue library built for the installed pyarrow's minor version.

    A library that is not there is reported by the first Parquet source that needs it, not here: JSON Lines jobs do
    without Arrow.
    """
    try:
        major, minor = importlib.metadata.version("pyarrow").split(".")[:2]
    except importlib.metadata.PackageNotFoundError as error:
        raise NotFoundError("pyarrow is not installed; pip install 'pyarrow==25.0.*'") from error
    name = f"libwidestream_arrow_{major}_{minor}.so"
    for folder in widestream.__path__:
        if (Path(folder) / name).exists():
            return Path(folder) / name
    return Path(widestream.__path__[0]) / name
