"""mlx-lm itself on the same float32 weights, with its stock operations and the BLAS that we load for ours.

`naive`: each question's whole prompt through `generate_step`, which reads no logits but the last. `prefix`: the
prefix once, then each tail on a copy of its cache, as a careful user would write it. Which BLAS threads and which
prefill step serve it best is tried first, and said.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterable, Sequence
from typing import Any

from letterwise_service.engine import prepared
from letterwise_service.engine.backend import caches, mx, open_backend
from letterwise_service.engine.models.loading import DEMO, load

from mlx_lm.generate import generate_step  # isort: skip - backend first

from .lines import Case, clocked, serve

_THREADS = (1, 2)
_CAREFUL_STEP = 128
_TRIAL_TOKENS = 700
_TRIALS = 2


class _Model:
    def __init__(self) -> None:
        open_backend(1)
        self.model = load(DEMO).model
        self.step = 2048  # mlx-lm's default
        self.threads = 1
        self._cache: Any = None

    def last_logits(self, ids: Sequence[int], cache: Any) -> Any:
        """Logits (V,) after `ids`. A processor takes them: `max_tokens=0` computes no token past the prompt."""
        seen: list[Any] = []

        def keep(_: Any, logits: Any) -> Any:
            seen.append(logits)
            return logits

        prompt: Any = mx.array(list(ids))
        for _ in generate_step(
            prompt,
            self.model,
            max_tokens=0,
            prompt_cache=cache,
            logits_processors=[keep],
            prefill_step_size=self.step,
        ):
            pass
        return seen[0][0]

    def naive(self, case: Case) -> dict[str, Any]:
        """`marks`: the seconds after each question, so that one run of 20 is also one of 5 and one of 1."""
        letters, marks = [], []
        started = time.perf_counter()
        for tail in case["tails"]:
            logits = self.last_logits([*case["prefix"], *tail], caches.make_prompt_cache(self.model))
            letters.append(_letters(logits, case["letter_ids"]))
            marks.append(time.perf_counter() - started)
        return {"seconds": marks[-1], "marks": marks, "letters": letters}

    def prefix(self, case: Case) -> dict[str, Any]:
        with clocked() as taken:
            if not case["kept"]:
                self._cache = self._prefilled(case["prefix"])
            letters = [
                _letters(self.last_logits(tail, copy.deepcopy(self._cache)), case["letter_ids"])
                for tail in case["tails"]
            ]
        return {"seconds": taken[0], "letters": letters}

    def _prefilled(self, ids: Sequence[int]) -> Any:
        cache = caches.make_prompt_cache(self.model)
        for start in range(0, len(ids), self.step):
            self.model(mx.array([list(ids[start : start + self.step])]), cache=cache)
            mx.eval([layer.state for layer in cache])
        return cache

    def try_settings(self, steps: Iterable[int]) -> dict[str, float]:
        """The fastest of threads and prefill steps on a prompt of 700 tokens, taken from now on; all their seconds."""
        seconds: dict[tuple[int, int], float] = {}
        for self.step in steps:
            for self.threads in _THREADS:
                prepared.blas.use_threads(self.threads)
                seconds[self.step, self.threads] = min(self._trial() for _ in range(_TRIALS))
        self.step, self.threads = min(seconds, key=lambda setting: seconds[setting])
        prepared.blas.use_threads(self.threads)
        return {f"step {step}, {threads} BLAS threads": value for (step, threads), value in seconds.items()}

    def _trial(self) -> float:
        with clocked() as taken:
            self._prefilled([index % 997 + 1000 for index in range(_TRIAL_TOKENS)])
        return taken[0]


def _letters(logits: Any, letter_ids: Sequence[int]) -> list[float]:
    return list(logits[mx.array(list(letter_ids))].astype(mx.float32).tolist())


def main(manner: str) -> tuple[dict[str, Any], Any]:
    model = _Model()
    tried = model.try_settings((model.step,) if manner == "naive" else (model.step, _CAREFUL_STEP))
    about = {"tried": tried, "threads": model.threads, "step": model.step}
    return about, model.naive if manner == "naive" else model.prefix


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("manner", choices=("naive", "prefix"))
    chosen = parser.parse_args().manner
    serve(lambda: main(chosen))
