"""The door to mlx: which BLAS is loaded, in fresh interpreters, since a process imports mlx once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine import backend, blas
from tests.tiny import tiny_folder

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the preload is for Linux processors")

_REPORT = """
import dataclasses, json, logging, os, resource, sys
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
{before}
from letterwise_service.engine.backend import mx, nn, open_backend
first, again = open_backend(), open_backend()
print(json.dumps({{
    "backend": dataclasses.asdict(first),
    "same": first is again,
    "computes": float((mx.ones((3, 3)) @ mx.ones((3, 3))).sum()),
    "compiles": float(mx.compile(lambda x: mx.exp(x) * 0 + x * 2)(mx.array(2.0))),
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
    "environment": {{k: v for k, v in os.environ.items() if k.startswith(("MLX_", "OPENBLAS"))}},
}}))
"""


def report(before: str = "", **environment: str) -> tuple[dict[str, Any], str]:
    """What a fresh interpreter finds, and its log."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MLX_", "OPENBLAS"))}
    done = subprocess.run(
        [sys.executable, "-c", _REPORT.format(before=before)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@linux
def test_backend_loads_openblas_before_mlx() -> None:
    """A fresh process computes with OpenBLAS, with one thread and wide graphs, and says so."""
    found, log = report()
    assert found["backend"]["device"] == "cpu"
    assert found["backend"]["blas"].startswith("openblas ")
    assert found["backend"]["gflops"] > backend._SLOW_GFLOPS
    assert found["environment"]["OPENBLAS_NUM_THREADS"] == "1"
    assert found["environment"]["MLX_BFS_MAX_WIDTH"] == "100"
    assert found["same"]
    assert found["computes"] == 27.0
    assert "WARNING" not in log


@linux
def test_backend_keeps_what_the_user_set() -> None:
    """Settings from the environment are not overwritten."""
    found, _ = report(OPENBLAS_NUM_THREADS="2", MLX_BFS_MAX_WIDTH="7")
    assert found["environment"] == {"OPENBLAS_NUM_THREADS": "2", "MLX_BFS_MAX_WIDTH": "7"}


@linux
def test_backend_after_mlx_says_that_it_came_too_late() -> None:
    """With mlx imported first there is no fast BLAS; the log says why and what to install."""
    found, log = report(before="import mlx.core")
    assert found["backend"]["blas"] == "none"
    assert found["backend"]["gflops"] < backend._SLOW_GFLOPS
    assert "WARNING" in log
    assert "mlx was imported before" in log


_START = """
import sys
import mlx.core
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
engine = Engine(EngineConfig(model=sys.argv[1], require_blas=sys.argv[2] == "on", chat_rows=0))
engine.start()
try:
    print("serves", engine.wait_ready(120).blas)
except Exception as error:
    print(f"{type(error).__name__}: {error}")
engine.close()
"""


@linux
@pytest.mark.parametrize(("required", "told"), [("on", "LoadFailed: no fast BLAS is in use"), ("off", "serves none")])
def test_engine_without_a_fast_blas_starts_only_if_it_may(required: str, told: str, tmp_path: Path) -> None:
    """One sentence says what to install, and how to start all the same."""
    command = [sys.executable, "-c", _START, str(tiny_folder(tmp_path, "llama")), required]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(told)
    assert ("cmeel-openblas" in done.stdout and "--require-blas off" in done.stdout) == (required == "on")


@linux
def test_backend_without_a_compiler_computes_all_the_same(tmp_path: Path) -> None:
    """Where there is no g++, mlx's compiled functions run uncompiled."""
    found, _ = report(PATH=str(tmp_path))
    assert found["environment"]["MLX_DISABLE_COMPILE"] == "1"
    assert found["compiles"] == 4.0


@linux
def test_backend_import_leaves_the_limit_on_open_files() -> None:
    """mlx-lm lowers the process's limit when imported, and fails below 4096; through this door neither happens."""
    found, _ = report(before="resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 3000))")
    assert found["limits"] == [1024, 3000]


def test_measure_gflops_is_a_positive_speed() -> None:
    """The probe ends and gives a speed."""
    assert backend.measure_gflops(0.01) > 0.1


def test_open_backend_is_one_for_the_process() -> None:
    """Opening twice gives the same backend."""
    assert backend.open_backend() is backend.open_backend()


@linux
def test_blas_renames_the_fortran_runtime_of_mlxs_wheel() -> None:
    """The wheel's copy gets back the name that OpenBLAS asks for; only the name's place in the file changes."""
    (path,) = blas._files_of("mlx-cpu", "libgfortran-")
    image = path.read_bytes()
    edited = blas.with_soname(image, "libgfortran.so.5")
    differing = [at for at, (old, new) in enumerate(zip(image, edited, strict=True)) if old != new]
    assert len(image) == len(edited)
    assert 0 < len(differing) <= 8
    assert differing[-1] - differing[0] < 8
    assert blas.with_soname(edited, "libgfortran.so.5") == edited


@pytest.mark.parametrize("image", [b"", b"not an ELF file at all" * 10, b"\x7fELF\x01\x01" + bytes(200)])
def test_blas_renames_nothing_but_libraries(image: bytes) -> None:
    """Any other file is refused."""
    with pytest.raises(ValueError, match="ELF"):
        blas.with_soname(image, "libgfortran.so.5")


@linux
def test_blas_renames_only_to_a_name_the_library_holds() -> None:
    """A name that its string table lacks cannot be given."""
    (path,) = blas._files_of("mlx-cpu", "libgfortran-")
    with pytest.raises(ValueError, match="never was"):
        blas.with_soname(path.read_bytes(), "libsomething.so.9")


def test_open_backend_keeps_the_threads_it_was_opened_with() -> None:
    """Whoever asks without a number gets the backend as it is, and does not set it back to one thread."""
    try:
        assert backend.open_backend(2).blas_threads == 2
        assert backend.open_backend().blas_threads == 2
    finally:
        assert backend.open_backend(1).blas_threads == 1
