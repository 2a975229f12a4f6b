"""The streams of both clients: events of a call that is still running, as typed values.

Owns the running call, and how it ends: with its status once the last event has come, cancelled when it is left before.
What a reply means is `replies.py`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc

from .chat import ChatDelta, ChatEvent, ChatFinished, ChatReply, Transcript
from .errors import BadReply, Cancelled, LetterwiseError
from .events import Completed, Event
from .replies import read_chat_event, read_event
from .status import Sent

E = TypeVar("E")

_LAST = (Completed, ChatFinished)


class EventStream(Iterator[E], Generic[E]):
    """What the synchronous client's streams share."""

    def __init__(self, call: Any, sent: Sent) -> None:
        self._call = call
        self._sent = sent
        self._closed = False

    @abstractmethod
    def _event(self, reply: Any) -> E | None:
        """A reply as an event; None for one that this client does not know."""

    def __next__(self) -> E:
        try:
            while not self._closed:
                if event := self._event(next(self._call)):
                    if isinstance(event, _LAST):
                        self._read_to_end()
                    return event
        except grpc.RpcError as failure:
            # closed from another thread while waiting: the end of the stream, not a failure
            if not self._closed:
                raise error_from_call(failure, self._sent) from None
        raise StopIteration

    def _read_to_end(self) -> None:
        # a call that is left before its status has come ends as cancelled on the server
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            # the reply is whole: how its call ends changes nothing
            pass

    def close(self) -> None:
        """Ends the stream; may be called from any thread and more than once."""
        self._closed = True
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncEventStream(AsyncIterator[E], Generic[E]):
    """What the asynchronous client's streams share."""

    def __init__(self, call: Any, sent: Sent) -> None:
        self._call = call
        self._sent = sent
        self._replies = aiter(call)
        self._closed = False

    @abstractmethod
    def _event(self, reply: Any) -> E | None:
        """A reply as an event; None for one that this client does not know."""

    async def __anext__(self) -> E:
        try:
            while not self._closed:
                if event := self._event(await anext(self._replies)):
                    if isinstance(event, _LAST):
                        await self._read_to_end()
                    return event
        except grpc.RpcError as failure:
            raise error_from_call(failure, self._sent) from None
        raise StopAsyncIteration

    async def _read_to_end(self) -> None:
        # as EventStream does, and for its reasons
        try:
            async for _ in self._replies:
                pass
        except grpc.RpcError:
            pass

    async def aclose(self) -> None:
        """Ends the stream; may be called more than once."""
        self._closed = True
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


class DecisionStream(EventStream[Event]):
    """A decision's events. Closing it, or leaving its `with` block, cancels what is still running on the server."""

    def _event(self, reply: Any) -> Event | None:
        return read_event(reply)


class AsyncDecisionStream(AsyncEventStream[Event]):
    """A decision's events. Closing it, or leaving its `async with` block, cancels what is still running."""

    def _event(self, reply: Any) -> Event | None:
        return read_event(reply)


class ChatStream(EventStream[ChatEvent]):
    """A chat's events: iterate over them, over `texts()`, or take the whole with `finish()`.

    Closing it, or leaving its `with` block, stops the generation.
    """

    def __init__(self, call: Any, sent: Sent) -> None:
        super().__init__(call, sent)
        self._told = Transcript()

    def _event(self, reply: Any) -> ChatEvent | None:
        event = read_chat_event(reply)
        return None if event is None else self._told.take(event)

    @property
    def text(self) -> str:
        """The message as far as it has been read here; whole after `finish`."""
        return self._told.text

    def texts(self) -> Iterator[str]:
        """The message piece by piece, as it comes."""
        for event in self:
            if isinstance(event, ChatDelta) and event.text:
                yield event.text

    def finish(self) -> ChatReply:
        """Reads to the end and gives the whole message, what was read before included."""
        for _ in self:
            pass
        return _whole(self._told, self._closed)


class AsyncChatStream(AsyncEventStream[ChatEvent]):
    """A chat's events; as ChatStream, from a coroutine."""

    def __init__(self, call: Any, sent: Sent) -> None:
        super().__init__(call, sent)
        self._told = Transcript()

    def _event(self, reply: Any) -> ChatEvent | None:
        event = read_chat_event(reply)
        return None if event is None else self._told.take(event)

    @property
    def text(self) -> str:
        """The message as far as it has been read here; whole after `finish`."""
        return self._told.text

    async def texts(self) -> AsyncIterator[str]:
        """The message piece by piece, as it comes."""
        async for event in self:
            if isinstance(event, ChatDelta) and event.text:
                yield event.text

    async def finish(self) -> ChatReply:
        """Reads to the end and gives the whole message, what was read before included."""
        async for _ in self:
            pass
        return _whole(self._told, self._closed)


def _whole(told: Transcript, closed: bool) -> ChatReply:
    if reply := told.reply():
        return reply
    raise (
        Cancelled("the chat was closed before its end") if closed else BadReply("the chat ended without its last event")
    )


def error_from_call(failure: Any, sent: Sent) -> LetterwiseError:
    """The error for a failed call, of either kind of channel; both carry their status in the same three methods."""
    return sent.error(failure.code().name, failure.details() or "", failure.trailing_metadata() or ())
