"""`/metrics` for Prometheus: the registry over HTTP, on a port of its own beside the gRPC one.

prometheus-client's server on its own daemon thread, which only reads the registry. Knows no metric.
"""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from ..metrics import REGISTRY
from .listening import PortUnavailable, address


class Scrape:
    """The metrics' port, open from `open` to `close`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    def open(self) -> None:
        """Listens, unless the port is 0. Raises PortUnavailable."""
        if self._port == 0:
            return
        try:
            self._running = start_http_server(self._port, addr=self._host, registry=REGISTRY)
        except OSError as error:
            where = address(self._host, self._port)
            raise PortUnavailable(
                f"cannot listen on {where} for metrics: {error.strerror or error} (--metrics-port)"
            ) from None

    def close(self) -> None:
        """Gives the port back; returns once the thread has ended, in half a second at most. Not on an event loop."""
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()
            self._running = None
