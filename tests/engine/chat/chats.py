"""Chats on real tiny models: requests, a listener, and a lane that a test steps itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from letterwise_service.engine.chat.conversation import ChatPermit, ConversationTokens
from letterwise_service.engine.chat.lane import ChatLane
from letterwise_service.engine.chat.prompts import ChatServed
from letterwise_service.engine.chat.rows import ChatLine, ChatRow
from letterwise_service.engine.events import ChatEvent, ChatFinished, ChatStarted, ChatText, Failed
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import LetterwiseError
from letterwise_service.method.chat import ChatMessage, ChatRequest
from tests.engine.conftest import streams
from tests.tiny import byte_tokenizer, tiny_model

TOKENS = ConversationTokens(byte_tokenizer(), threading.Lock())
LONG = "A parcel of books arrived two days late, and its box was open. " * 4


def request(*texts: str, max_tokens: int = 8, **settings: Any) -> ChatRequest:
    """A conversation in which user and assistant take turns, the user first and last."""
    messages = [ChatMessage(("user", "assistant")[i % 2], text) for i, text in enumerate(texts or ("Tell me.",))]
    return ChatRequest(tuple(messages), max_tokens, **settings)


def permit(*texts: str, **settings: Any) -> ChatPermit:
    asked = request(*texts, **settings)
    return ChatPermit(asked, TOKENS.encode(asked.messages).ids)


class ChatHeard:
    """A listener that keeps what it is told."""

    def __init__(self, also: Callable[[ChatEvent], None] | None = None) -> None:
        self.events: list[ChatEvent] = []
        self._ended = threading.Event()
        self._also = also

    def __call__(self, event: ChatEvent) -> None:
        self.events.append(event)
        if isinstance(event, ChatFinished | Failed):
            self._ended.set()
        if self._also is not None:
            self._also(event)

    def end(self) -> ChatFinished | Failed:
        """The last event, which comes within a minute and after which there is none."""
        assert self._ended.wait(60), "the chat never ended"
        last = self.events[-1]
        assert isinstance(last, ChatFinished | Failed)
        return last

    def finished(self) -> ChatFinished:
        last = self.end()
        assert isinstance(last, ChatFinished), last
        return last

    def error(self) -> LetterwiseError:
        last = self.end()
        assert isinstance(last, Failed), last
        return last.error

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ChatText))

    @property
    def tokens(self) -> list[tuple[int, float]]:
        """What was generated: ids with their ln probabilities, to the bit."""
        return [token for event in self.events if isinstance(event, ChatText) for token in event.tokens]

    @property
    def ids(self) -> list[int]:
        return [token for token, _ in self.tokens]

    @property
    def started(self) -> ChatStarted:
        (found,) = [event for event in self.events if isinstance(event, ChatStarted)]
        return found


@dataclass
class Lane:
    """A lane on this thread, with a short way to chat."""

    lane: ChatLane
    line: ChatLine

    def put(self, one: ChatPermit, *, seconds: float | None = None, also: Any = None) -> tuple[ChatRow, ChatHeard]:
        heard = ChatHeard(also)
        row = ChatRow(one, heard, None if seconds is None else time.monotonic() + seconds)
        self.line.put(row)
        return row, heard

    def run(self) -> None:
        while self.lane.step():
            pass

    def chat(self, *texts: str, **settings: Any) -> ChatHeard:
        """One chat by itself, to its end."""
        _, heard = self.put(permit(*texts, **settings))
        self.run()
        return heard

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.lane.step()

    @property
    def held_bytes(self) -> int:
        """What the rows' caches hold."""
        reading = sum(layer.nbytes for prompt in self.lane._prompts._turns for layer in prompt.cache or ())
        return int(self.lane._generator.prompt_cache_nbytes) + int(reading)


def tokenizer_that_ends(ends: Sequence[int]) -> Any:
    """The byte tokenizer, with these tokens for its ends; none makes every message as long as it may be."""
    tokenizer = byte_tokenizer()
    tokenizer.eos_token_ids = ends
    return tokenizer


def served(model: Any = "llama", *, ends: Sequence[int] = (), **settings: Any) -> ChatServed:
    plain = ChatServed(
        name="tiny",
        model=tiny_model(model) if isinstance(model, str) else model,
        tokenizer=tokenizer_that_ends(ends),
        stream=streams()[0],
        rows=4,
        memory_tokens=100_000,
        cache_bytes=1 << 30,
        published=lambda rows: nullcontext(),
        salt=lambda adapter: "",
    )
    return replace(plain, **settings)


def lane(model: Any = "llama", *, waiting: int = 8, **settings: Any) -> Lane:
    made = served(model, **settings)
    line = ChatLine(made.rows, waiting)
    return Lane(ChatLane(made, line), line)


def chat(engine: Engine, asked: ChatRequest, also: Any = None, **settings: Any) -> tuple[ChatRow, ChatHeard]:
    """Have a running engine take a chat."""
    heard = ChatHeard(also)
    return engine.submit_chat(engine.admit_chat(asked), heard, **settings), heard
