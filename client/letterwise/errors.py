"""What a call can raise: one tree, total over the sixteen gRPC codes. Holds no gRPC type.

LetterwiseError
├── RequestError             the request as it is will never be answered
│   ├── InvalidRequest       INVALID_ARGUMENT: fields are wrong; see `violations`
│   ├── TooLong              OUT_OF_RANGE: `tokens` do not fit `limit_tokens`
│   ├── ModelUnsuitable      FAILED_PRECONDITION: the served model cannot answer decisions
│   ├── Unsupported          UNIMPLEMENTED: not something this server does
│   ├── NotFound             NOT_FOUND: what the request names is not there
│   └── AlreadyExists        ALREADY_EXISTS: what the request makes is there already
├── AccessError              the caller may not
│   ├── Unauthenticated      UNAUTHENTICATED: no credentials, or wrong ones
│   └── PermissionDenied     PERMISSION_DENIED: the credentials do not allow this
├── TryLater                 the same request may succeed later
│   ├── Exhausted            RESOURCE_EXHAUSTED: the queue is full, or a message is over the size limit
│   ├── Unavailable          UNAVAILABLE: no server answers, or it is going down
│   └── Aborted              ABORTED: the server gave the call up
├── DeadlineExceeded         DEADLINE_EXCEEDED: the call's deadline, or the server's own for a job
├── Cancelled                CANCELLED: the call was cancelled, or the client is closed
└── ServerFault              the server failed; see `error_id` for its log
    ├── Internal             INTERNAL: a failure that the server did not expect
    │   └── BadReply         a reply that this client cannot read
    ├── Unknown              UNKNOWN: a failure without a code
    └── DataLoss             DATA_LOSS: the server lost data
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Violation:
    """One field that is wrong: its path (`questions[2].options[0].name`) and what was expected."""

    field: str
    description: str


class LetterwiseError(Exception):
    """The root of all that a call raises; `str(error)` is one sentence.

    code: the gRPC code's name.
    retryable: whether the same request may succeed later. The client's own retries have been spent by then.
    retry_after_seconds: when the server said to come back, or None.
    violations: the fields that are wrong, for InvalidRequest.
    tokens, limit_tokens: what the request needs and what fits, for TooLong.
    error_id: names the failure in the server's log, for ServerFault.
    """

    code: ClassVar[str] = "UNKNOWN"

    @property
    def retryable(self) -> bool:
        return False

    def __init__(
        self,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        violations: Sequence[Violation] = (),
        tokens: int | None = None,
        limit_tokens: int | None = None,
        error_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.violations = tuple(violations)
        self.tokens = tokens
        self.limit_tokens = limit_tokens
        self.error_id = error_id


class RequestError(LetterwiseError):
    """The request as it is will never be answered."""


class InvalidRequest(RequestError):
    """Fields of the request are wrong; `violations` names each. Also raised before anything is sent, for values that
    no request can hold, and for a client's target or deadline."""

    code = "INVALID_ARGUMENT"

    @classmethod
    def of(cls, violations: Sequence[Violation]) -> InvalidRequest:
        """The error that tells these violations in one sentence."""
        return cls("; ".join(f"{each.field}: {each.description}" for each in violations), violations=violations)


class TooLong(RequestError):
    """The request needs `tokens`, and the server takes `limit_tokens`."""

    code = "OUT_OF_RANGE"


class ModelUnsuitable(RequestError):
    """The served model cannot answer decisions; the message says why."""

    code = "FAILED_PRECONDITION"


class Unsupported(RequestError):
    """What was asked is not something this server does."""

    code = "UNIMPLEMENTED"


class NotFound(RequestError):
    """What the request names is not there."""

    code = "NOT_FOUND"


class AlreadyExists(RequestError):
    """What the request makes is there already."""

    code = "ALREADY_EXISTS"


class AccessError(LetterwiseError):
    """The caller may not."""


class Unauthenticated(AccessError):
    """No credentials, or wrong ones."""

    code = "UNAUTHENTICATED"


class PermissionDenied(AccessError):
    """The credentials do not allow this."""

    code = "PERMISSION_DENIED"


class TryLater(LetterwiseError):
    """The same request may succeed later."""

    @property
    def retryable(self) -> bool:
        return True


class Exhausted(TryLater):
    """The server's queue is full, or a message is over the size limit.

    A full queue comes with `retry_after_seconds`. Without it, the same request would be refused again, so the error
    is not `retryable`.
    """

    code = "RESOURCE_EXHAUSTED"

    @property
    def retryable(self) -> bool:
        return self.retry_after_seconds is not None


class Unavailable(TryLater):
    """No server answers, or it is going down."""

    code = "UNAVAILABLE"


class Aborted(TryLater):
    """The server gave the call up."""

    code = "ABORTED"


class DeadlineExceeded(LetterwiseError):
    """The call's deadline has passed, or the server's own for a job.

    Not `retryable`: a server that is too slow for the deadline is slower still when the work comes twice.
    """

    code = "DEADLINE_EXCEEDED"


class Cancelled(LetterwiseError):
    """The call was cancelled, here or on the way; also a call on a client that is closed."""

    code = "CANCELLED"


class ServerFault(LetterwiseError):
    """The server failed."""


class Internal(ServerFault):
    """A failure that the server did not expect; `error_id` finds it in the log."""

    code = "INTERNAL"


class BadReply(Internal):
    """A reply that this client cannot read, such as an answer of a kind that it does not know."""


class Unknown(ServerFault):
    """A failure without a code."""


class DataLoss(ServerFault):
    """The server lost data."""

    code = "DATA_LOSS"


# Every code but OK, each to the class that a call raises for it.
CODES: dict[str, type[LetterwiseError]] = {
    kind.code: kind
    for kind in (
        Cancelled,
        Unknown,
        InvalidRequest,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Exhausted,
        ModelUnsuitable,
        Aborted,
        TooLong,
        Unsupported,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}
