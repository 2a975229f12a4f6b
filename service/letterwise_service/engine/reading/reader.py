"""The reader: a prefix into a cache, and tails over it into letter scores.

Engine thread. Owns the model and how it is run: fixed chunks from position 0, tails at their canonical widths, two
forwards side by side on two streams of the processor. What it must know of the model it finds by trying (`probe.py`)
and keeps in a `Manner`. It knows nothing of questions, answers or callers.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any

from ... import metrics
from .. import headroom
from ..backend import caches, mx
from . import kernels, lanes, views
from .head import LetterHead
from .packing import FORWARD_TOKENS, Forward, plan_forwards
from .positions import Positions

# Part of every kept prefix's salt: raise it when a change here can change a bit of a cache.
READER_VERSION = 2
_MANY_HEADS = 64


@dataclass(frozen=True)
class Manner:
    """How one model is read.

    share: gives a cache for N rows over a prefix, or None when no view covers the model's layers.
    copy: gives an independent cache with a prefix's bits, or None when the prefix must be computed again.
    rows_limit: 1 when a row's bits depend on its companions, else as many as a forward takes.
    spread: whether a forward that runs alone may be spread over all lanes, its bits staying the same.
    """

    head: LetterHead
    share: Callable[[views.Cache, int], views.Cache] | None = views.view
    copy: Callable[[views.Cache], views.Cache] | None = views.copy
    rows_limit: int = FORWARD_TOKENS
    spread: bool = True


@dataclass(frozen=True)
class TailScores:
    """Tail `index`'s scores at its last token: all 52 letters, and log Σ exp over the whole vocabulary."""

    index: int
    letters: tuple[float, ...]
    log_total: float


@dataclass
class Work:
    """What was run: forwards, real tokens and padding; for diagnostics and metrics."""

    forwards: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0

    def ran(self, kind: str, seconds: float, tokens: int, padding: int) -> None:
        """A forward of a kind has run, in a step of `seconds`."""
        self.forwards += 1
        self.computed_tokens += tokens
        self.padded_tokens += padding

    def stepped(self, seconds: float) -> None:
        """A step, of one forward or of several side by side, has taken so long."""


@dataclass(frozen=True)
class _Unit:
    """One forward, not yet built. `build` gives the arrays to evaluate; (N, D) answer positions when `tails`.

    scratch_bytes: what it takes at most beside those arrays, as far as that grows with the prefix.
    """

    kind: str
    build: Callable[[], list[Any]]
    tails: tuple[int, ...]
    tokens: int
    padding: int
    scratch_bytes: int


@dataclass
class Pace:
    """How many forwards a step takes, at most one for each lane; no bit depends on it."""

    forwards: int


