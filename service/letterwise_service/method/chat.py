"""The chat request: one frozen domain object, the same from every front door, and the rules that it is held to.

Pure Python. Knows nothing of protobuf, tokens or models; how long a conversation may be is the engine's to check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InvalidRequest, Violation
from .request import Adapter
from .validation import MAX_VIOLATIONS, adapter_violations

ROLES = ("system", "user", "assistant")
MAX_MESSAGES = 4096
MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
MAX_TEMPERATURE = 2.0


@dataclass(frozen=True)
class ChatMessage:
    """One message: who speaks (`system`, `user`, `assistant`) and what is said."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatRequest:
    """A conversation to continue.

    max_tokens: the most tokens to generate. temperature: 0 takes the likeliest token each time.
    top_p: only the likeliest tokens that together have this probability are drawn from.
    seed: starts the draws; None for a new one every time. stop: texts that end the message and are not part of it.
    """

    messages: tuple[ChatMessage, ...]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    adapter: Adapter | None = None


def check(request: ChatRequest, *, max_tokens: int) -> None:
    """Raises InvalidRequest with the first ten violations. `max_tokens`: the most that the server generates."""
    if broken := list(_violations(request, max_tokens)):
        raise InvalidRequest(broken[:MAX_VIOLATIONS])


def _violations(request: ChatRequest, max_tokens: int) -> Iterator[Violation]:
    yield from _of_messages(request.messages)
    if not 1 <= request.max_tokens <= max_tokens:
        yield Violation("max_tokens", f"expected a whole number from 1 to {max_tokens}")
    if not 0 <= request.temperature <= MAX_TEMPERATURE:  # false for a NaN
        yield Violation("temperature", f"expected a number from 0 to {MAX_TEMPERATURE:g}")
    if not 0 < request.top_p <= 1:
        yield Violation("top_p", "expected a number above 0, up to 1")
    if len(request.stop) > MAX_STOPS:
        yield Violation("stop", f"expected at most {MAX_STOPS} texts")
    for index, text in enumerate(request.stop[:MAX_STOPS]):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            yield Violation(f"stop[{index}]", f"expected a text of 1 to {MAX_STOP_CHARACTERS} characters")
    yield from adapter_violations(request.adapter)


def _of_messages(messages: tuple[ChatMessage, ...]) -> Iterator[Violation]:
    if not messages:
        yield Violation("messages", "expected at least one message")
        return
    if len(messages) > MAX_MESSAGES:
        yield Violation("messages", f"expected at most {MAX_MESSAGES} messages")
        return
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            yield Violation(f"messages[{index}].role", f"expected one of {', '.join(ROLES)}")
        elif message.role == "system" and index:
            yield Violation(f"messages[{index}].role", "expected the system message first, and once")
    if messages[-1].role in ("assistant", "system"):
        yield Violation(f"messages[{len(messages) - 1}].role", "expected the last message to be the user's")
