"""The synchronous client: sends messages, waits for replies.

Owns one channel, which any number of threads may share. What is sent, how replies are read and which error a failure
becomes is not decided here: see `requests.py`, `replies.py` and `status.py`, which the asynchronous client shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc

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
from .errors import Cancelled
from .info import Info
from .questions import Json, Questions
from .replies import read_decision, read_info, read_prewarmed
from .requests import Ask, Samples, chat_request, decide_request, prewarm_request
from .serving import AdapterName, ServiceClass
from .status import Sent
from .streams import ChatStream, DecisionStream, error_from_call
from .v1 import decision_pb2 as pb
from .v1 import info_pb2
from .v1.chat_pb2_grpc import ChatServiceStub
from .v1.decision_pb2_grpc import DecisionServiceStub

Reply = TypeVar("Reply")

CLOSED = "the client is closed"


class Client:
    """Asks a Letterwise server.

    with Client("localhost:50051") as client:
        decision = client.decide("I was charged twice!", {"angry": Noul("Is the customer angry?")})
        print(decision["angry"].probability)

    target: host:port; the port is 50051 when left out.
    timeout_seconds: the deadline of a call, all its attempts together; each call can set its own.
    retry: how refused calls are repeated (`Retry`), or None for one attempt.
    token: the bearer token of a server that asks for one; give it only over TLS, or to this machine.
    tls: for a server with TLS (`Tls()`, or its files); the channel is plain text without.
    credentials: gRPC's own channel credentials, in place of `tls`.
    options: further gRPC channel options; they win over the client's own.
    max_message_bytes: the largest message sent or received.
    Calls raise LetterwiseError, and so does the client itself for a target or a deadline that is none.
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
        self._timeout_seconds = deadline(timeout_seconds)
        self._metadata = call_metadata(token)
        settings = channel_options(retry, max_message_bytes, options)
        secure = channel_credentials(tls, credentials)
        if secure is None:
            self._channel = grpc.insecure_channel(self._target, settings)
        else:
            self._channel = grpc.secure_channel(self._target, secure, settings)
        self._stub = DecisionServiceStub(self._channel)
        self._chat_stub = ChatServiceStub(self._channel)
        self._closed = False

    def decide(
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
        """Answers questions about a state.

        questions: a mapping of ids to questions, or questions that carry their ids.
        samples: option orders to read and average; "auto" is one.
        ask: the ids to answer, those that they depend on by `ask_if` among them; None for all.
        adapter: the adapter to read with, by its name or as an Adapter with a scale; None for the model alone.
        service_class: "batch" for work that can wait until nothing interactive runs.
        model: the model wanted; a server answers any name with the one that it serves.
        """
        request = decide_request(
            state, questions, samples=samples, ask=ask, adapter=adapter, service_class=service_class, model=model
        )
        return read_decision(self._call(self._stub.Decide, request, self._sent(timeout_seconds, questions)))

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
    ) -> DecisionStream:
        """The same decision as events, each the moment it is known; takes what `decide` takes."""
        request = decide_request(
            state, questions, samples=samples, ask=ask, adapter=adapter, service_class=service_class, model=model
        )
        sent = self._sent(timeout_seconds, questions)
        return DecisionStream(self._call(self._stub.DecideStream, pb.DecideStreamRequest(request=request), sent), sent)

    def prewarm(
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
        return read_prewarmed(self._call(self._stub.Prewarm, request, self._sent(timeout_seconds)))

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
    ) -> ChatStream:
        """Generates the next message of a conversation, as a stream of events; nothing is stored on the server.

        messages: the user's text, or messages (ChatMessage or {"role": …, "content": …}), the user's last.
        max_tokens: the most tokens to generate; None for the server's default.
        temperature: 0, or None, takes the likeliest token each time. top_p: draws from the likeliest tokens that
        together have this probability. seed: the same seed draws the same way; None for a new one every time.
        stop: texts that end the message and are not part of it.
        timeout_seconds: the deadline of the whole stream; the client's own when None. A long message on a slow
        machine needs more. What has come when it passes is still in the stream's `text`.
        """
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
        return ChatStream(self._call(self._chat_stub.Chat, request, sent), sent)

    def info(self, *, timeout_seconds: float | None = None) -> Info:
        """What the server serves, how it is read, and within which limits."""
        return read_info(self._call(self._stub.GetInfo, info_pb2.GetInfoRequest(), self._sent(timeout_seconds)))

    def close(self) -> None:
        """Closes the channel; calls in flight are cancelled."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _sent(self, timeout_seconds: float | None, questions: Questions = ()) -> Sent:
        seconds = self._timeout_seconds if timeout_seconds is None else deadline(timeout_seconds)
        return Sent(self._target, seconds, questions)

    def _call(self, method: Callable[..., Reply], request: object, sent: Sent) -> Reply:
        if self._closed:
            raise Cancelled(CLOSED)
        try:
            return method(request, timeout=sent.timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as failure:
            raise error_from_call(failure, sent) from None
        except ValueError:
            # gRPC's own word for a channel that another thread has closed since the check
            if self._closed:
                raise Cancelled(CLOSED) from None
            raise
