"""The chat lane: conversations that generate together, a token each per step, in mlx-lm's continuous batch.

Engine thread. Owns mlx-lm's `BatchGenerator`, for as long as the engine lives since it holds Metal's wired limit, and
chat's prompt cache. One prompt at a time is read, in the chunks that decisions use, so how it is read depends on no
other row. Knows nothing of decisions: the engine steps both in turn.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from .. import metrics
from ..errors import LetterwiseError, OutOfMemory, ReadFailed
from ..method.request import Adapter
from . import headroom, lanes, views
from .backend import BatchGenerator, caches, mx
from .chat_cache import ChatCache, boundary
from .events import ChatStarted, ChatText
from .packing import FORWARD_TOKENS
from .replying import ReplyText
from .rows import ChatLine, ChatRow
from .sampling import likeliest, sampler_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatServed:
    """The model as chat uses it.

    memory_tokens: what the caches of all rows may hold together. cache_bytes: what kept prompts may.
    published: entered around each forward with its rows' adapters. salt: keeps apart prompts of other adapters.
    lanes: the streams that each forward is spread over.
    """

    name: str
    model: Any
    tokenizer: Any
    stream: Any
    rows: int
    memory_tokens: int
    cache_bytes: int
    published: Callable[[Sequence[Adapter | None]], AbstractContextManager[None]]
    salt: Callable[[Adapter | None], str]
    lanes: Sequence[Any] = ()


class ChatLane:
    """Steps the rows of `line`. `close` at the end."""

    def __init__(self, served: ChatServed, line: ChatLine) -> None:
        self._served = served
        self._line = line
        self._kept = ChatCache(served.cache_bytes)
        self._rows: dict[int, ChatRow] = {}  # by the generator's number
        self._entering: int | None = None  # of these, the one whose prompt is being read
        self._generator = batch_generator(served, self._forward)

    def step(self) -> bool:
        """A token for each row that generates, a chunk of the prompt that is being read; False when nobody chats."""
        try:
            for row, error in self._line.departed():
                self._drop(row, error)
            self._seat_next()
            if self._rows:
                self._advance()
        except Exception as failure:
            self._fail_all(failure)
        return len(self._line) > 0

    def close(self) -> None:
        """Let go of the generator, nothing of it being computed any more."""
        mx.synchronize(self._served.stream)
        self._generator.close()

    def _forward(self, ids: Any, cache: Any = None) -> Any:
        """The model as the generator calls it, with its rows' adapters: which rows they are, the cache tells."""
        generating = self._generator._generation_batch
        rows = [self._rows[uid] for uid in generating.uids]
        if cache is not generating.prompt_cache:
            assert self._entering is not None
            rows = [self._rows[self._entering]]
        adapters = [row.permit.request.adapter for row in rows]
        with lanes.spread(self._served.lanes), self._served.published(adapters):
            return self._served.model(ids, cache=cache)

    def _seat_next(self) -> None:
        if self._entering is not None:
            return
        row = self._line.seat(self._fits)
        if row is None:
            return
        try:
            self._insert(row)
        except Exception as error:  # nothing of it has reached the batch
            _note(error)
            self._end(row, _told(error))

    def _fits(self, rows: Sequence[ChatRow]) -> bool:
        """Whether the rows' caches fit together: each is as long as the longest of the batch may become."""
        return len(rows) * max(row.permit.tokens for row in rows) <= self._served.memory_tokens

    def _insert(self, row: ChatRow) -> None:
        request, ids = row.permit.request, list(row.permit.ids)
        row.start(ReplyText(self._served.tokenizer.detokenizer, request.stop))
        with mx.stream(self._served.stream):
            cache, reused = self._kept.take(self._served.salt(request.adapter), ids)
            row.reused_tokens = reused
            end = boundary(ids)
            (uid,) = self._generator.insert_segments(
                [[ids[reused:end], ids[end:]]],  # the generator halts between the two, for the first to be kept
                max_tokens=[request.max_tokens],
                caches=[cache or caches.make_prompt_cache(self._served.model)],
                all_tokens=[ids[:reused]],
                samplers=[sampler_of(request)],
            )
        self._rows[uid] = row
        self._entering = uid

    def _advance(self) -> None:
        began = time.perf_counter()
        headroom.ensure(views.arrays(self._generator._generation_batch.prompt_cache))  # they may grow, into a copy
        prompts, generated = self._generator.next()
        own = self._own_log_probabilities(generated)
        metrics.forward_ran(metrics.CHAT, time.perf_counter() - began)
        metrics.chat_tokens(output=len(generated))
        for one in prompts:
            self._prompt_read(one)
        for one, log_probability in zip(generated, own, strict=True):
            self._take(one, log_probability)

    def _own_log_probabilities(self, generated: Sequence[Any]) -> list[float]:
        """ln probability of each row's token, before any temperature."""
        if not generated:
            return []
        with mx.stream(self._served.stream):
            own: Any = mx.stack([one.logprobs[one.token] for one in generated])
        found: list[float] = own.tolist()
        return found

    def _prompt_read(self, progress: Any) -> None:
        row = self._rows[progress.uid]
        if progress.end_of_prompt:
            self._entering = None
            metrics.chat_tokens(input=len(row.permit.ids), reused=row.reused_tokens)
            row.tell(ChatStarted(len(row.permit.ids), row.reused_tokens))
        elif progress.end_of_segment and row.reused_tokens + progress.progress[0] == boundary(row.permit.ids):
            with mx.stream(self._served.stream):
                cache, ids = self._generator.extract_cache([progress.uid])[progress.uid]
                self._kept.keep(self._served.salt(row.permit.request.adapter), ids, cache)

    def _take(self, one: Any, log_probability: float) -> None:
        """A row's next token: its text goes out, and the row with its last one."""
        row = self._rows[one.uid]
        row.output_tokens += 1
        try:
            text, reason = _shown(row, one, log_probability)
        except Exception as error:
            _note(error)
            self._drop(row, _told(error))
            return
        row.tell(ChatText(text, ((one.token, log_probability),)))
        if reason is not None:
            self._leave(row)
            row.finish(self._served.name, reason)
            self._line.remove(row, finished=True)

    def _drop(self, row: ChatRow, error: LetterwiseError) -> None:
        """End a row before its time, wherever it is."""
        self._leave(row)
        self._end(row, error)

    def _leave(self, row: ChatRow) -> None:
        """Take the row out of the batch, and its cache with it; nothing if it has no place there."""
        uid = next((uid for uid, other in self._rows.items() if other is row), None)
        if uid is not None:
            with mx.stream(self._served.stream):
                self._generator.remove([uid])
            del self._rows[uid]
            self._entering = None if self._entering == uid else self._entering

    def _end(self, row: ChatRow, error: LetterwiseError) -> None:
        row.fail(error)
        self._line.remove(row)

    def _fail_all(self, error: Exception) -> None:
        """The batch is of no use any more: its rows end, and the next ones get a new one."""
        _note(error)
        rows = list(self._rows.values())
        self._rows.clear()
        self._entering = None
        with suppress(Exception):  # it has said already what is wrong
            self.close()
        self._generator = batch_generator(self._served, self._forward)
        traceback.clear_frames(error.__traceback__)  # which would keep the batch's arrays alive
        if headroom.refused(error):
            headroom.release()
        for row in rows:
            self._end(row, _told(error))


