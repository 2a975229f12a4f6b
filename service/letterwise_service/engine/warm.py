"""From a configuration to a model that serves: load, check, probe, budget, one decision to warm it.

Engine thread, once. Puts the engine's parts together; each part knows nothing of the others' insides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..errors import LoadFailed, ModelUnsuitable
from ..method.prompt import PROMPT_FORMAT_VERSION, resolve_style
from ..method.request import Adapter
from .backend import Backend, caches, mx, open_backend
from .blas import INSTALL, NONE
from .budgets import Admission, Budgets
from .chat.warm import WarmedChat, warm_chat
from .events import ModelInfo
from .memory import available_bytes
from .models.adapters import Adapters
from .models.loading import LoadedModel, load
from .prompts.tokens import PromptTokens
from .reading import kernels, views
from .reading.packing import FORWARD_TOKENS
from .reading.probe import drain, find_manner, rows_apart
from .reading.reader import READER_VERSION, Manner, Reader, Work
from .steps import Served
from .store.prefixes import CHECKPOINT, EXACT, OFF, UNSUPPORTED, PrefixStore

_log = logging.getLogger(__name__)
_PROBE = "State:\nA parcel of books arrived two days late, and its box was open.\n\nQuestion: Was the parcel late?"
_ANYWAY = "or start all the same with --require-blas off"
# The tokens of a prefix that shows what the model's caches are and take.
_PROBE_TOKENS = 2 * FORWARD_TOKENS
# Of the memory that the model leaves: what kept prefixes may take, and what one decision may.
_STORE_SHARE = 0.25
_DECISION_SHARE = 0.5
_UNKNOWN_MEMORY_BYTES = 2 * 2**30
# Bytes that MLX may keep of freed buffers, to use again.
_BUFFER_CACHE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Warmed:
    """`served` and `admission` are None when the model cannot serve letter reads; `info.problem` says why."""

    info: ModelInfo
    chat: WarmedChat
    served: Served | None = None
    admission: Admission | None = None


def warm(config: EngineConfig) -> Warmed:
    """Raises LoadFailed."""
    backend = open_backend(config.blas_threads)
    if config.require_blas and backend.blas == NONE:
        raise LoadFailed(f"no fast BLAS is in use, so this model would be many times slower: {INSTALL}; {_ANYWAY}")
    mx.set_cache_limit(_BUFFER_CACHE_BYTES)
    loaded = load(config.model, alias=config.alias)
    adapters = _adapters(config, loaded, backend)
    style = resolve_style(config.prompt_style, loaded.names)
    streams = _streams(backend)
    lock = threading.Lock()
    chat = partial(warm_chat, config, loaded, adapters, stream=streams[0], lock=lock, free_bytes=_free_bytes())
    try:
        tokens = PromptTokens(loaded.tokenizer, lock)
        manner = _find_manner(loaded.model, tokens, backend, streams)
    except ModelUnsuitable as error:
        info = _info(loaded, adapters, backend, style, config, path="", tier=UNSUPPORTED, problem=str(error))
        return _warmed(info, chat(probe=None))
    manners = _adapted_manners(loaded.model, adapters, tokens, streams, chats=config.chat_rows > 0)
    reader = Reader(loaded.model, manner, streams)
    probe = drain(reader.prefill([10 + i % 50 for i in range(_PROBE_TOKENS)], Work()))
    budgets = _budgets(probe, loaded, config)
    store = _store(config, loaded, tier=_tier(probe, [manner, *manners.values()]) if config.prefix_store else OFF)
    info = _info(loaded, adapters, backend, style, config, path=manner.head.path, tier=store.tier, problem=None)
    served = Served(info.model, style, reader, tokens, store, adapters, manners)
    warmed_chat = chat(probe=probe, lanes=streams if manner.spread else ())
    return _warmed(info, warmed_chat, served, Admission(tokens, budgets, style, adapters.names))


def _warmed(info: ModelInfo, chat: WarmedChat, *decisions: Any) -> Warmed:
    return Warmed(replace(info, chats=chat.served is not None), chat, *decisions)


def _adapters(config: EngineConfig, loaded: LoadedModel, backend: Backend) -> Adapters:
    adapters = Adapters()
    for name, folder in config.adapters:
        adapters.load(loaded.model, name, Path(folder), float32=backend.computes_float32)
    return adapters


def _adapted_manners(
    model: Any, adapters: Adapters, tokens: PromptTokens, streams: list[Any], *, chats: bool
) -> dict[str, Manner]:
    """The manner of reading with each adapter. Raises LoadFailed for one that the model cannot be read with."""
    ids, manners = tokens.messages([_PROBE])[0].ids, {}
    for name in adapters.names:
        try:
            with adapters.published((Adapter(name),)):
                manners[name] = find_manner(model, tokens.letter_ids, ids, streams)
        except ModelUnsuitable as error:
            raise LoadFailed(f"adapter {name}: with it, {error}") from error
        if chats and not rows_apart(model, adapters, name, ids):
            raise LoadFailed(
                f"adapter {name}: in this model it cannot be one chat's alone beside others without it; "
                "a server without chat (chat_rows 0) can serve it"
            )
    return manners


def _find_manner(model: Any, tokens: PromptTokens, backend: Backend, streams: list[Any]) -> Manner:
    """The manner of reading, with our own operations on a processor if the model's numbers stand with them."""
    ids = tokens.messages([_PROBE])[0].ids
    if backend.device == "cpu":
        kernels.install()
        try:
            return find_manner(model, tokens.letter_ids, ids, streams)
        except ModelUnsuitable:
            _log.warning("the processor's own operations do not give this model's numbers: the stock ones are used")
    kernels.uninstall()
    return find_manner(model, tokens.letter_ids, ids, streams)


