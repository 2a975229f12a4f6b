"""How a channel to a server is set up: its address, TLS, token, deadlines, message limits and the retry policy.

Owns the gRPC channel options, the channel credentials and the service config. Opens nothing.

The policy: a call that ends UNAVAILABLE or RESOURCE_EXHAUSTED before its first reply is sent again, after the time that
the server names (`grpc-retry-pushback-ms`), or else after a random time under a growing bound. The call's deadline
bounds all attempts together. Nothing else is repeated: a deadline that passed would only add load.
"""

from __future__ import annotations

import json
import math
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from .errors import InvalidRequest, Violation
from .v1 import chat_pb2, decision_pb2

ChannelOption: TypeAlias = tuple[str, Any]

DEFAULT_PORT = 50051
DEFAULT_TARGET = f"localhost:{DEFAULT_PORT}"
DEFAULT_TIMEOUT_SECONDS = 120.0
DEFAULT_MESSAGE_BYTES = 16 * 2**20
RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# gRPC itself lowers a larger number to this one
MOST_ATTEMPTS = 5
# three years: gRPC takes a much longer deadline for one that has passed
LONGEST_SECONDS = 1e8
# the characters of a bearer token (RFC 6750)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAMING_SCHEME = re.compile(r"(dns|unix|unix-abstract|ipv4|ipv6|vsock|xds):(?!\d+$).+")
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%\w]+\]|[^\s:/@\[\]?#]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Retry:
    """How often and how soon a refused call is sent again; `attempts` counts the first one, 2 to 5."""

    attempts: int = 4
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 5.0
    growth: float = 2.0

    def __post_init__(self) -> None:
        if not 2 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts must be 2 to {MOST_ATTEMPTS}; for one attempt, give retry=None")
        if min(self.first_backoff_seconds, self.longest_backoff_seconds, self.growth) <= 0:
            raise ValueError("backoff times and growth must be positive")


DEFAULT_RETRY = Retry()


def address(target: str) -> str:
    """A server's address with its port, 50051 when it has none; gRPC's own names (`unix:/path`) stay as they are.

    Raises InvalidRequest for what is no address, before gRPC would fail on it in its own way.
    """
    text = target.strip() if isinstance(target, str) else ""
    if _NAMING_SCHEME.fullmatch(text):
        return text
    found = _ADDRESS.fullmatch(text)
    port = int((found and found["port"]) or DEFAULT_PORT)
    if found is None or not 1 <= port <= 65_535:
        raise InvalidRequest.of([Violation("target", f"expected host:port, such as {DEFAULT_TARGET}, not {target!r}")])
    return f"{found['host']}:{port}"


def deadline(seconds: float) -> float:
    """A call's deadline as gRPC takes it; raises InvalidRequest for what is not a positive number."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest.of(
            [Violation("timeout_seconds", f"expected a number of seconds above 0, not {seconds!r}")]
        )
    return min(float(seconds), LONGEST_SECONDS)


@dataclass(frozen=True)
class Tls:
    """TLS to the server; each field is the path of a PEM file.

    ca: the authorities that the server's certificate must come from; gRPC's own roots when None.
    certificate, key: what the client shows of itself to a server that asks for it (mutual TLS); both or neither.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. Raises InvalidRequest for files that cannot be read, or half a pair."""
        if (self.certificate is None) != (self.key is None):
            raise InvalidRequest.of([Violation("tls", "expected a certificate and its key together")])
        return grpc.ssl_channel_credentials(
            _pem("ca", self.ca), _pem("key", self.key), _pem("certificate", self.certificate)
        )


def _pem(field: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidRequest.of([Violation(f"tls.{field}", f"cannot read {path}: {error.strerror}")]) from None
    if b"-----BEGIN " not in content:
        raise InvalidRequest.of([Violation(f"tls.{field}", f"expected a PEM file: {path}")])
    if field == "ca":
        _check_authorities(content, path)
    return content


def _check_authorities(content: bytes, path: str | Path) -> None:
    """Raises InvalidRequest for what gRPC would only complain of on standard error."""
    try:
        ssl.create_default_context(cadata=content.decode("ascii", "replace"))
    except ssl.SSLError:
        raise InvalidRequest.of([Violation("tls.ca", f"expected certificates: {path}")]) from None


def call_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """What every call carries. Raises InvalidRequest for what can be no token; the message does not hold it."""
    if token is None:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise InvalidRequest.of([Violation("token", "expected letters, digits and . _ ~ + / -")])
    return (("authorization", f"Bearer {token}"),)


def channel_credentials(tls: Tls | None, credentials: grpc.ChannelCredentials | None) -> grpc.ChannelCredentials | None:
    """What a channel is opened with; None for plain text. Raises InvalidRequest."""
    if tls is not None and credentials is not None:
        raise InvalidRequest.of([Violation("tls", "expected either tls or credentials")])
    return credentials if tls is None else tls.credentials()


def channel_options(
    retry: Retry | None, max_message_bytes: int, options: Iterable[ChannelOption] = ()
) -> list[ChannelOption]:
    """The options of a channel; the caller's own come last, so they win."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.enable_retries", int(retry is not None)),
        ("grpc.service_config", json.dumps(service_config(retry))),
        *options,
    ]


def service_config(retry: Retry | None) -> dict[str, Any]:
    """The gRPC service config of every service of the contract."""
    services = [*decision_pb2.DESCRIPTOR.services_by_name.values(), *chat_pb2.DESCRIPTOR.services_by_name.values()]
    method: dict[str, Any] = {"name": [{"service": service.full_name} for service in services]}
    if retry is not None:
        method["retryPolicy"] = {
            "maxAttempts": retry.attempts,
            "initialBackoff": f"{retry.first_backoff_seconds}s",
            "maxBackoff": f"{retry.longest_backoff_seconds}s",
            "backoffMultiplier": retry.growth,
            "retryableStatusCodes": list(RETRYABLE_CODES),
        }
    return {"methodConfig": [method]}