def batch_generator(served: ChatServed, forward: Callable[..., Any]) -> Any:
    """mlx-lm's continuous batch over `forward`, called as a model is: ids (rows, L) → logits (rows, L, V)."""
    return BatchGenerator(
        forward,
        stop_tokens=[[token] for token in sorted(served.tokenizer.eos_token_ids)],
        sampler=likeliest,
        completion_batch_size=served.rows,
        prefill_batch_size=1,
        prefill_step_size=FORWARD_TOKENS,
        stream=served.stream,
    )


def _shown(row: ChatRow, one: Any, log_probability: float) -> tuple[str, str | None]:
    """The text that a row's next token lets be shown, and why the message ends with it, if it does."""
    assert row.text is not None
    if not math.isfinite(log_probability):
        raise ReadFailed("the model gave a score that is missing or not finite")
    text = "" if one.finish_reason == "stop" else row.text.add(one.token)  # the end's own spelling is no text
    if one.finish_reason is not None and not row.text.stopped:
        text += row.text.end()
    return text, "stop" if row.text.stopped else one.finish_reason


def _note(error: Exception) -> None:
    """Log a failure that is not a caller's own."""
    if headroom.refused(error):
        _log.warning("no memory for chat: %s", error)
    elif not isinstance(error, LetterwiseError):
        _log.error("chat failed", exc_info=error)


def _told(error: Exception) -> LetterwiseError:
    """What a caller is told of a failure."""
    if headroom.refused(error):
        return OutOfMemory("the machine has no memory left for this chat")
    if isinstance(error, LetterwiseError):
        return error
    wrapped = LetterwiseError("the chat failed inside the engine")
    wrapped.__cause__ = error
    return wrapped
