"""The one door to mlx: what computes, and how fast.

Other modules take `mx`, `nn` and mlx-lm's `caches` from here, so that mlx-lm is always imported first by this one; the
package has put the BLAS in place before. mlx computes only on the engine thread. Knows nothing of models.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as mlx_nn

from . import prepared
from .blas import INSTALL, NONE

_log = logging.getLogger(__name__)
_LINUX = sys.platform.startswith("linux")
_GEMM_WIDTH = 256
_PROBE_SECONDS = 0.05
_PROBE_RUNS = 10  # on a busy machine one run may be interrupted for longer than the probe is to take
_SLOW_GFLOPS = 15.0  # the reference BLAS gives 2-5 on one core, OpenBLAS 60 and more


@contextlib.contextmanager
def _open_file_limit_kept() -> Iterator[None]:
    """Undo mlx-lm's lowering of the process's limit on open files: a server needs its sockets.

    mlx-lm sets soft 2048 and hard 4096 when imported. A hard limit once lowered stays so without root, and the
    call fails where the hard limit is below that; so it is held off rather than repaired.
    """
    import resource

    original = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        yield
    finally:
        resource.setrlimit = original


with _open_file_limit_kept():
    from mlx_lm.generate import BatchGenerator as MlxLmBatchGenerator
    from mlx_lm.models import activations as mlx_lm_activations
    from mlx_lm.models import cache as mlx_lm_caches
    from mlx_lm.models import switch_layers as mlx_lm_experts

# Neither package's Python half is typed whole.
nn: Any = mlx_nn
activations: Any = mlx_lm_activations
caches: Any = mlx_lm_caches
BatchGenerator: Any = MlxLmBatchGenerator
experts: Any = mlx_lm_experts

__all__ = [
    "Backend",
    "BatchGenerator",
    "activations",
    "caches",
    "experts",
    "measure_gflops",
    "mx",
    "nn",
    "open_backend",
]


@dataclass(frozen=True)
class Backend:
    """What computes. `blas` is "none" where only the slow reference one is there, "" on Metal and CUDA.

    `gflops` is the start-up probe of one float32 product, 0 on Metal and CUDA.
    """

    device: str  # cpu, metal or cuda
    blas: str
    gflops: float
    blas_threads: int

    @property
    def computes_float32(self) -> bool:
        """Whether weights are best held as float32: on a processor only those products use the BLAS."""
        return self.device == "cpu"


_opened: list[Backend] = []


def open_backend(blas_threads: int | None = None) -> Backend:
    """The process's backend, probed and reported in the log the first time. Call on the engine thread.

    Without `blas_threads`, as it was opened before, or with one thread.
    """
    if not _opened or blas_threads not in (None, _opened[-1].blas_threads):
        _opened.append(_probe(blas_threads or 1))
    return _opened[-1]


def measure_gflops(seconds: float = _PROBE_SECONDS) -> float:
    """Billions of float32 operations a second in a square matrix product, the best of ten runs or more in `seconds`."""
    left = mx.random.normal((_GEMM_WIDTH, _GEMM_WIDTH))
    right = mx.random.normal((_GEMM_WIDTH, _GEMM_WIDTH))
    mx.eval(left, right, left @ right)
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < _PROBE_RUNS or time.perf_counter() < end:
        runs += 1
        start = time.perf_counter()
        mx.eval(left @ right)
        best = min(best, time.perf_counter() - start)
    return 2 * _GEMM_WIDTH**3 / best / 1e9


def _probe(blas_threads: int) -> Backend:
    device = _device()
    if device != "cpu":
        return Backend(device=device, blas="", gflops=0.0, blas_threads=blas_threads)
    prepared.blas.use_threads(blas_threads)
    backend = Backend(device, prepared.blas.name, measure_gflops(), blas_threads)
    _report(backend)
    return backend


def _device() -> str:
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def _report(backend: Backend) -> None:
    _log.info("mlx on cpu, blas %s, %.0f GFLOP/s in float32", backend.blas, backend.gflops)
    if not _LINUX or backend.gflops >= _SLOW_GFLOPS:
        return
    told = f"float32 products run at {backend.gflops:.1f} GFLOP/s, far below what this machine can do"
    if backend.blas != NONE:
        _log.warning("%s: other work takes the processor, or it is an old one", told)
    else:
        reason = "mlx was imported before it could be loaded" if prepared.late else "OpenBLAS is not there"
        _log.warning("%s: %s; %s", told, reason, INSTALL)
