"""What wraps every RPC of ours: its request id, its log line, its metrics.

Services of gRPC itself (health, reflection) pass through as they are: a wrapped health watch breaks. Runs on the
event loop. Knows nothing of what an RPC does.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from .. import metrics
from ..errors import MalformedBody
from .logs import request_id
from .status import refusal_of

_log = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_Handler: TypeAlias = Any  # grpc.RpcMethodHandler; its behaviours are attributes that the stubs do not have
# Entered around a running RPC; yields what to call for each message sent.
_Around: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Callable[[], None]]]


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Gives each RPC a request id (the caller's `x-request-id`, or a new one), counts it and logs its end."""

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
        return _wrapped(handler, lambda context: _observed(context, kind, service, method))


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
        refusal = refusal_of(MalformedBody("the message is not one that this method takes, or its text is not UTF-8"))
        status = rpc_status.to_status(refusal.status)
        await context.abort(status.code, status.details, (*context.trailing_metadata(), *status.trailing_metadata))


@asynccontextmanager
async def _observed(context: Any, kind: str, service: str, method: str) -> AsyncIterator[Callable[[], None]]:
    identifier = _identifier(context)
    request_id.set(identifier)
    context.set_trailing_metadata(((REQUEST_ID, identifier),))
    metrics.rpc_started(kind, service, method)
    started, code = time.perf_counter(), "OK"
    try:
        yield lambda: metrics.rpc_message_sent(kind, service, method)
    except BaseException as error:
        code = _code(context, error)
        raise
    finally:
        seconds = time.perf_counter() - started
        metrics.rpc_handled(kind, service, method, code, seconds)
        _log.info("rpc", extra={"method": method, "code": code, "seconds": seconds})


def _identifier(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and _ACCEPTABLE_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex


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