class Reader:
    """Reads prefixes and tails on one model. `lanes`: forwards that run side by side in one step.

    pace: set between steps by whoever shares the thread; one for all readers of the model.
    publish: entered around the building of every forward; what it changes of the model, such as an adapter's part in
    it, is what this reader reads with.
    """

    def __init__(
        self,
        model: Any,
        manner: Manner,
        streams: Sequence[Any],
        publish: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.model = model
        self.manner = manner
        self._streams = tuple(streams)
        self._publish = publish
        self._positions = Positions(model)
        self._heads = _query_heads(model)
        self.pace = Pace(self.lanes)

    @property
    def lanes(self) -> int:
        return len(self._streams)

    def publishing(self, manner: Manner, publish: Callable[[], AbstractContextManager[None]]) -> Reader:
        """A reader of the same model on the same lanes, with something published and in the manner found for that."""
        reader = copy.copy(self)
        reader.manner, reader._publish = manner, publish
        return reader

    def new_cache(self) -> views.Cache:
        """An empty cache of the model's own kinds of layer."""
        cache: views.Cache = caches.make_prompt_cache(self.model)
        return cache

    def prefill(self, ids: Sequence[int], work: Work) -> Generator[int, None, views.Cache]:
        """Compute the prefix `ids` from nothing; yields each step's tokens, returns the cache, sealed."""
        cache = self.new_cache()
        yield from self.extend(ids, cache, 0, work)
        return self.sealed(cache)

    def extend(
        self, ids: Sequence[int], cache: views.Cache, start: int, work: Work, *, stops: Sequence[int] = ()
    ) -> Iterator[int]:
        """Extend `cache`, which holds the first `start` of the prefix `ids`, to all of them; yields each step's tokens.

        Chunks lie at whole forwards from position 0, wherever it starts: `start` and `stops` are such boundaries, and
        at a stop a step ends, so that its caller can keep the state there before the rest overwrites it.
        """
        cuts = [start, *(stop for stop in stops if start < stop < len(ids)), len(ids)]
        for begin, end in pairwise(cuts):
            for done in self._steps(self._chunks(ids[begin:end], cache, begin), work):
                yield sum(tokens for tokens, _ in done)

    def sealed(self, cache: views.Cache) -> views.Cache:
        """The cache with no spare room in its buffers, evaluated: as tails read it best."""
        before = views.arrays(cache)
        cache = views.seal(cache)
        known = {id(array) for array in before}
        headroom.ensure(scratch_bytes=sum(int(a.nbytes) for a in views.arrays(cache) if id(a) not in known))
        mx.eval(views.arrays(cache))
        return cache

    def read(
        self, prefix: Sequence[int], cache: views.Cache, tails: Sequence[Sequence[int]], work: Work
    ) -> Generator[list[TailScores], None, None]:
        """Read `tails` (ids after the prefix); yields after each step the scores that it brought."""
        for done in self._steps(self._tail_units(prefix, cache, tails), work):
            yield self._scores([(tails_of, arrays[0]) for _, (tails_of, arrays) in done if tails_of])

    def _steps(
        self, units: Iterator[_Unit], work: Work
    ) -> Iterator[list[tuple[int, tuple[tuple[int, ...], list[Any]]]]]:
        """Evaluate the units, a lane each, at the pace: per step, each unit's tokens, its tails and its arrays."""
        while batch := list(islice(units, min(self.pace.forwards, self.lanes))):
            began = time.perf_counter()
            built = self._built(batch)
            headroom.ensure((array for arrays in built for array in arrays), sum(unit.scratch_bytes for unit in batch))
            mx.eval(built)
            seconds = time.perf_counter() - began
            work.stepped(seconds)
            for unit in batch:
                work.ran(unit.kind, seconds, unit.tokens, unit.padding)
            yield [(unit.tokens, (unit.tails, arrays)) for unit, arrays in zip(batch, built, strict=True)]

    def _built(self, batch: list[_Unit]) -> list[list[Any]]:
        """The units' graphs, each on a lane of its own; a unit that is alone is spread over all of them."""
        over = self._streams if self.manner.spread and len(batch) == 1 else ()
        built = []
        try:
            for stream, unit in zip(self._streams, batch, strict=False):
                with mx.stream(stream), lanes.spread(over), self._publish(), self._positions.own():
                    built.append(unit.build())
        finally:  # also when one could not be built: what was shared until then is not to live on
            kernels.forget_shared()
        return built

    def _chunks(self, ids: Sequence[int], cache: views.Cache, past: int, kind: str = metrics.PREFIX) -> Iterator[_Unit]:
        """`ids` into `cache`, which holds `past` tokens, a forward at a time; only the cache is evaluated, so the last
        layer's output is not."""
        for start in range(0, len(ids), FORWARD_TOKENS):
            chunk = ids[start : start + FORWARD_TOKENS]
            scratch = self._scores_bytes(len(chunk), past + start)
            yield _Unit(kind, partial(self._chunk, chunk, cache), (), len(chunk), 0, scratch)

    def _scores_bytes(self, tokens: int, past: int) -> int:
        """Of attention's scores in one layer, and of what their softmax makes of them: float32, for each head."""
        return 2 * 4 * self._heads * tokens * (past + tokens)

    def _chunk(self, ids: Sequence[int], cache: views.Cache) -> list[Any]:
        self.manner.head.forward(self.model, mx.array([ids]), cache)  # (1, L)
        return views.arrays(cache)

    def _tail_units(self, prefix: Sequence[int], cache: views.Cache, tails: Sequence[Sequence[int]]) -> Iterator[_Unit]:
        share = self.manner.share
        plan = plan_forwards([len(tail) for tail in tails], rows_limit=self.manner.rows_limit)
        alone = plan.alone if share else (*plan.alone, *(i for forward in plan.shared for i in forward.rows))
        for i in alone:
            yield from self._alone(i, tails[i], prefix, cache)
        for forward in plan.shared if share else ():
            lengths = [len(tails[i]) for i in forward.rows]
            yield _Unit(
                metrics.TAILS,
                partial(self._together, forward, cache, tails),
                forward.rows,
                sum(lengths),
                forward.width * len(lengths) - sum(lengths),
                self._scores_bytes(forward.width * len(lengths), len(prefix)) + self._copied_bytes(cache, len(lengths)),
            )

    def _copied_bytes(self, cache: views.Cache, rows: int) -> int:
        """Of the copies that rows over a prefix take where no view gives it to them."""
        return rows * views.nbytes(cache) if self.manner.share is views.merged else 0

    def _together(self, forward: Forward, cache: views.Cache, tails: Sequence[Sequence[int]]) -> list[Any]:
        """One forward of tails over a view; each row is read at its last real token. → [(rows, D)]"""
        assert self.manner.share is not None
        rows = [tails[i] for i in forward.rows]
        padded = [[*row, *([row[-1]] * (forward.width - len(row)))] for row in rows]
        out = self.manner.head.forward(self.model, mx.array(padded), self.manner.share(cache, len(rows)))
        return [out[mx.arange(len(rows)), mx.array([len(row) - 1 for row in rows])]]

    def _alone(self, i: int, tail: Sequence[int], prefix: Sequence[int], cache: views.Cache) -> Iterator[_Unit]:
        """A tail on a cache of its own: a copy of the prefix, or the prefix computed again where none can be made."""
        if self.manner.copy is not None:
            own = self.manner.copy(cache)
        else:
            own = caches.make_prompt_cache(self.model)
            yield from self._chunks(prefix, own, 0, metrics.COPY)
        last = (len(tail) - 1) // FORWARD_TOKENS * FORWARD_TOKENS
        yield from self._chunks(tail[:last], own, len(prefix), metrics.COPY)
        end = tail[last:]
        # its first write copies what its buffers shared with the prefix
        scratch = self._scores_bytes(len(end), len(prefix) + last) + views.nbytes(own)
        yield _Unit(metrics.COPY, partial(self._end, end, own), (i,), len(end), 0, scratch)

    def _end(self, ids: Sequence[int], cache: views.Cache) -> list[Any]:
        """The last forward of a tail on its own cache, read at its last token. → [(1, D)]"""
        return [self.manner.head.forward(self.model, mx.array([ids]), cache)[:, -1]]

    def _scores(self, read: list[tuple[tuple[int, ...], Any]]) -> list[TailScores]:
        if not read:
            return []
        indices = [i for tails, _ in read for i in tails]
        with lanes.spread(self._streams if self.manner.spread else ()), self._publish():
            letters, totals = self.manner.head.scores(mx.concatenate([last for _, last in read]))
        mx.eval(letters, totals)
        return [
            TailScores(i, tuple(row), total)
            for i, row, total in zip(indices, letters.tolist(), totals.tolist(), strict=True)
        ]


def _query_heads(model: Any) -> int:
    """The most query heads of a layer, by the names that mlx-lm's models give the number; many where none is found."""
    names = ("n_heads", "num_heads", "num_attention_heads", "n_head")
    told = [getattr(module, name, None) for _, module in model.named_modules() for name in names]
    return max((number for number in told if isinstance(number, int)), default=_MANY_HEADS)
