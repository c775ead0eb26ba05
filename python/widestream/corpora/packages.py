"""Debian packages in a cache folder: downloaded and unpacked, never installed.

`apt-get download` checks what it fetches against the signed package lists; `dpkg-deb -x` unpacks it.
No dependency is pulled in and no maintainer script runs, so no root is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from widestream.corpora.errors import CorporaError

_DOWNLOAD_TIMEOUT_SECONDS = 1800
_UNPACK_TIMEOUT_SECONDS = 600


def require_debian() -> None:
    """Raise CorporaError unless the two programs of a Debian-based system are there."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise CorporaError(
            f"the corpora come out of Debian packages and need a Debian-based system; not found: "
            f"{', '.join(missing)}. The data under examples/quickstart works everywhere; or fetch in a "
            f"container (for example debian:12) and copy the output folder"
        )


class PackageCache:
    """Packages in one folder: `debs/` as downloaded, `tree/PACKAGE/` unpacked.

    For one process at a time. An interrupted download or unpacking leaves nothing under a final name.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.debs, self.trees = self.root / "debs", self.root / "tree"

    def fetch(self, spec: str, progress: Callable[[str], None]) -> str:
        """Make sure that one alternative of `spec` ("a" or "a|b") is unpacked; return its name."""
        package = self.unpacked(spec)
        if package is not None:
            return package
        require_debian()
        names = spec.split("|")
        cached = [name for name in names if self.deb(name) is not None]
        package = (cached or [name for name in names if _apt_offers(name)] or [""])[0]
        if not package:
            raise CorporaError(
                f"apt offers no package {' or '.join(names)}: run `apt-get update` as root first; if that "
                f"does not help, this release does not carry it in its main section"
            )
        deb = self.deb(package)
        if deb is None:
            progress(f"downloading {package}")
            deb = self._download(package)
        progress(f"unpacking {package}")
        self._unpack(package, deb)
        return package

    def _download(self, package: str) -> Path:
        self.debs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.debs) as partial:
            # As root, apt would drop to a user that cannot write here.
            command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package]
            _run(command, Path(partial), _DOWNLOAD_TIMEOUT_SECONDS, "is there a network, and is the mirror up?")
            found = list(Path(partial).glob("*.deb"))
            if len(found) != 1:
                raise CorporaError(f"`apt-get download {package}` left {len(found)} packages instead of one")
            target = self.debs / found[0].name
            _checksum_file(target).write_text(_sha256(found[0]) + "\n", encoding="ascii")
            return found[0].rename(target)

    def _unpack(self, package: str, deb: Path) -> None:
        note = _checksum_file(deb)
        if note.is_file() and note.read_text(encoding="ascii").strip() != _sha256(deb):
            raise CorporaError(f"{deb} changed since it was downloaded; delete it and fetch again")
        self.trees.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self.trees))
        try:
            command = ["dpkg-deb", "-x", str(deb), str(partial)]
            _run(command, self.root, _UNPACK_TIMEOUT_SECONDS, f"if {deb} is damaged, delete it and fetch again")
            partial.chmod(0o755)
            partial.rename(self.trees / package)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def deb(self, package: str) -> Path | None:
        """The newest downloaded file of a package."""
        found = sorted(self.debs.glob(f"{package}_*.deb"), key=os.path.getmtime)
        return found[-1] if found else None

    def version(self, package: str) -> str:
        """The version in the name of the downloaded file, or "unknown"."""
        deb = self.deb(package)
        return urllib.parse.unquote(deb.name.split("_")[1]) if deb else "unknown"

    def unpacked(self, spec: str) -> str | None:
        """The first alternative of `spec` that is unpacked."""
        return next((name for name in spec.split("|") if (self.trees / name).is_dir()), None)

    def files(self, specs: str | Iterable[str], *suffixes: str) -> Iterator[Path]:
        """Regular files with one of the suffixes, in a fixed order; packages not there are skipped."""
        for spec in [specs] if isinstance(specs, str) else specs:
            package = self.unpacked(spec)
            if package is None:
                continue
            for folder, subfolders, names in os.walk(self.trees / package):
                subfolders.sort()
                for path in (Path(folder, name) for name in sorted(names)):
                    if path.as_posix().endswith(suffixes) and path.is_file() and not path.is_symlink():
                        yield path

    def file(self, spec: str, suffix: str) -> Path:
        """The first file whose path ends in `suffix`; raises CorporaError if there is none."""
        path = next(self.files(spec, suffix), None)
        if path is None:
            raise CorporaError(f"package {spec} holds no file named *{suffix}: its layout has changed")
        return path


def _apt_offers(package: str) -> bool:
    command = ["apt-get", "-qq", "--print-uris", "download", package]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _run(command: list[str], cwd: Path, timeout_seconds: int, advice: str) -> None:
    """Run a package tool; on failure raise CorporaError with its last words and the advice."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CorporaError(f"`{shown}` did not end within {timeout_seconds} s; {advice}") from None
    except OSError as error:
        raise CorporaError(f"`{shown}` could not be started: {error}") from error
    if done.returncode != 0:
        words = " | ".join(done.stdout.decode("utf-8", "replace").strip().splitlines()[-4:])
        raise CorporaError(f"`{shown}` failed with code {done.returncode}: {words or 'no message'}; {advice}")


def _checksum_file(deb: Path) -> Path:
    return deb.with_name(deb.name + ".sha256")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
