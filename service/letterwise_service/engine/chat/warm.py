"""From a loaded model to one that chats: its prompts, a first message, its share of the memory.

Engine thread, once. A model that cannot serve decisions may chat all the same. Knows nothing of decisions.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...config import EngineConfig
from ...errors import ModelUnsuitable
from ...method.chat import ChatMessage
from .. import headroom
from ..backend import caches, mx
from ..budgets import Budgets, Ids, check_known
from ..models.adapters import Adapters
from ..models.loading import LoadedModel
from ..reading import views
from ..reading.packing import FORWARD_TOKENS
from .conversation import ChatAdmission, ConversationTokens
from .lane import batch_generator
from .prompts import ChatServed

_log = logging.getLogger(__name__)
_PROBE = (ChatMessage("user", "A parcel of books arrived two days late, and its box was open. What now?"),)
# Of the memory that the model leaves: what the rows of chat may take, and what is kept of their prompts.
_ROWS_SHARE = 0.5
_CACHE_SHARE = 0.1


@dataclass(frozen=True)
class WarmedChat:
    """`served` and `admission` are None where there is no chat; `reason` says why."""

    served: ChatServed | None = None
    admission: ChatAdmission | None = None
    reason: str = ""


def warm_chat(
    config: EngineConfig,
    loaded: LoadedModel,
    adapters: Adapters,
    *,
    stream: Any,
    lock: threading.Lock,
    free_bytes: int,
    probe: views.Cache | None,
    lanes: Sequence[Any] = (),
) -> WarmedChat:
    """`lock`: of all who use the tokenizer. `probe`: the cache of two forwards' tokens, where there is one already."""
    if not config.chat_rows:
        return WarmedChat(reason="the server was started with --chat-rows 0")
    try:
        tokens = ConversationTokens(loaded.tokenizer, lock)
    except ModelUnsuitable as error:
        return WarmedChat(reason=str(error))
    budgets = Budgets(
        config.context_tokens or loaded.context_tokens,
        int(free_bytes * _ROWS_SHARE / (2 * _bytes_per_token(loaded.model, probe))),  # a batch grows into a copy
    )
    served = ChatServed(
        name=loaded.name,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        stream=stream,
        lanes=lanes,
        rows=config.chat_rows,
        memory_tokens=budgets.memory_tokens,
        cache_bytes=config.chat_cache_bytes or int(free_bytes * _CACHE_SHARE),
        published=adapters.published,
        salt=adapters.salt,
    )
    if problem := try_chat(served, tokens.encode(_PROBE).ids):
        _log.warning("%s does not chat: %s", loaded.name, problem)
        return WarmedChat(reason=problem)
    known = partial(check_known, names=adapters.names)
    return WarmedChat(served, ChatAdmission(tokens, budgets, config.chat_max_tokens, known))


def try_chat(served: ChatServed, ids: Ids) -> str | None:
    """Go the whole way of a row with a prompt of `ids`: None, or why chat does not work on this model."""
    generator = batch_generator(served, partial(served.forward, rows=(None,)))
    try:
        _insert(served, ids, generator)
        ended = False
        while not ended:
            _, generated = generator.next()
            if not all(math.isfinite(one.logprobs[one.token].item()) for one in generated):
                return "its scores are missing or not finite"
            ended = any(one.finish_reason for one in generated)
    except Exception as error:  # a cache class that cannot do this, or a model of another build
        if headroom.refused(error):  # says nothing of the model
            raise
        return f"mlx-lm cannot batch this model ({type(error).__name__}: {error})"
    finally:
        generator.close()
    return None


def _insert(served: ChatServed, ids: Ids, generator: Any) -> None:
    """Read a prompt in two chunks, the first one kept, and have the generator go on from there."""
    with mx.stream(served.stream):
        cache = caches.make_prompt_cache(served.model)
    served.read(ids[:8], cache)
    with mx.stream(served.stream):
        mx.eval(views.arrays(views.owned(cache)))
    served.read(ids[8:-1], cache)
    with mx.stream(served.stream):
        generator.insert([list(ids[-1:])], max_tokens=[2], caches=[cache], all_tokens=[list(ids[:-1])])


def _bytes_per_token(model: Any, probe: views.Cache | None) -> int:
    if probe is None:
        probe = caches.make_prompt_cache(model)
        for _ in range(2):
            model(mx.array([[10 + i % 50 for i in range(FORWARD_TOKENS)]]), cache=probe)
            mx.eval(views.arrays(probe))
    return max(1, views.nbytes(probe) // (2 * FORWARD_TOKENS))
