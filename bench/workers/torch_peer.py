"""transformers and torch at their best: the prefix in a cache once, that cache spread over the tails of a batch.

Tails are padded on the right, which no earlier position sees; hidden states are multiplied by the head's 52 letter rows
in float32 and no others. Two threads; how many tails share a batch is tried first. Runs in the peer's own environment:
torch and transformers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

from .lines import Case, clocked, serve

_THREADS = 2
_BATCHES = (4, 20)


class _Model:
    def __init__(self, folder: str, dtype: str) -> None:
        torch.set_num_threads(_THREADS)
        whole = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
        whole.eval()
        self._trunk = whole.model
        self._head = whole.lm_head.weight.detach().float()
        self._prefix: list[tuple[Any, Any]] = []
        self.batch = _BATCHES[0]

    @torch.inference_mode()
    def answer(self, case: Case) -> dict[str, Any]:
        with clocked() as taken:
            if not case["kept"]:
                self._prefix = self._read_prefix(case["prefix"])
            letters = self._read_tails(case["tails"], case["letter_ids"])
        return {"seconds": taken[0], "letters": letters}

    def _read_prefix(self, ids: Sequence[int]) -> list[tuple[Any, Any]]:
        """Keys and values (1, H, P, D) of each layer."""
        cache = DynamicCache()
        self._trunk(input_ids=torch.tensor([list(ids)]), past_key_values=cache, use_cache=True)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _read_tails(self, tails: Sequence[Sequence[int]], letter_ids: Sequence[int]) -> list[list[float]]:
        """The tails by length, a batch at a time, so that little is padded."""
        order = sorted(range(len(tails)), key=lambda index: -len(tails[index]))
        rows = self._head[list(letter_ids)]
        letters: dict[int, list[float]] = {}
        for start in range(0, len(order), self.batch):
            chosen = order[start : start + self.batch]
            hidden = self._last_hidden([tails[index] for index in chosen])
            letters.update(zip(chosen, (hidden.float() @ rows.T).tolist(), strict=True))
        return [letters[index] for index in range(len(tails))]

    def _last_hidden(self, tails: Sequence[Sequence[int]]) -> Any:
        width, start = len(tails[0]), self._prefix[0][0].shape[2]
        ids = torch.tensor([[*tail, *([0] * (width - len(tail)))] for tail in tails])
        hidden = self._trunk(
            input_ids=ids,
            past_key_values=self._spread(len(tails)),
            position_ids=torch.arange(start, start + width)[None].expand(len(tails), -1),
            use_cache=True,
        ).last_hidden_state
        return hidden[torch.arange(len(tails)), torch.tensor([len(tail) - 1 for tail in tails])]

    def _spread(self, rows: int) -> DynamicCache:
        """The prefix for `rows` rows, not copied until a layer joins a row's own keys to it."""
        cache = DynamicCache()
        for index, (keys, values) in enumerate(self._prefix):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), index)
        return cache

    def try_batches(self) -> dict[str, float]:
        """The faster number of tails in a batch, taken from now on; the seconds of each."""
        ids = [1000 + index % 997 for index in range(700)]
        case = {"kept": False, "prefix": ids, "tails": [ids[:64]] * 20, "letter_ids": [1000]}
        self.answer(case)
        seconds = {}
        for self.batch in _BATCHES:
            seconds[self.batch] = float(self.answer({**case, "kept": True})["seconds"])
        self.batch = min(seconds, key=lambda batch: seconds[batch])
        return {f"{batch} tails in a batch": value for batch, value in seconds.items()}


def load(folder: str, dtype: str) -> tuple[dict[str, Any], Any]:
    model = _Model(folder, dtype)
    tried = model.try_batches()
    about = {"version": torch.__version__, "transformers": transformers.__version__, "tried": tried}
    return {**about, "batch": model.batch}, model.answer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("dtype", choices=("float32", "bfloat16"))
    chosen = parser.parse_args()
    serve(lambda: load(chosen.folder, chosen.dtype))
