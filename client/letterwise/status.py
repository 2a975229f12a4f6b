"""Reads a failed call's status into an error of the client's tree, and tells gRPC's own failures in plain words.

Owns the `grpc-status-details-bin` trailer: a `google.rpc.Status`, read through the messages of the same wire layout in
`errors.proto`, so that the base install needs no other package. Pure; takes names and bytes, no gRPC types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypedDict

from google.protobuf.message import DecodeError

from .errors import CODES, InvalidRequest, LetterwiseError, Unknown, Violation
from .questions import Questions
from .requests import in_callers_paths
from .v1 import errors_pb2

DETAILS_TRAILER = "grpc-status-details-bin"
PUSHBACK_TRAILER = "grpc-retry-pushback-ms"


# What gRPC says of a connection, by a pattern in its text, and what a reader is told; the first that fits.
_CONNECTION = (
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted here, or is not valid now"),
    ("Hostname Verification|Peer name", "its certificate is for another name"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS there"),
    ("Tls handshake failed|CERTIFICATE_REQUIRED", "no TLS connection; does the server want a certificate?"),
    ("failed to connect.*Socket closed", "it closed the connection at once; does it want TLS, or a certificate?"),
    ("errors resolving", "the host name cannot be resolved"),
    ("DNS resolution failed", "the host name cannot be resolved"),
    (
        r"ipv6:(%5B|\[)::1(%5D|\]).*Connection refused",
        "connection refused at [::1]; is the server running? With 127.0.0.1 for the name, what answers there is told",
    ),
    ("Connection refused", "connection refused; is the server running?"),
    ("Failed parsing HTTP/2", "it does not speak gRPC there; is this its HTTP port?"),
    ("timed out", "the connection timed out"),
    ("unreachable", "no route to the host"),
    ("No route to host", "no route to the host"),
    ("Socket closed", "the connection was lost"),
    ("recvmsg:", "the connection was lost"),
    ("failed to connect to all addresses", "no connection"),
)
# What gRPC says of a message that it does not send, and of a reply that it does not take.
_TOO_LARGE = re.compile(r"(Sent|Received) message larger than max \((\d+) vs\. (\d+)\)")
# How gRPC's words for a deadline that passed on this side begin, before the first reply and between two.
_OWN_DEADLINE = ("deadline exceeded", "stream removed")


@dataclass(frozen=True)
class Sent:
    """What a call's failure is told with: where it went, its deadline, and the questions as the caller gave them."""

    target: str
    timeout_seconds: float
    questions: Questions = ()

    def error(self, code: str, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()) -> LetterwiseError:
        """The error for this call, which ended with `code`."""
        error = error_from_status(code, self._sentence(code, message), trailers)
        return in_callers_paths(error, self.questions) if isinstance(error, InvalidRequest) else error

    def _sentence(self, code: str, message: str) -> str:
        if code == "UNAVAILABLE":
            reason = next((told for sign, told in _CONNECTION if re.search(sign, message)), None)
            return message if reason is None else f"cannot reach {self.target}: {reason}"
        if large := _TOO_LARGE.search(message):
            what = "the request has" if large[1] == "Sent" or message.startswith("SERVER") else "the reply has"
            return f"{what} {int(large[2]):,} bytes, and at most {int(large[3]):,} may be sent"
        if code != "DEADLINE_EXCEEDED":
            return message
        if not message or message.lower().startswith(_OWN_DEADLINE):
            return f"no answer from {self.target} within {self.timeout_seconds:g} s"
        return f"{message} (server {self.target}, deadline of the call {self.timeout_seconds:g} s)"


class Details(TypedDict, total=False):
    """What a status may carry, under the names of LetterwiseError's own fields."""

    retry_after_seconds: float
    violations: tuple[Violation, ...]
    tokens: int
    limit_tokens: int
    error_id: str


def error_from_status(code: str, message: str, trailers: Iterable[tuple[str, str | bytes]] = ()) -> LetterwiseError:
    """The error for a call that ended with `code`, the name of a gRPC code; an unheard-of name reads as UNKNOWN."""
    kind = CODES.get(code, Unknown)
    try:
        details = read_details(dict(trailers))
    except (DecodeError, ValueError):
        # details only explain a code: damaged ones must not hide it
        details = Details()
    return kind(message or f"The call failed with {code}.", **details)


def read_details(trailers: dict[str, str | bytes]) -> Details:
    """Every detail that this client knows; others are passed over.

    Raises DecodeError or ValueError for details that are damaged.
    """
    details = Details()
    if pushback := trailers.get(PUSHBACK_TRAILER):
        details["retry_after_seconds"] = int(pushback) / 1000
    encoded = trailers.get(DETAILS_TRAILER, b"")
    if isinstance(encoded, bytes):
        for detail in errors_pb2.ErrorStatus.FromString(encoded).details:
            if reader := _READERS.get(detail.type_url.rpartition("/")[2]):
                details.update(reader(detail.value))
    return details


def _bad_request(encoded: bytes) -> Details:
    found = errors_pb2.ErrorBadRequest.FromString(encoded).field_violations
    return Details(violations=tuple(Violation(each.field, each.description) for each in found))


def _retry_info(encoded: bytes) -> Details:
    delay = errors_pb2.ErrorRetryInfo.FromString(encoded).retry_delay
    return Details(retry_after_seconds=delay.seconds + delay.nanos / 1e9)


def _request_info(encoded: bytes) -> Details:
    return Details(error_id=errors_pb2.ErrorRequestInfo.FromString(encoded).request_id)


def _token_limit(encoded: bytes) -> Details:
    limit = errors_pb2.TokenLimit.FromString(encoded)
    return Details(tokens=limit.tokens, limit_tokens=limit.limit_tokens)


_READERS: dict[str, Callable[[bytes], Details]] = {
    "google.rpc.BadRequest": _bad_request,
    "google.rpc.RetryInfo": _retry_info,
    "google.rpc.RequestInfo": _request_info,
    errors_pb2.TokenLimit.DESCRIPTOR.full_name: _token_limit,
}
