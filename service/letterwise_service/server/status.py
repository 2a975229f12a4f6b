"""Domain error → google.rpc.Status with its details and trailers; the gRPC front end's only reader of the error table.

An error that is nobody's fault but ours becomes INTERNAL with an id; its cause goes to the log alone. Metadata has a
size limit at the receiver, so long lists and messages are cut here.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from letterwise.v1 import errors_pb2

from ..errors import GRPC_CODES, InvalidRequest, LetterwiseError, QueueFull, TooLong

_log = logging.getLogger(__name__)

# gRPC receivers take 8 KiB of metadata by default; the message travels twice (percent-encoded: up to three bytes
# for one), the details once in base64.
_MESSAGE_BYTES = 512
_VIOLATIONS_BYTES = 2048
_FIELD_BYTES = 256


@dataclass(frozen=True)
class Refusal:
    """An error in the form that gRPC sends: its status message and the trailers that go beside it."""

    status: status_pb2.Status
    trailers: tuple[tuple[str, str], ...] = ()


def code_of(error: LetterwiseError) -> grpc.StatusCode:
    """The code of the error's class, or of the nearest base that the table has."""
    name = next(GRPC_CODES[base] for base in type(error).__mro__ if base in GRPC_CODES)
    return grpc.StatusCode[name]


def refusal_of(error: Exception) -> Refusal:
    """What the caller of a failed RPC is sent. Logs an internal error with its id."""
    if not isinstance(error, LetterwiseError) or code_of(error) is grpc.StatusCode.INTERNAL:
        return _internal(error)
    details = _details(error)
    trailers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, QueueFull):
        trailers = (("grpc-retry-pushback-ms", str(round(error.retry_after_seconds * 1000))),)
    return Refusal(_status(code_of(error), str(error), details), trailers)


def _internal(error: Exception) -> Refusal:
    error_id = uuid.uuid4().hex
    cause = error.__cause__ or error
    _log.error("internal error", extra={"error_id": error_id}, exc_info=cause)
    message = f"internal error {error_id}; the server's log has the cause"
    return Refusal(_status(grpc.StatusCode.INTERNAL, message, [error_details_pb2.RequestInfo(request_id=error_id)]))


def _details(error: LetterwiseError) -> list[Message]:
    if isinstance(error, InvalidRequest):
        return [_bad_request(error)]
    if isinstance(error, TooLong):
        return [errors_pb2.TokenLimit(tokens=error.tokens, limit_tokens=error.limit_tokens)]
    if isinstance(error, QueueFull):
        delay = error_details_pb2.RetryInfo()
        delay.retry_delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        return [delay]
    return []


def _bad_request(error: InvalidRequest) -> error_details_pb2.BadRequest:
    """The violations, in order, as far as the metadata limit allows; the first is always there."""
    request = error_details_pb2.BadRequest()
    for violation in error.violations:
        added = request.field_violations.add(
            field=_cut(violation.field, _FIELD_BYTES), description=_cut(violation.description, _FIELD_BYTES)
        )
        if len(request.field_violations) > 1 and request.ByteSize() > _VIOLATIONS_BYTES:
            request.field_violations.remove(added)
            break
    return request


def _status(code: grpc.StatusCode, message: str, details: list[Message]) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=_cut(message, _MESSAGE_BYTES))
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _cut(text: str, limit_bytes: int) -> str:
    """At most `limit_bytes` of UTF-8, cut between characters; a lone surrogate cannot travel and becomes `?`."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    return encoded[: limit_bytes - 3].decode("utf-8", "ignore") + "…"
