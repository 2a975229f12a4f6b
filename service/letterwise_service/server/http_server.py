"""The HTTP port: uvicorn on the event loop that gRPC runs on, from its binding to its last connection.

Owns the socket and uvicorn's settings. Signals and the drain are the app's: uvicorn's own handlers stay off. Knows
nothing of what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .listening import PortUnavailable, address

# The head of a request: a token and a trace are hundreds of bytes.
_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 10.0
# Longer than callers keep a silent connection, so that they end it; the `typesafe-sdk` package does after 30 s.
_SILENCE_SECONDS = 75
_BACKLOG = 2048
# uvicorn looks every tenth of a second whether it is to end, and whether it has.
_END_SECONDS = 1.0


class HttpServer:
    """One application on one port."""

    def __init__(self, app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port = host, port
        self._server = _Uvicorn(_settings(app, tls))
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that was bound; 0 for none."""
        return self._port if self._serving is not None else 0

    async def open(self) -> None:
        """Listens, unless the port is 0. Raises PortUnavailable."""
        if self._port == 0:
            return
        listening = _listening(self._host, self._port)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started:
            await asyncio.sleep(0)
            if self._serving.done():
                self._serving.result()

    async def close(self, grace_seconds: float) -> None:
        """Takes no connection any more and ends the silent ones; what still runs after the grace is cut off."""
        if self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=grace_seconds)
        self._server.cut_off()
        await asyncio.wait([self._serving], timeout=_END_SECONDS)
        self._serving = None


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The app's signal handlers stay."""
        yield

    def cut_off(self) -> None:
        """Ends every connection, whatever runs on it; the application hears that its caller is gone."""
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


class _Http(H11Protocol):
    """h11, and not the faster parser that uvicorn has too, which bounds no request's head; and a bound on its time."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:  # a part of a head
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def _settings(app: ASGIApp, tls: ssl.SSLContext | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Http,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_SILENCE_SECONDS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        ssl_context_factory=None if tls is None else lambda config, default: tls,
    )


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that a second server fails at once. Raises PortUnavailable."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unavailable(host, port, error) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise _unavailable(host, port, error) from None
    return listening


def _unavailable(host: str, port: int, error: OSError) -> PortUnavailable:
    return PortUnavailable(f"cannot listen on {address(host, port)} for HTTP: {error.strerror or error} (--http-port)")
