"""llama.cpp at its best: the prefix decoded once, its sequence copied to one per question, all tails in one batch.

Only the tails' last tokens ask for logits, of which the 52 letters are read. Two threads; the physical batch size and
flash attention are tried first, and the fastest taken. Runs in the peer's own environment: standard library and
llama-cpp-python.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import llama_cpp as llama

from .lines import Case, clocked, serve

_THREADS = 2
_CONTEXT_TOKENS = 4096
_SEQUENCES = 24
_BATCH_TOKENS = 2048
_UBATCHES = (128, 512)
_SILENT = llama.llama_log_callback(lambda level, text, data: None)
_FLASH = (0, 1)  # enum llama_flash_attn_type: disabled, enabled


class _Context:
    """One context over the model; sequence 0 is the prefix, question i is sequence i + 1."""

    def __init__(self, model: Any, ubatch: int, flash: int) -> None:
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified = _CONTEXT_TOKENS, _SEQUENCES, True
        settings.n_batch, settings.n_ubatch = _BATCH_TOKENS, ubatch
        settings.n_threads = settings.n_threads_batch = _THREADS
        settings.flash_attn_type, settings.no_perf = flash, True
        self._context = llama.llama_init_from_model(model, settings)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._memory = llama.llama_get_memory(self._context)
        self._batch = llama.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self._prefix_tokens = 0

    def close(self) -> None:
        llama.llama_batch_free(self._batch)
        llama.llama_free(self._context)

    def answer(self, case: Case) -> dict[str, Any]:
        with clocked() as taken:
            if not case["kept"]:
                self._read_prefix(case["prefix"])
            letters = self._read_tails(case["tails"], case["letter_ids"])
        return {"seconds": taken[0], "letters": letters}

    def _read_prefix(self, ids: Sequence[int]) -> None:
        llama.llama_memory_clear(self._memory, False)
        for start in range(0, len(ids), _BATCH_TOKENS):
            self._batch.n_tokens = 0
            for position, token in enumerate(ids[start : start + _BATCH_TOKENS], start):
                self._add(token, position, 0, wanted=False)
            self._decode()
        self._prefix_tokens = len(ids)

    def _read_tails(self, tails: Sequence[Sequence[int]], letter_ids: Sequence[int]) -> list[list[float]]:
        self._batch.n_tokens, last = 0, []
        for sequence, tail in enumerate(tails, 1):
            llama.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
            for offset, token in enumerate(tail):
                self._add(token, self._prefix_tokens + offset, sequence, wanted=offset == len(tail) - 1)
            last.append(self._batch.n_tokens - 1)
        self._decode()
        rows = [llama.llama_get_logits_ith(self._context, index) for index in last]
        letters = [[row[token] for token in letter_ids] for row in rows]
        for sequence in range(1, len(tails) + 1):
            llama.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return letters

    def _add(self, token: int, position: int, sequence: int, *, wanted: bool) -> None:
        batch, index = self._batch, self._batch.n_tokens
        batch.token[index], batch.pos[index] = token, position
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.logits[index] = wanted
        batch.n_tokens += 1

    def _decode(self) -> None:
        if (status := llama.llama_decode(self._context, self._batch)) != 0:
            raise RuntimeError(f"llama_decode gave {status}")


def load(path: str) -> tuple[dict[str, Any], Any]:
    llama.llama_log_set(_SILENT, ctypes.c_void_p())
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp did not load the model")
    tried = {}
    for ubatch, flash in itertools.product(_UBATCHES, _FLASH):
        tried[ubatch, flash] = _trial(model, ubatch, flash)
    ubatch, flash = min(tried, key=lambda setting: tried[setting])
    context = _Context(model, ubatch, flash)
    about = {
        "version": llama.__version__,
        "ubatch": ubatch,
        "flash": bool(flash),
        "tried": {f"ubatch {u}, flash attention {'on' if f else 'off'}": s for (u, f), s in tried.items()},
    }
    return about, context.answer


def _trial(model: Any, ubatch: int, flash: int) -> float:
    """Seconds of a decision of 6 questions on 256 tokens."""
    context = _Context(model, ubatch, flash)
    ids = [1000 + index % 997 for index in range(256)]
    seconds = context.answer({"kept": False, "prefix": ids, "tails": [ids[:64]] * 6, "letter_ids": [1000]})["seconds"]
    context.close()
    return float(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    chosen = parser.parse_args().model
    serve(lambda: load(chosen))
