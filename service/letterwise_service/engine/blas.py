"""A fast BLAS for mlx on Linux processors: found, loaded before mlx, and named.

The mlx wheel for Linux links the reference BLAS (2-3 GFLOP/s in float32). A library that exports the same
names and is loaded globally first takes its place. Runs once, in whichever thread imports `backend`; knows
nothing of mlx itself. Everything here is best effort: whatever goes wrong leaves the slow BLAS, never an error.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NONE = "none"
INSTALL = "install it with `pip install cmeel-openblas`, or your system's libopenblas0-pthread"
_SYSTEM_NAMES = ("libopenblas.so.0", "libopenblas.so")
_SYSTEM_FOLDERS = (
    "/usr/lib/{machine}-linux-gnu/openblas-pthread",
    "/usr/lib64",
    "/usr/lib",
)
_FORTRAN = "libgfortran.so.5"


@dataclass(frozen=True)
class Blas:
    """The BLAS in the process: `name` as reported, "none" if there is only mlx's own."""

    name: str

    def use_threads(self, threads: int) -> None:
        """Set how many threads OpenBLAS computes with; nothing happens for another BLAS."""
        setter = _symbol("openblas_set_num_threads")
        if setter is not None:
            setter.argtypes, setter.restype = [ctypes.c_int], None
            setter(threads)


@dataclass(frozen=True)
class Prepared:
    """What was put in place before mlx: `late` when mlx was there already, and keeps the BLAS that it had."""

    blas: Blas
    late: bool


def prepare() -> Prepared:
    """Environment and BLAS for mlx on a Linux processor; nothing elsewhere. Settings of the user's own stay."""
    late = "mlx.core" in sys.modules
    if not sys.platform.startswith("linux"):
        return Prepared(Blas(""), late)
    if late:
        return Prepared(loaded() or Blas(NONE), late)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # with two mlx streams, faster than two BLAS threads
    os.environ.setdefault("MLX_BFS_MAX_WIDTH", "100")  # else two streams' graphs are walked one after the other
    if not shutil.which("g++"):  # mlx compiles fused operations for the processor by calling it
        os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    return Prepared(preload(), late)


def preload() -> Blas:
    """Load OpenBLAS with its names visible to whatever is loaded next, unless some BLAS already is."""
    present = loaded()
    if present is not None:
        return present
    for library, source in _candidates():
        if _load(library):
            return Blas(f"openblas{_openblas_version()} ({source})")
    return Blas(NONE)


def loaded() -> Blas | None:
    """The BLAS whose names the process already sees globally (from `LD_PRELOAD`, say), if there is one."""
    if _symbol("cblas_sgemm") is None:
        return None
    if _symbol("openblas_get_config") is not None:
        return Blas(f"openblas{_openblas_version()} (preloaded)")
    return Blas("preloaded")


def _candidates() -> Iterator[tuple[str, str]]:
    """Libraries to try, best first: the pip package's, then the system's."""
    for path in _files_of("cmeel-openblas", _SYSTEM_NAMES[0]):
        yield str(path), "cmeel"
    for folder in _SYSTEM_FOLDERS:
        yield (
            f"{folder.format(machine=os.uname().machine)}/{_SYSTEM_NAMES[0]}",
            "system",
        )
    for name in _SYSTEM_NAMES:
        yield name, "system"


def _files_of(package: str, *prefixes: str) -> list[Path]:
    """The installed files of a distribution whose names start with a prefix; empty if it is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name in prefixes or file.name.startswith(prefixes)]


def _load(library: str) -> bool:
    if _opens(library):
        return True
    # cmeel's OpenBLAS wants the Fortran runtime, which a plain machine does not have; mlx's wheel carries one.
    return os.path.exists(library) and _lend_fortran_runtime() and _opens(library)


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _lend_fortran_runtime() -> bool:
    """Load the Fortran runtime out of mlx's wheel under the name it had before the wheel renamed it."""
    for quadmath in _files_of("mlx-cpu", "libquadmath-"):
        _opens(str(quadmath))
    for fortran in _files_of("mlx-cpu", "libgfortran-"):
        try:
            image = with_soname(fortran.read_bytes(), _FORTRAN)
            handle = os.memfd_create(_FORTRAN)
            with os.fdopen(handle, "wb", closefd=False) as file:
                file.write(image)
            if _opens(f"/proc/self/fd/{handle}"):
                return True
        except (OSError, ValueError, struct.error):
            continue
    return False


def with_soname(image: bytes, name: str) -> bytes:
    """A 64-bit little-endian ELF library with its DT_SONAME set to `name`, which its string table must hold.

    Layout after the System V ABI, chapters 4 and 5. Raises ValueError when the file is not so.
    """
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    segments = _segments(image)
    entries = _dynamic_entries(image, segments)
    strings, length = (
        _file_offset(segments, entries[5][0]),
        entries[10][0],
    )  # DT_STRTAB, DT_STRSZ
    position = image.find(b"\0" + name.encode() + b"\0", strings, strings + length)
    if position < 0 or 14 not in entries:  # DT_SONAME
        raise ValueError(f"the library never was {name}")
    edited = bytearray(image)
    struct.pack_into("<Q", edited, entries[14][1] + 8, position + 1 - strings)
    return bytes(edited)


def _segments(image: bytes) -> list[tuple[int, ...]]:
    """Program headers: (type, flags, offset, virtual address, physical address, file size, memory size, align)."""
    (start,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    return [struct.unpack_from("<IIQQQQQQ", image, start + size * index) for index in range(count)]


def _dynamic_entries(image: bytes, segments: list[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
    """First entry of each tag of the dynamic section: tag -> (value, where the entry stands in the file)."""
    entries: dict[int, tuple[int, int]] = {}
    for segment in segments:
        if segment[0] == 2:  # PT_DYNAMIC
            for position in range(segment[2], segment[2] + segment[5], 16):
                tag, value = struct.unpack_from("<qQ", image, position)
                entries.setdefault(tag, (value, position))
    if not {5, 10} <= entries.keys():
        raise ValueError("no dynamic string table")
    return entries


def _file_offset(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, start, _, size, *_ in segments:
        if kind == 1 and start <= address < start + size:  # PT_LOAD
            return address - start + offset
    raise ValueError("an address outside every segment")


def _symbol(name: str) -> ctypes._NamedFuncPointer | None:
    try:
        return getattr(ctypes.CDLL(None), name)  # type: ignore[no-any-return]
    except (AttributeError, OSError):
        return None


def _openblas_version() -> str:
    """OpenBLAS's own version with a space before it, or nothing if it does not say."""
    config = _symbol("openblas_get_config")
    if config is None:
        return ""
    config.restype = ctypes.c_char_p
    words = (config() or b"").decode("ascii", "replace").split()
    return f" {words[1]}" if len(words) > 1 else ""
