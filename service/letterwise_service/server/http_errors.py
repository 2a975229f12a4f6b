"""Domain error → HTTP status, headers and JSON body; the HTTP front end's only reader of the error table.

The body is `{"error": {"code": 422, "message": …}}`, with what else is known beside the two. An error that is nobody's
fault but ours becomes 500 with an id; its cause goes to the log alone.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from ..errors import HTTP_STATUSES, InvalidRequest, LetterwiseError, QueueFull, TooLong

_log = logging.getLogger(__name__)

# Callers whose own patience is 30 s take a longer wait for a refusal.
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 30.0


@dataclass(frozen=True)
class HttpRefusal:
    """An error in the form that HTTP sends."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return Response(json_bytes(self.body), self.status, self.headers, media_type="application/json")


def json_bytes(value: Any) -> bytes:
    """A JSON value as UTF-8, characters kept; half of a surrogate pair cannot travel and becomes `?`."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def status_of(error: LetterwiseError) -> int:
    """The status of the error's class, or of the nearest base that the table has."""
    return next(HTTP_STATUSES[base] for base in type(error).__mro__ if base in HTTP_STATUSES)


def http_refusal_of(error: Exception) -> HttpRefusal:
    """What the caller of a failed request is sent. Logs an internal error with its id."""
    if isinstance(error, HTTPException):
        return _refusal(error.status_code, error.detail, dict(error.headers or {}))
    if not isinstance(error, LetterwiseError) or status_of(error) == 500:
        return _internal(error)
    status = status_of(error)
    return _refusal(status, str(error), _headers(status, error), _details(error))


def _refusal(
    status: int, message: str, headers: dict[str, str], details: Mapping[str, Any] | None = None
) -> HttpRefusal:
    return HttpRefusal(status, {"error": {"code": status, "message": message, **(details or {})}}, headers)


def _internal(error: Exception) -> HttpRefusal:
    error_id = uuid.uuid4().hex
    _log.error("internal error", extra={"error_id": error_id}, exc_info=error.__cause__ or error)
    message = f"internal error {error_id}; the server's log has the cause"
    return _refusal(500, message, {}, {"error_id": error_id})


def _headers(status: int, error: LetterwiseError) -> dict[str, str]:
    match status:
        case 503:
            return wait_headers(error.retry_after_seconds if isinstance(error, QueueFull) else _SHORTEST_WAIT_SECONDS)
        case 504:
            return {"x-should-retry": "false"}  # the same again would take as long, on a server that is busy already
        case 401:
            return {"www-authenticate": "Bearer"}
    return {}


def wait_headers(seconds: float) -> dict[str, str]:
    """When to come back: whole seconds for everybody, milliseconds for those who know them."""
    wait = min(max(seconds, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
    return {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}


def _details(error: LetterwiseError) -> dict[str, Any]:
    if isinstance(error, InvalidRequest):
        broken = [{"field": one.field, "description": one.description} for one in error.violations]
        return {"field_violations": broken}
    if isinstance(error, TooLong):
        return {"tokens": error.tokens, "limit_tokens": error.limit_tokens}
    return {}