def _streams(backend: Backend) -> list[Any]:
    """One lane on a GPU; on the processor two, which beats two BLAS threads on one lane."""
    first = mx.default_stream(mx.default_device())
    return [first, mx.new_stream(mx.cpu)] if backend.device == "cpu" else [first]


def _tier(probe: views.Cache, manners: Iterable[Manner]) -> str:
    """exact: every layer is plain attention, and in use. checkpoint: other layers, whose state can be copied."""
    if all(type(layer) is caches.KVCache and layer.keys is not None for layer in probe):
        return EXACT
    return CHECKPOINT if all(manner.copy is not None for manner in manners) else UNSUPPORTED


def _budgets(probe: views.Cache, loaded: LoadedModel, config: EngineConfig) -> Budgets:
    bytes_per_token = max(1, views.nbytes(probe) // _PROBE_TOKENS)
    memory_tokens = int(_free_bytes() * _DECISION_SHARE / (2 * bytes_per_token))  # the prefix, and a tail's copy of it
    return Budgets(
        config.context_tokens or loaded.context_tokens,
        memory_tokens,
        min(config.decision_tokens, config.queue_tokens),
    )


def _store(config: EngineConfig, loaded: LoadedModel, *, tier: str) -> PrefixStore:
    return PrefixStore(
        tier=tier,
        salt=f"reader {READER_VERSION}, forward {FORWARD_TOKENS}, {loaded.identity}",
        max_records=config.prefix_store_records,
        budget_bytes=config.prefix_store_bytes or int(_free_bytes() * _STORE_SHARE),
    )


def _free_bytes() -> int:
    """What the machine has left now, the model loaded; a modest guess where it does not say."""
    return available_bytes() or _UNKNOWN_MEMORY_BYTES


def _info(
    loaded: LoadedModel,
    adapters: Adapters,
    backend: Backend,
    style: str,
    config: EngineConfig,
    *,
    path: str,
    tier: str,
    problem: str | None,
) -> ModelInfo:
    return ModelInfo(
        model=loaded.name,
        architecture=loaded.architecture,
        path=path,
        prompt_style=style,
        prompt_format_version=PROMPT_FORMAT_VERSION,
        context_tokens=config.context_tokens or loaded.context_tokens,
        forward_tokens=FORWARD_TOKENS,
        tier=tier,
        device=backend.device,
        dtype=loaded.dtype,
        blas=backend.blas,
        blas_gflops=backend.gflops,
        parameters=loaded.parameters,
        weights_bytes=loaded.weights_bytes + adapters.nbytes,
        problem=problem,
        adapters=adapters.names,
    )
