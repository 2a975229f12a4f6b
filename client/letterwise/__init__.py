"""The Letterwise client: typed questions about a state, answered with probabilities by a server.

Needs grpcio and protobuf only.
"""

from __future__ import annotations

from importlib.metadata import version

from .aio import AsyncClient
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
from .channel import Retry, Tls
from .chat import ChatDelta, ChatEvent, ChatFinished, ChatMessage, ChatReply, ChatStarted, ChatToken
from .client import Client
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
from .serving import Adapter
from .streams import AsyncChatStream, AsyncDecisionStream, ChatStream, DecisionStream

__version__ = version("letterwise")

__all__ = [
    "Aborted",
    "Accepted",
    "AccessError",
    "Adapter",
    "AlreadyExists",
    "Answer",
    "Answered",
    "AsyncChatStream",
    "AsyncClient",
    "AsyncDecisionStream",
    "BadReply",
    "Build",
    "Calibration",
    "Cancelled",
    "ChatDelta",
    "ChatEvent",
    "ChatFinished",
    "ChatMessage",
    "ChatReply",
    "ChatStarted",
    "ChatStream",
    "ChatToken",
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
    "Tls",
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
