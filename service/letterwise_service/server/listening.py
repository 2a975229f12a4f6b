"""Where the server listens, and how its connections behave.

Owns the transport's options and the binding of the port. Knows nothing of what is served.
"""

from __future__ import annotations

import ipaddress
import socket

import grpc.aio

from ..config import ServerConfig
from .transport import Certificates

# A token and a trace in a header are hundreds of bytes.
_METADATA_BYTES = 16 * 1024
# On one connection, which may be that of a proxy for many callers; more wait at the caller's end.
_STREAMS = 1024
# How long a call may go on upon a connection that takes no new ones for its age: longer than any chat.
_OLD_CALLS_MS = 4 * 3600 * 1000
# Calls that have come and that the event loop has not taken up yet. Past gRPC's own 1,000 it cuts off some at random,
# which their callers see as CANCELLED; a loop that is busy for a moment has more than that to take up.
_UNTAKEN_CALLS = 16 * _STREAMS


class PortUnavailable(Exception):
    """The address cannot be listened on; one sentence says why."""


def options(config: ServerConfig) -> list[tuple[str, int]]:
    """The channel arguments of the server."""
    age_ms = round(config.connection_age_seconds * 1000)
    return [
        ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_age_ms", age_ms),
        # Both, or a size between the two would be refused at random.
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.max_concurrent_streams", _STREAMS),
        # It resets streams that are within the bound while ended ones are not yet freed.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", _UNTAKEN_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _UNTAKEN_CALLS),
        ("grpc.max_connection_age_grace_ms", _OLD_CALLS_MS),
    ]


def bind(server: grpc.aio.Server, host: str, port: int, tls: Certificates | None = None) -> int:
    """Adds the port and gives the one that was bound. Tried with a plain socket first, for a reason one can read.

    Raises PortUnavailable.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
        if tls is not None:
            return server.add_secure_port(address(host, port), tls.grpc_credentials())
        return server.add_insecure_port(address(host, port))
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is in use"
        raise PortUnavailable(f"cannot listen on {address(host, port)}: {reason} (--port)") from None


def address(host: str, port: int) -> str:
    """The target of a host and a port; an IPv6 host goes in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host; a name other than localhost is taken for one that others reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
