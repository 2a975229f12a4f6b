"""A chat as a caller sees it: messages, the events of a stream as a union tagged by `kind`, and the whole reply.

The order of events is: started; any number of deltas; finished. A stream that ends in another way raises. Pure data;
the fields are those of the messages of the same names in `chat.proto`, where each is documented.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .answers import Usage


@dataclass(frozen=True)
class ChatMessage:
    """One message: `role` is system, user or assistant."""

    role: str
    content: str


# What a caller may give as a conversation: one question of the user's, or messages, oldest first.
Messages: TypeAlias = str | Iterable[ChatMessage | Mapping[str, str]]


@dataclass(frozen=True)
class ChatStarted:
    """The prompt was read, `reused_tokens` of it kept from an earlier chat."""

    prompt_tokens: int
    reused_tokens: int
    kind: Literal["started"] = "started"


@dataclass(frozen=True)
class ChatToken:
    """A generated token and the natural logarithm of its probability, before any temperature."""

    id: int
    logprob: float


@dataclass(frozen=True)
class ChatDelta:
    """Text to append, empty while a token is half of a character, and the tokens since the last event."""

    text: str
    tokens: tuple[ChatToken, ...]
    kind: Literal["delta"] = "delta"


@dataclass(frozen=True)
class ChatFinished:
    """The message is complete: the last event.

    finish_reason: stop or length; `other` for a reason that this client does not know.
    """

    model: str
    finish_reason: str
    usage: Usage
    queue_seconds: float
    total_seconds: float
    kind: Literal["finished"] = "finished"


ChatEvent: TypeAlias = ChatStarted | ChatDelta | ChatFinished


@dataclass(frozen=True)
class ChatReply:
    """A whole message, and how it was had; see ChatStarted and ChatFinished."""

    text: str
    finish_reason: str
    usage: Usage
    tokens: tuple[ChatToken, ...]
    model: str
    reused_tokens: int
    queue_seconds: float
    total_seconds: float


class Transcript:
    """What the events of one chat have told so far."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[ChatToken] = []
        self._reused_tokens = 0
        self._end: ChatFinished | None = None

    def take(self, event: ChatEvent) -> ChatEvent:
        """Adds an event, and gives it back."""
        match event:
            case ChatStarted():
                self._reused_tokens = event.reused_tokens
            case ChatDelta():
                self._texts.append(event.text)
                self._tokens.extend(event.tokens)
            case ChatFinished():
                self._end = event
        return event

    @property
    def text(self) -> str:
        """The message as far as it has come."""
        return "".join(self._texts)

    def reply(self) -> ChatReply | None:
        """The whole message; None before its end."""
        if (end := self._end) is None:
            return None
        return ChatReply(
            text=self.text,
            finish_reason=end.finish_reason,
            usage=end.usage,
            tokens=tuple(self._tokens),
            model=end.model,
            reused_tokens=self._reused_tokens,
            queue_seconds=end.queue_seconds,
            total_seconds=end.total_seconds,
        )
