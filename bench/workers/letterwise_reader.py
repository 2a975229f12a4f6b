"""Ours from inside: the reader alone, in other manners and sizes, and the parts of its forwards timed alone.

A case names a measure, and the measure's own numbers. The model is loaded and warmed as the service does it; only this
process's copy of the settings is ever changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from letterwise_service.config import EngineConfig
from letterwise_service.engine.reading import packing
from letterwise_service.engine.reading import reader as reading
from letterwise_service.engine.reading.probe import drain
from letterwise_service.engine.reading.reader import Reader, Work
from letterwise_service.engine.reading.views import Cache
from letterwise_service.engine.warm import warm

from . import parts, products
from .lines import Case, clocked, serve


class _Measures:
    def __init__(self, served: Any) -> None:
        self._served = served
        self._reader: Reader = served.reader

    def answer(self, case: Case) -> dict[str, Any]:
        measure: Callable[[Case], dict[str, Any]] = getattr(self, case["measure"])
        return measure(case)

    def tails(self, case: Case) -> dict[str, Any]:
        """Seconds of the tails over a kept prefix, at most `rows_limit` of them in a forward."""
        reader = self._reader
        cache = self._prefix(reader, case)
        if "rows_limit" in case:
            reader = Reader(reader.model, replace(reader.manner, rows_limit=case["rows_limit"]), reader._streams)
        return self._read(reader, cache, case)

    def sizes(self, case: Case) -> dict[str, Any]:
        """Prefix, tails and the longest step when a forward carries at most `forward_tokens`."""
        before = packing.FORWARD_TOKENS
        _set_forward_tokens(case["forward_tokens"])
        try:
            steps: list[float] = []
            prefill, work = self._reader.prefill(case["prefix"], Work()), Work()
            with clocked() as taken:
                cache = drain(_clocked_steps(prefill, steps))
            reads = self._reader.read(case["prefix"], cache, case["tails"], work)
            with clocked() as tails:
                drain(_clocked_steps(reads, steps))
        finally:
            _set_forward_tokens(before)
        return {
            "prefix_seconds": taken[0],
            "tails_seconds": tails[0],
            "longest_seconds": max(steps),
            "forwards": work.forwards,
        }

    def gemm(self, case: Case) -> dict[str, Any]:
        """Seconds of the products of a decision alone: the same shapes and weights, on the reader's streams."""
        units = products.of_decision(self._reader, len(case["prefix"]), case["tails"], kept=case["kept"])
        steps = products.prepared(self._reader, units)
        with clocked() as taken:
            products.run(steps)
        return {"seconds": taken[0]}

    def profile(self, case: Case) -> dict[str, Any]:
        """Milliseconds of one forward of `rows` tails of `width` tokens, and of each of its parts alone."""
        cache = self._prefix(self._reader, case)
        return {"milliseconds": parts.measure(self._reader, cache, case["rows"], case["width"])}

    def _prefix(self, reader: Reader, case: Case) -> Cache:
        cache: Cache = drain(reader.prefill(case["prefix"], Work()))
        return cache

    def _read(self, reader: Reader, cache: Cache, case: Case) -> dict[str, Any]:
        work = Work()
        with clocked() as taken:
            done = [one for step in reader.read(case["prefix"], cache, case["tails"], work) for one in step]
        letters = [list(one.letters) for one in sorted(done, key=lambda one: one.index)]
        return {"seconds": taken[0], "letters": letters, "forwards": work.forwards}


def _set_forward_tokens(size: int) -> None:
    """In every module that this process reads it from."""
    for module in (packing, reading):
        module.FORWARD_TOKENS = size  # type: ignore[attr-defined]


def _clocked_steps(steps: Any, seconds: list[float]) -> Any:
    """The same steps, the seconds of each into `seconds`; returns what they return."""
    while True:
        with clocked() as taken:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
        seconds.append(taken[0])
        yield step


def load() -> tuple[dict[str, Any], Any]:
    warmed = warm(EngineConfig(prefix_store=False))
    if warmed.served is None:
        raise RuntimeError(str(warmed.info.problem))
    return {"blas": warmed.info.blas, "gflops": warmed.info.blas_gflops}, _Measures(warmed.served).answer


if __name__ == "__main__":
    serve(load)
