"""What must be known of a model before it is read, found by reading with it.

Engine thread, once per model, and again for each adapter while that is published: then it is part of the model, for
the judge as well. What is found does not depend on the adapter's scale, which changes no shape. The plain full forward
is the judge: a way of sharing a prefix is taken only when it gives that forward's scores, and rows share a forward only
when their bits do not depend on their companions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...errors import ModelUnsuitable
from ...method.request import Adapter
from .. import headroom
from ..backend import caches, mx
from ..models.adapters import Adapters
from . import kernels, views
from .head import LetterHead, pick_head
from .packing import FORWARD_TOKENS
from .reader import Manner, Reader, TailScores, Work

_log = logging.getLogger(__name__)
# Largest difference, relative to the largest score: rounding in 16 bits, or the order of float32 sums.
_TOLERANCE_32, _TOLERANCE_16 = 1e-3, 5e-2


def find_manner(model: Any, letter_ids: Sequence[int], ids: Sequence[int], streams: Sequence[Any]) -> Manner:
    """Try the ways of reading on a prompt of `ids`, best first. Raises ModelUnsuitable when none is right."""
    head = pick_head(model, letter_ids, mx.array([list(ids)]))
    prefix, tails = _split(list(ids))
    expected = [_full(model, head, prefix + tail) for tail in tails]
    for manner in _candidates(head):
        found = _try(Reader(model, manner, streams), prefix, tails)
        if found is None or not _agree(found, expected, _tolerance(model)):
            continue
        return _with_steady_bits(model, manner, streams, prefix, tails)
    raise ModelUnsuitable("no way of reading questions over a shared state gives this model's own scores")


def rows_apart(model: Any, adapters: Adapters, name: str, ids: Sequence[int]) -> bool:
    """Whether an adapter can be one row's alone: beside a row without it, each gives what it gives by itself."""
    one, rows = Adapter(name), [list(ids), list(ids)[::-1]]
    for length in (1, len(ids)):  # a step of chat and a prompt: experts sort their tokens only when they are many
        prompts = [row[:length] for row in rows]
        try:
            with adapters.published((one, None)):
                together = _logits(model, prompts)
        except ValueError:  # a layer that sees something else in place of rows
            return False
        for found, row, adapter in zip(together, prompts, (one, None), strict=True):
            with adapters.published((adapter,)):
                alone = _logits(model, [row])[0]
            size = max(1.0, float(mx.abs(alone).max()))
            if not (mx.abs(found - alone).max() <= _tolerance(model) * size).item():
                return False
    return True


def _logits(model: Any, rows: list[list[int]]) -> Any:
    """(rows, L, V) of one plain forward."""
    return model(mx.array(rows), cache=caches.make_prompt_cache(model)).astype(mx.float32)


def _with_steady_bits(
    model: Any, manner: Manner, streams: Sequence[Any], prefix: list[int], tails: list[list[int]]
) -> Manner:
    """The manner, without what would let a row's bits depend on what runs beside it."""
    if manner.spread and not _same_when_spread(model, manner, streams, prefix, tails):
        _log.info("a forward's bits depend on how many lanes it has: one lane each")
        manner = replace(manner, spread=False)
    if manner.share is not None and not _independent(Reader(model, manner, streams), prefix, tails):
        _log.info("a row's bits depend on its companions: one row per forward")
        manner = replace(manner, rows_limit=1)
    return manner


def _candidates(head: LetterHead) -> Iterator[Manner]:
    for share in (views.view, views.merged, None):
        for copy in (views.copy, None):
            yield Manner(head, share, copy)


def _split(ids: list[int]) -> tuple[list[int], list[list[int]]]:
    """A prefix and three tails: two of one canonical width and unequal length, one longer than a forward."""
    cut = max(1, len(ids) * 2 // 3)
    prefix, rest = ids[:cut], ids[cut:] or ids[-1:]
    long = (rest * (FORWARD_TOKENS // len(rest) + 2))[: FORWARD_TOKENS + 5]
    return prefix, [long[:13], long[3:14], long]


def _full(model: Any, head: LetterHead, ids: list[int]) -> list[float]:
    """Letter scores of one plain forward over the whole prompt, into a cache as mlx-lm itself runs every model.

    Without one, a layer that shares another's keys and values may compute its own, and the scores are another model's.
    """
    with kernels.stock():
        logits = _logits(model, [ids])[0, -1]
    return list(logits[mx.array(head.letter_ids)].tolist())


def _try(reader: Reader, prefix: list[int], tails: list[list[int]]) -> list[TailScores] | None:
    try:
        return _read(reader, prefix, tails)
    except Exception as error:  # a cache class that cannot do this: the next way is tried
        if headroom.refused(error):  # says nothing of the way
            raise
        _log.info("a way of reading does not work on this model: %s: %s", type(error).__name__, error)
        return None


def _read(reader: Reader, prefix: list[int], tails: list[list[int]]) -> list[TailScores]:
    cache = drain(reader.prefill(prefix, Work()))
    before = [mx.broadcast_to(a, a.shape) for a in views.arrays(cache)]  # new objects that nothing assigns into
    found = sorted((s for step in reader.read(prefix, cache, tails, Work()) for s in step), key=lambda s: s.index)
    if not all(mx.array_equal(x, y).item() for x, y in zip(before, views.arrays(cache), strict=True)):
        raise RuntimeError("reading a tail changed the prefix")
    return found


def _agree(found: list[TailScores], expected: list[list[float]], tolerance: float) -> bool:
    for scores, right in zip(found, expected, strict=True):
        size = max(1.0, *(abs(x) for x in right))
        if not all(abs(a - b) <= tolerance * size for a, b in zip(scores.letters, right, strict=True)):
            return False
    return True


def _same_when_spread(
    model: Any, manner: Manner, streams: Sequence[Any], prefix: list[int], tails: list[list[int]]
) -> bool:
    """Whether each tail, and two of one forward, alone in their step, have the same bits on one lane as on all."""
    narrow = Reader(model, replace(manner, spread=False), streams)
    wide = Reader(model, manner, streams)
    groups = [*([tail] for tail in tails), tails[:2]]
    return all(_read(narrow, prefix, group) == _read(wide, prefix, group) for group in groups)


def _independent(reader: Reader, prefix: list[int], tails: list[list[int]]) -> bool:
    """Whether the short tails, read one by one, together, and in the other order, give the same bits."""
    alone = [_read(reader, prefix, [tail])[0] for tail in tails[:2]]
    together = _read(reader, prefix, tails[:2])
    turned = _read(reader, prefix, [tails[1], tails[0], tails[1], tails[0]])
    return all(replace(one, index=0) == alone[i % 2] for i, one in enumerate(together)) and all(
        replace(one, index=0) == alone[1 - i % 2] for i, one in enumerate(turned)
    )


def _tolerance(model: Any) -> float:
    kinds = {array.dtype for array in views.arrays_in(model.parameters())}
    return _TOLERANCE_16 if kinds & {mx.float16, mx.bfloat16} else _TOLERANCE_32


def drain(steps: Any) -> Any:
    """Run a generator to its end and give what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
