"""The domain's errors: one tree, and the two tables that only the front ends read.

Pure Python, no gRPC and no HTTP types: the tables hold code *names*. Everything may import this module.

    LetterwiseError
    ├── InvalidRequest       a field fails validation; names each field and what was expected
    ├── MalformedBody        a body that is not JSON, not an object, or badly encoded
    ├── TooLong              more tokens than the context or the memory budget takes
    ├── ModelUnsuitable      the served model cannot answer letter reads, with the reason
    ├── Unsupported          images, diffusion models: things this service does not do
    ├── QueueFull            no room for another job; says when to come back
    ├── OutOfMemory          the machine had no memory left for this request
    ├── Draining             the server is going down and takes nothing new
    ├── EngineDown           the engine thread is not running
    ├── DeadlineExceeded     the caller's deadline or the job's own
    ├── Cancelled            the caller went away
    ├── Unauthenticated      no credentials, or wrong ones
    ├── LoadFailed           a model that cannot be loaded, with the reason; never reaches a caller
    └── ReadFailed           the model gave a score that is missing or not finite
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """One field that is wrong: its path (`questions[2].options[0].name`) and what was expected."""

    field: str
    description: str


class LetterwiseError(Exception):
    """The root. `str(error)` is safe to show a caller: it holds no state or option text."""


class InvalidRequest(LetterwiseError):
    """One field or more fails validation."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in self.violations))


class MalformedBody(LetterwiseError):
    """The body cannot be read at all."""


class TooLong(LetterwiseError):
    """`tokens` does not fit `limit_tokens`; the message says which budget."""

    def __init__(self, message: str, *, tokens: int, limit_tokens: int) -> None:
        self.tokens = tokens
        self.limit_tokens = limit_tokens
        super().__init__(message)


class ModelUnsuitable(LetterwiseError):
    """The served model cannot answer letter reads."""


class Unsupported(LetterwiseError):
    """What was asked is not something this service does."""


class QueueFull(LetterwiseError):
    """No room for another job now."""

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message)


class OutOfMemory(LetterwiseError):
    """The allocator refused; what the request held has been let go of, and others go on."""


class Draining(LetterwiseError):
    """The server is going down."""


class EngineDown(LetterwiseError):
    """The engine thread is not running, or died under this job."""


class DeadlineExceeded(LetterwiseError):
    """The caller's deadline, or the job's own, has passed."""


class Cancelled(LetterwiseError):
    """The caller went away; nobody reads this."""


class Unauthenticated(LetterwiseError):
    """No credentials, or wrong ones."""


class LoadFailed(LetterwiseError):
    """The model cannot be loaded; one sentence says why and what to do."""


class ReadFailed(LetterwiseError):
    """A letter score is missing or not finite: the request fails, it is never an answer."""


# The two tables. A front end looks up the class of the error, then its bases in order.
GRPC_CODES: dict[type[LetterwiseError], str] = {
    InvalidRequest: "INVALID_ARGUMENT",
    MalformedBody: "INVALID_ARGUMENT",
    TooLong: "OUT_OF_RANGE",
    ModelUnsuitable: "FAILED_PRECONDITION",
    Unsupported: "UNIMPLEMENTED",
    QueueFull: "RESOURCE_EXHAUSTED",
    OutOfMemory: "RESOURCE_EXHAUSTED",
    Draining: "UNAVAILABLE",
    EngineDown: "UNAVAILABLE",
    DeadlineExceeded: "DEADLINE_EXCEEDED",
    Cancelled: "CANCELLED",
    Unauthenticated: "UNAUTHENTICATED",
    LetterwiseError: "INTERNAL",
}

HTTP_STATUSES: dict[type[LetterwiseError], int] = {
    InvalidRequest: 422,
    MalformedBody: 400,
    TooLong: 400,
    ModelUnsuitable: 400,
    Unsupported: 400,
    QueueFull: 503,
    OutOfMemory: 503,
    Draining: 503,
    EngineDown: 503,
    DeadlineExceeded: 504,
    Unauthenticated: 401,
    LetterwiseError: 500,
}
