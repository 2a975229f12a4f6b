"""The Letterwise client: typed questions about a state, answered with probabilities by a server.

Needs grpcio and protobuf only.
"""

from __future__ import annotations

from importlib.metadata import version

from .aio import AsyncClient, AsyncDecisionStream
from .answers import (
    Answer,
    ChoiceAnswer,
    Decision,
    Diagnostics,
    NoulAnswer,
    PrefixDiagnostics,
    Prewarmed,
    ScoreAnswer,
    Skipped,
    Usage,
)
from .channel import Retry
from .client import Client, DecisionStream
from .errors import (
    Aborted,
    AccessError,
    AlreadyExists,
    BadReply,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Exhausted,
    Internal,
    InvalidRequest,
    LetterwiseError,
    ModelUnsuitable,
    NotFound,
    PermissionDenied,
    RequestError,
    ServerFault,
    TooLong,
    TryLater,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unsupported,
    Violation,
)
from .events import (
    Accepted,
    Answered,
    Completed,
    Event,
    PrefixProgress,
    WasSkipped,
    gather,
)
from .info import Build, Calibration, Info, Limits, Model, PrefixStore
from .questions import Choice, Noul, Option, Question, Score

__version__ = version("letterwise")

__all__ = [
    "Aborted",
    "Accepted",
    "AccessError",
    "AlreadyExists",
    "Answer",
    "Answered",
    "AsyncClient",
    "AsyncDecisionStream",
    "BadReply",
    "Build",
    "Calibration",
    "Cancelled",
    "Choice",
    "ChoiceAnswer",
    "Client",
    "Completed",
    "DataLoss",
    "DeadlineExceeded",
    "Decision",
    "DecisionStream",
    "Diagnostics",
    "Event",
    "Exhausted",
    "Info",
    "Internal",
    "InvalidRequest",
    "LetterwiseError",
    "Limits",
    "Model",
    "ModelUnsuitable",
    "NotFound",
    "Noul",
    "NoulAnswer",
    "Option",
    "PermissionDenied",
    "PrefixDiagnostics",
    "PrefixProgress",
    "PrefixStore",
    "Prewarmed",
    "Question",
    "RequestError",
    "Retry",
    "Score",
    "ScoreAnswer",
    "ServerFault",
    "Skipped",
    "TooLong",
    "TryLater",
    "Unauthenticated",
    "Unavailable",
    "Unknown",
    "Unsupported",
    "Usage",
    "Violation",
    "WasSkipped",
    "gather",
]
