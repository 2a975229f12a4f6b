"""What wraps every RPC of ours: its request id, the check of its token, its log line, its metrics, its span.

Services of gRPC itself (health, reflection) pass through as they are: a wrapped health watch breaks. Runs on the
event loop. Knows nothing of what an RPC does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from .. import metrics
from ..errors import MalformedBody, Unauthenticated
from .calls import refuse
from .credentials import Credentials
from .logs import REQUEST_ID, named
from .tracing import Call, Tracing

_log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
# Codes that say that the server failed, not its caller.
_FAULTS = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE"})

_Handler: TypeAlias = Any  # grpc.RpcMethodHandler; its behaviours are attributes that the stubs do not have
# Entered around a running RPC; yields what to call for each message sent.
_Around: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Callable[[], None]]]


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Gives each RPC a request id (the caller's `x-request-id`, or a new one), has its token checked before its
    message is read, counts it, traces it and logs its end."""

    def __init__(self, credentials: Credentials, tracing: Tracing) -> None:
        self._credentials = credentials
        self._tracing = tracing

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """The handler of the called method, wrapped when it is one of ours."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith("/grpc."):
            return handler
        service, method = handler_call_details.method.lstrip("/").rsplit("/", 1)
        kind = "server_stream" if handler.response_streaming else "unary"
        return _wrapped(handler, lambda context: self._around(context, kind, service, method))

    @asynccontextmanager
    async def _around(
        self, context: Any, kind: str, service: str, method: str
    ) -> AsyncGenerator[Callable[[], None], None]:
        headers = _headers(context)
        identifier = named(headers)
        context.set_trailing_metadata(((REQUEST_ID, identifier),))
        with self._tracing.call(f"{service}/{method}", headers, request_id=identifier) as call:
            async with _counted(context, kind, service, method, call):
                await self._check(context)
                yield lambda: metrics.rpc_message_sent(kind, service, method)

    async def _check(self, context: Any) -> None:
        shown = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        try:
            self._credentials.check(shown[0] if len(shown) == 1 and isinstance(shown[0], str) else None)
        except Unauthenticated as error:
            await refuse(context, error)


def _wrapped(handler: _Handler, around: _Around) -> _Handler:
    async def unary(body: bytes, context: Any) -> Any:
        async with around(context) as sent:
            request = await _parsed(handler, body, context)
            reply = await handler.unary_unary(request, context)
            sent()
            return reply

    async def stream(body: bytes, context: Any) -> AsyncGenerator[Any, None]:
        async with around(context) as sent:
            request = await _parsed(handler, body, context)
            async with aclosing(handler.unary_stream(request, context)) as replies:
                async for reply in replies:
                    yield reply
                    sent()

    # The bytes are parsed in here: what cannot be parsed is then a caller's error, counted and logged like any other.
    coders = {"request_deserializer": None, "response_serializer": handler.response_serializer}
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, **coders)
    return grpc.unary_unary_rpc_method_handler(unary, **coders)


async def _parsed(handler: _Handler, body: bytes, context: Any) -> Any:
    try:
        return handler.request_deserializer(body)
    except DecodeError:
        await refuse(context, MalformedBody("the message is not one that this method takes, or its text is not UTF-8"))


@asynccontextmanager
async def _counted(context: Any, kind: str, service: str, method: str, call: Call) -> AsyncIterator[None]:
    metrics.rpc_started(kind, service, method)
    started, code = time.perf_counter(), "OK"
    try:
        yield
    except BaseException as error:
        code = _code(context, error)
        raise
    finally:
        seconds = time.perf_counter() - started
        metrics.rpc_handled(kind, service, method, code, seconds)
        call.ended(code, failed=code in _FAULTS)
        _log.info("rpc", extra={"method": method, "code": code, "seconds": seconds})


def _headers(context: Any) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _code(context: Any, error: BaseException) -> str:
    """The name of the code that the caller of a failed RPC sees."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        remaining = context.time_remaining()
        return "CANCELLED" if remaining is None or remaining > 0 else "DEADLINE_EXCEEDED"
    code = context.code()
    for known in grpc.StatusCode:
        if known is not grpc.StatusCode.OK and code in (known, known.value[0]):
            return known.name
    return "UNKNOWN"
