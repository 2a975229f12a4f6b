"""What wraps every HTTP request: its id, the check of its token, its log line, its metrics, its span, its refusal.

Owns how a request that fails ends: with a status and a JSON body. Requests of the routes that watch a server (is it
alive, is it ready, what does it count) need no token but for the last, and a drain does not wait for them. Runs on the
event loop. Knows nothing of what a route does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import metrics
from .calls import Calls
from .credentials import Credentials
from .http_errors import http_refusal_of
from .logs import REQUEST_ID, named
from .tracing import Call, Tracing

_log = logging.getLogger(__name__)
T = TypeVar("T")

# Where the `typesafe-sdk` package looks for it.
_TYPESAFE_REQUEST_ID = "x-typesafe-request-id"
PROBES = ("/healthz", "/readyz")
METRICS = "/metrics"
# What is counted where nothing was sent, since the caller had gone; nginx's number for it.
_GONE = 499
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_OTHER = "other"  # a caller's own word is no label


class HttpDoor:
    """An ASGI application around another, which has these routes."""

    def __init__(
        self, app: ASGIApp, routes: Collection[str], calls: Calls, credentials: Credentials, tracing: Tracing
    ) -> None:
        self._app = app
        self._routes = frozenset(routes)
        self._calls = calls
        self._credentials = credentials
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its head to the last byte of its reply."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        route = scope["path"] if scope["path"] in self._routes else _OTHER
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        reply = _Reply(send, named(headers), self._calls)
        watching = route in PROBES or route == METRICS
        with (
            self._tracing.call(f"{method} {route}", headers, request_id=reply.request_id) as call,
            _observed(route, method, reply, call),
            nullcontext() if watching else self._calls.counted(),
        ):
            await self._answer(scope, receive, reply, headers)

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply, headers: Headers) -> None:
        try:
            if scope["path"] not in PROBES:
                shown = headers.getlist("authorization")
                self._credentials.check(shown[0] if len(shown) == 1 else None)
            await self._app(scope, receive, reply.send)
        except ClientDisconnect:
            reply.gone = True
        except Exception as error:
            if reply.status is not None:  # too late to say so; the server closes the connection
                raise
            await http_refusal_of(error).response()(scope, receive, reply.send)


class _Reply:
    """A reply on its way out: has the request's id put on it, and remembers its status."""

    def __init__(self, send: Send, request_id: str, calls: Calls) -> None:
        self._send = send
        self._calls = calls
        self.request_id = request_id
        self.status: int | None = None
        self.gone = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID] = headers[_TYPESAFE_REQUEST_ID] = self.request_id
            if self._calls.closing:
                headers["connection"] = "close"  # so that the caller's next request finds another server
        await self._send(message)


@contextmanager
def _observed(route: str, method: str, reply: _Reply, call: Call) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - started
        status = _GONE if reply.gone or reply.status is None else reply.status
        metrics.http_handled(route, method, status, seconds)
        call.ended(str(status), failed=status >= 500)
        level = logging.DEBUG if route in PROBES or route == METRICS else logging.INFO
        _log.log(level, "http", extra={"route": route, "method": method, "status": status, "seconds": seconds})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, once the body has been read; it is cancelled when the caller goes away before.

    Raises ClientDisconnect, and what `work` raises.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
