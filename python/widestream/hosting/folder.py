"""The private folder where the ranks of a node and their host meet: socket, lock, log."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from widestream.errors import InvalidArgumentError, UnavailableError

# A Unix socket's path has at most 107 bytes on Linux, so the folder is not in the run folder.
_MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True)
class HostFolder:
    """Paths of one node's meeting place; ``root`` holds those of all jobs of this user.

    The log lies in the run folder where there is one, and so outlives the host.
    """

    root: Path
    path: Path
    log: Path

    @property
    def socket(self) -> Path:
        return self.path / "host.sock"


def host_folder(run_dir: str, launch_id: str, node: int) -> HostFolder:
    """Where the host of a run's node is found: the same for all ranks that name the same run folder.

    The job is not part of the name, so that ranks or jobs that disagree meet, and are told so. A job without a run
    folder is known by its launch alone.
    """
    what = f"run\0{os.path.realpath(run_dir)}" if run_dir else f"launch\0{launch_id}"
    name = hashlib.sha256(f"{what}\0{node}".encode()).hexdigest()[:24]
    root = Path(os.environ.get("WIDESTREAM_RUNTIME_DIR") or Path(tempfile.gettempdir()) / f"widestream-{os.getuid()}")
    log = Path(run_dir) / "logs" / f"host-{node}.log" if run_dir else root / name / "host.log"
    folder = HostFolder(root, root / name, log)
    if len(os.fsencode(folder.socket)) > _MAX_SOCKET_PATH_BYTES:
        raise InvalidArgumentError(
            f"{folder.socket}: {len(os.fsencode(folder.socket))} bytes, a socket's path has at most "
            f"{_MAX_SOCKET_PATH_BYTES}; set WIDESTREAM_RUNTIME_DIR to a shorter folder"
        )
    return folder


def make_private(path: Path) -> None:
    """Makes a folder that nobody else can enter, or checks that it is one."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700, parents=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidArgumentError(
            f"{path} must be a folder of yours that nobody else can enter (mode 0700); found mode "
            f"{stat.S_IMODE(found.st_mode):o} of user {found.st_uid}: remove it, or set WIDESTREAM_RUNTIME_DIR"
        )


class FolderLock:
    """Held by the host process for as long as it lives; freed by the kernel however it ends."""

    def __init__(self, root: Path, name: str) -> None:
        # Beside the folder: the lock outlives what is removed under it.
        self._path = root / f"{name}.lock"
        make_private(root)
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise UnavailableError(f"{root / name} is served by another host process") from None
            # The file may have been removed by its holder between the open and the lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                    return
            os.close(self._descriptor)

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


def is_held(root: Path, name: str) -> bool:
    """Whether a host process holds the lock."""
    try:
        FolderLock(root, name).release()
    except UnavailableError:
        return True
    return False


def remove_leftovers(root: Path) -> list[Path]:
    """Removes the folders of hosts that were killed: those whose lock nobody holds. Returns what was removed."""
    removed = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.suffix == ".lock" or not path.is_dir() or path.is_symlink():
            continue
        try:
            lock = FolderLock(root, path.name)
        except UnavailableError:
            continue
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
        removed.append(path)
    return removed
