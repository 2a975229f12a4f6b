"""The chat lane: conversations that generate together, a token each per step, in mlx-lm's continuous batch.

Engine thread. Owns mlx-lm's `BatchGenerator`, for as long as the engine lives since it holds Metal's wired limit, and
chat's prompt cache. A row's prompt is read outside the batch (`prompts.py`) and joins it with its last token.
Knows nothing of decisions: the engine steps both in turn.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ... import metrics
from ...errors import LetterwiseError, ReadFailed
from .. import failures, headroom
from ..backend import BatchGenerator, mx
from ..events import ChatStarted, ChatText
from ..reading import views
from ..reading.packing import FORWARD_TOKENS
from .cache import ChatCache
from .prompts import ChatServed, Prompt, Prompts
from .replying import ReplyText
from .rows import ChatLine, ChatRow
from .sampling import likeliest, sampler_of


class ChatLane:
    """Steps the rows of `line`. `close` at the end."""

    def __init__(self, served: ChatServed, line: ChatLine) -> None:
        self._served = served
        self._line = line
        self._kept = ChatCache(served.cache_bytes)
        self._prompts = Prompts(served, self._kept)
        self._rows: dict[int, ChatRow] = {}  # those in the batch, by the generator's number
        self._entering: int | None = None  # of these, the one whose prompt's last token is still to be read
        self._generator = batch_generator(served, self._forward)

    def step(self) -> bool:
        """A chunk of the prompt whose turn it is, a token for each row that generates; False when nobody chats."""
        try:
            for row, error in self._line.departed():
                self._drop(row, error)
            self._seat()
            self._read()
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
        if cache is generating.prompt_cache:
            rows = [self._rows[uid] for uid in generating.uids]
        else:
            assert self._entering is not None
            rows = [self._rows[self._entering]]
        return self._served.forward(ids, cache, [row.permit.request.adapter for row in rows])

    def _seat(self) -> None:
        """Begin the prompts of all that there is room for."""
        while (row := self._line.seat(self._fits)) is not None:
            try:
                row.start(ReplyText(self._served.tokenizer.detokenizer, row.permit.request.stop))
                self._prompts.add(row)
            except Exception as error:
                self._fail(row, error)

    def _read(self) -> None:
        """A chunk of one prompt; what goes wrong with it is that row's alone."""
        if (prompt := self._prompts.turn()) is None:
            return
        try:
            if self._prompts.advance(prompt):
                self._enter(prompt)
        except Exception as error:
            self._fail(prompt.row, error)

    def _fits(self, rows: Sequence[ChatRow]) -> bool:
        """Whether the rows' caches fit together: each is as long as the longest of the batch may become."""
        return len(rows) * max(row.permit.tokens for row in rows) <= self._served.memory_tokens

    def _enter(self, prompt: Prompt) -> None:
        """Give the batch a row whose prompt is read: the generator's next step reads the last token and merges it."""
        request, ids = prompt.row.permit.request, list(prompt.row.permit.ids)
        with mx.stream(self._served.stream):
            (uid,) = self._generator.insert(
                [ids[-1:]],
                max_tokens=[request.max_tokens],
                caches=[prompt.cache],
                all_tokens=[ids[:-1]],
                samplers=[sampler_of(request)],
            )
        self._rows[uid] = prompt.row
        self._entering = uid

    def _advance(self) -> None:
        began = time.perf_counter()
        headroom.ensure(views.arrays(self._generator._generation_batch.prompt_cache))  # they may grow, into a copy
        prompts, generated = self._generator.next()
        own = self._own_log_probabilities(generated)
        metrics.forward_ran(metrics.CHAT, time.perf_counter() - began)
        metrics.chat_tokens(output=len(generated))
        for one in prompts:
            self._entered(self._rows[one.uid])
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

    def _entered(self, row: ChatRow) -> None:
        self._entering = None
        metrics.chat_tokens(input=len(row.permit.ids), reused=row.reused_tokens)
        row.tell(ChatStarted(len(row.permit.ids), row.reused_tokens))

    def _take(self, one: Any, log_probability: float) -> None:
        """A row's next token: its text goes out, and the row with its last one."""
        row = self._rows[one.uid]
        row.output_tokens += 1
        try:
            text, reason = _shown(row, one, log_probability)
        except Exception as error:
            self._fail(row, error)
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
        """Take the row from where it is, and its cache with it; nothing if it only waits."""
        self._prompts.remove(row)
        uid = next((uid for uid, other in self._rows.items() if other is row), None)
        if uid is not None:
            with mx.stream(self._served.stream):
                self._generator.remove([uid])
            del self._rows[uid]
            self._entering = None if self._entering == uid else self._entering

    def _end(self, row: ChatRow, error: LetterwiseError) -> None:
        row.fail(error)
        self._line.remove(row)

    def _fail(self, row: ChatRow, error: Exception) -> None:
        """End a row for a failure that is its own, the batch being whole."""
        failures.note(error, "chat")
        _let_go(error)
        self._drop(row, failures.told(error, "chat"))

    def _fail_all(self, error: Exception) -> None:
        """The batch is of no use any more: its rows end, and the next ones get a new one."""
        failures.note(error, "chat")
        rows = list(self._rows.values())
        self._rows.clear()
        self._entering = None
        with suppress(Exception):  # it has said already what is wrong
            self.close()
        self._generator = batch_generator(self._served, self._forward)
        _let_go(error)
        for row in rows:
            self._end(row, failures.told(error, "chat"))


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


def _let_go(error: Exception) -> None:
    """Free what a failure holds: its frames would keep arrays alive."""
    traceback.clear_frames(error.__traceback__)
    if headroom.refused(error):
        headroom.release()
