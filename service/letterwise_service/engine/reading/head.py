"""The last layer: where a hidden state becomes letter scores, and the self-check that picks how.

Engine thread. Two paths, one picked per model by trying: `rows` multiplies the hidden state by the head's letter
rows in float32; `logits` reads the letter columns of whatever the whole model gives, or of what its head gives where an
adapter adds to that by its scale. Knows nothing of prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import mx, nn
from ..models.adapted import unadapted

ROWS, LOGITS = "rows", "logits"
# Every head product has this many rows, unused ones included: products of other shapes may give other bits, and on
# the processor so few rows cost what reading the head costs.
_ROWS_PER_PRODUCT = 16
# A head that computes in 16 bits rounds its scores by up to a 256th part; float32 ones differ by summation order.
_TOLERANCE = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Trunk:
    """A model in two: `body(ids, cache=…)` → hidden states (B, L, D); `head(hidden)` → logits (…, V)."""

    body: Any
    head: Any
    layer: Any  # the linear or embedding layer that `head` multiplies by


@dataclass(frozen=True)
class LetterHead:
    """Scores at answer positions. `path` is "rows" or "logits"; with a trunk, the latter reads its head's columns."""

    path: str
    letter_ids: tuple[int, ...]
    trunk: Trunk | None = None
    rows: Any = None  # (52, D) float32
    bias: Any = None  # (52,) float32

    def forward(self, model: Any, ids: Any, cache: Any) -> Any:
        """What `scores` reads, before the positions are picked: hidden states (B, L, D), or logits (B, L, V)."""
        return model(ids, cache=cache) if self.trunk is None else self.trunk.body(ids, cache=cache)

    def scores(self, last: Any) -> tuple[Any, Any]:
        """From the last positions (N, D or V): letter scores (N, 52) and log of the full sum of exponentials (N,)."""
        if self.trunk is None:
            logits = last.astype(mx.float32)
            return logits[:, mx.array(self.letter_ids)], mx.logsumexp(logits, axis=-1)
        blocks = [
            self._block(last[start : start + _ROWS_PER_PRODUCT]) for start in range(0, len(last), _ROWS_PER_PRODUCT)
        ]
        letters, totals = (mx.concatenate(list(parts)) for parts in zip(*blocks, strict=True))
        return letters, totals

    def _block(self, last: Any) -> tuple[Any, Any]:
        """Scores and totals of up to 16 positions, with as many unused rows as make it 16."""
        assert self.trunk is not None
        used = len(last)
        last = mx.pad(last, [(0, _ROWS_PER_PRODUCT - used), (0, 0)])
        logits = self.trunk.head(last).astype(mx.float32)
        # the sum's exp is one number at a time in mlx, and costs more than a row's product
        return self._letters(last, logits)[:used], mx.logsumexp(logits[:used], axis=-1)

    def _letters(self, last: Any, logits: Any) -> Any:
        if self.rows is None:
            return logits[:, mx.array(self.letter_ids)]
        letters = last.astype(mx.float32) @ self.rows.T
        return letters if self.bias is None else letters + self.bias


def pick_head(model: Any, letter_ids: Sequence[int], probe: Any) -> LetterHead:
    """The self-check: `rows` only when trunk and head give the whole model's logits and the rows its letter scores.

    probe: ids (1, L).
    """
    letters = tuple(letter_ids)
    whole = model(probe)[:, -1].astype(mx.float32)
    for trunk in _trunks(model):
        found = _try_rows(trunk, letters, probe, whole)
        if found is not None:
            return found
    return LetterHead(LOGITS, letters)


def _try_rows(trunk: Trunk, letters: tuple[int, ...], probe: Any, whole: Any) -> LetterHead | None:
    try:
        last = trunk.body(probe, cache=None)[:, -1]
        logits = trunk.head(last)
        layer = unadapted(trunk.layer)
        rows, bias = (None, None) if layer is None else _letter_rows(layer, letters)
        head = LetterHead(LOGITS if rows is None else ROWS, letters, trunk, rows, bias)
        scores, _ = head.scores(last)
        tolerance = _TOLERANCE.get(str(logits.dtype).removeprefix("mlx.core."), 1e-4)
        size = max(1.0, *(abs(x) for x in whole[0].tolist()))
        # The trunk's head over one position against the whole model's over many: products of other shapes.
        same = _close(logits.astype(mx.float32), whole, _same_tolerance(logits) * size)
        reproduced = _close(scores, whole[:, mx.array(letters)], tolerance * size)
    except Exception:  # a model of another build: nothing here may keep it from the other path
        return None
    return head if same and reproduced else None


def _same_tolerance(logits: Any) -> float:
    return 1e-5 if logits.dtype == mx.float32 else 1e-2


def _close(left: Any, right: Any, tolerance: float) -> bool:
    return left.shape == right.shape and bool((mx.abs(left - right).max() <= tolerance).item())


def _trunks(model: Any) -> Iterator[Trunk]:
    """The ways in which mlx-lm's models are put together: a body under `model`, and a head or tied embeddings."""
    for outer in (model, getattr(model, "language_model", None)):
        body = getattr(outer, "model", None)
        if not isinstance(body, nn.Module):
            continue
        head = getattr(outer, "lm_head", None)
        if isinstance(head, nn.Module):
            yield Trunk(body, head, head)
        embeddings = getattr(body, "embed_tokens", None)
        if isinstance(embeddings, nn.Module) and hasattr(embeddings, "as_linear"):
            yield Trunk(body, embeddings.as_linear, embeddings)


def _letter_rows(layer: Any, letters: tuple[int, ...]) -> tuple[Any, Any]:
    """The head's rows for the letters, (52, D) float32, dequantized; and its bias there, if it has one."""
    index = mx.array(letters)
    weight = layer.weight[index]
    if hasattr(layer, "scales"):
        biases = layer.get("biases")
        weight = mx.dequantize(
            weight,
            layer.scales[index],
            None if biases is None else biases[index],
            group_size=layer.group_size,
            bits=layer.bits,
            mode=getattr(layer, "mode", "affine"),
        )
    bias = layer.get("bias")
    rows = weight.astype(mx.float32)
    offset = None if bias is None else bias[index].astype(mx.float32)
    mx.eval(rows) if offset is None else mx.eval(rows, offset)
    return rows, offset
