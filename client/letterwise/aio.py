"""The asynchronous client: the synchronous one's methods as coroutines, on one event loop.

Owns one channel, opened by the first call, since it belongs to the loop that runs then. Shares everything but the
sending with `client.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc import aio

from .answers import Decision, Prewarmed
from .channel import (
    DEFAULT_MESSAGE_BYTES,
    DEFAULT_RETRY,
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_SECONDS,
    ChannelOption,
    Retry,
    Tls,
    address,
    call_metadata,
    channel_credentials,
    channel_options,
    deadline,
)
from .chat import Messages
from .client import CLOSED
from .errors import Cancelled
from .info import Info
from .questions import Json, Questions
from .replies import read_decision, read_info, read_prewarmed
from .requests import Ask, Samples, chat_request, decide_request, prewarm_request
from .serving import AdapterName, ServiceClass
from .status import Sent
from .streams import AsyncChatStream, AsyncDecisionStream, error_from_call
from .v1 import decision_pb2 as pb
from .v1 import info_pb2
from .v1.chat_pb2_grpc import ChatServiceStub
from .v1.decision_pb2_grpc import DecisionServiceStub

if TYPE_CHECKING:
    # only the stub files have these names
    from .v1.chat_pb2_grpc import ChatServiceAsyncStub
    from .v1.decision_pb2_grpc import DecisionServiceAsyncStub


class AsyncClient:
    """Asks a Letterwise server from a coroutine; takes and raises what `Client` does.

    async with AsyncClient("localhost:50051") as client:
        decision = await client.decide("I was charged twice!", {"angry": Noul("Is the customer angry?")})
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        retry: Retry | None = DEFAULT_RETRY,
        token: str | None = None,
        tls: Tls | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Iterable[ChannelOption] = (),
        max_message_bytes: int = DEFAULT_MESSAGE_BYTES,
    ) -> None:
        self._target = address(target)
        self._settings = channel_options(retry, max_message_bytes, options)
        self._credentials = channel_credentials(tls, credentials)
        self._metadata = call_metadata(token)
        self._timeout_seconds = deadline(timeout_seconds)
        self._channel: aio.Channel | None = None
        self._closed = False

    async def decide(
        self,
        state: Json,
        questions: Questions,
        *,
        samples: Samples = 1,
        ask: Ask | None = None,
        adapter: AdapterName | None = None,
        service_class: ServiceClass | None = None,
        model: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Decision:
        """Answers questions about a state; see `Client.decide`."""
        request = decide_request(
            state, questions, samples=samples, ask=ask, adapter=adapter, service_class=service_class, model=model
        )
        sent = self._sent(timeout_seconds, questions)
        return read_decision(await self._call(lambda stub: stub.Decide, request, sent))

    def decide_stream(
        self,
        state: Json,
        questions: Questions,
        *,
        samples: Samples = 1,
        ask: Ask | None = None,
        adapter: AdapterName | None = None,
        service_class: ServiceClass | None = None,
        model: str | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncDecisionStream:
        """The same decision as events, each the moment it is known; not awaited, but iterated."""
        request = decide_request(
            state, questions, samples=samples, ask=ask, adapter=adapter, service_class=service_class, model=model
        )
        sent = self._sent(timeout_seconds, questions)
        wrapped = pb.DecideStreamRequest(request=request)
        return AsyncDecisionStream(self._stub().DecideStream(wrapped, **self._how(sent)), sent)

    async def prewarm(
        self,
        state: Json,
        *,
        adapter: AdapterName | None = None,
        service_class: ServiceClass | None = None,
        model: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Prewarmed:
        """Reads a state before its questions arrive, so that the next decision on it reads only questions."""
        request = prewarm_request(state, adapter=adapter, service_class=service_class, model=model)
        return read_prewarmed(await self._call(lambda stub: stub.Prewarm, request, self._sent(timeout_seconds)))

    def chat(
        self,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        adapter: AdapterName | None = None,
        model: str | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncChatStream:
        """The next message of a conversation, as a stream; not awaited, but iterated. See `Client.chat`."""
        request = chat_request(
            messages,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop,
            adapter=adapter,
            model=model,
        )
        sent = self._sent(timeout_seconds)
        return AsyncChatStream(self._chat_stub().Chat(request, **self._how(sent)), sent)

    async def info(self, *, timeout_seconds: float | None = None) -> Info:
        """What the server serves, how it is read, and within which limits."""
        sent = self._sent(timeout_seconds)
        return read_info(await self._call(lambda stub: stub.GetInfo, info_pb2.GetInfoRequest(), sent))

    async def close(self) -> None:
        """Closes the channel; calls in flight are cancelled."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _sent(self, timeout_seconds: float | None, questions: Questions = ()) -> Sent:
        seconds = self._timeout_seconds if timeout_seconds is None else deadline(timeout_seconds)
        return Sent(self._target, seconds, questions)

    def _how(self, sent: Sent) -> dict[str, Any]:
        return {"timeout": sent.timeout_seconds, "metadata": self._metadata}

    async def _call(self, method: Callable[[DecisionServiceAsyncStub], Any], request: object, sent: Sent) -> Any:
        try:
            return await method(self._stub())(request, **self._how(sent))
        except grpc.RpcError as failure:
            raise error_from_call(failure, sent) from None

    def _stub(self) -> DecisionServiceAsyncStub:
        return DecisionServiceStub(self._opened())

    def _chat_stub(self) -> ChatServiceAsyncStub:
        return ChatServiceStub(self._opened())

    def _opened(self) -> aio.Channel:
        if self._closed:
            raise Cancelled(CLOSED)
        if self._channel is None:
            self._channel = self._open()
        return self._channel

    def _open(self) -> aio.Channel:
        if self._credentials is None:
            return aio.insecure_channel(self._target, self._settings)
        return aio.secure_channel(self._target, self._credentials, self._settings)
