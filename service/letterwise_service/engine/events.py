"""What a job tells its listener, in order: accepted, prefix progress, each answer, completed; or failed.

Frozen data that crosses threads. Knows nothing of how it is sent: a listener is any callable, called on the
engine thread, and must return at once and never raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import LetterwiseError
from ..method.answers import Answer, Skipped


@dataclass(frozen=True)
class Accepted:
    """The job left the queue: passes and prompt tokens planned (an upper bound while questions may be skipped)."""

    passes: int
    prompt_tokens: int


@dataclass(frozen=True)
class PrefixProgress:
    """`done_tokens` of `total_tokens` of the state's prefix are in the cache; `reused_tokens` were kept from before."""

    done_tokens: int
    total_tokens: int
    reused_tokens: int


@dataclass(frozen=True)
class Answered:
    answer: Answer


@dataclass(frozen=True)
class WasSkipped:
    skipped: Skipped


@dataclass(frozen=True)
class PrefixInfo:
    """How the state's prefix was had. `tier`: exact, checkpoint, unsupported or off."""

    tokens: int
    reused_tokens: int
    stored: bool
    tier: str


@dataclass(frozen=True)
class Diagnostics:
    """How a decision ran; field by field in `diagnostics.proto`. Seconds are wall time."""

    path: str
    prompt_style: str
    prompt_format_version: int
    stages: int
    skipped: tuple[Skipped, ...]
    orderings: int
    prefix: PrefixInfo
    passes: int
    forwards: int
    prompt_tokens: int
    computed_tokens: int
    padded_tokens: int
    neutralized_tokens: int
    queue_seconds: float
    prefix_seconds: float
    tails_seconds: float
    total_seconds: float
    ignored: tuple[str, ...] = ()
    readout: str = "letters"


@dataclass(frozen=True)
class Completed:
    """The last event of a job that ended well; a prewarm's too (its diagnostics count no passes)."""

    model: str
    diagnostics: Diagnostics


@dataclass(frozen=True)
class Failed:
    """The last event of a job that did not: any error of the domain's tree."""

    error: LetterwiseError


@dataclass(frozen=True)
class ChatStarted:
    """A chat's prompt was read; `reused_tokens` of it were kept from an earlier chat."""

    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True)
class ChatText:
    """More of the message: text to append, and the tokens generated since the last event, (id, ln probability)."""

    text: str
    tokens: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class ChatFinished:
    """The last event of a chat that ended well. `reason`: stop or length. Seconds are wall time from acceptance."""

    model: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    queue_seconds: float
    total_seconds: float


Event: TypeAlias = Accepted | PrefixProgress | Answered | WasSkipped | Completed | Failed
Listener: TypeAlias = Callable[[Event], None]
ChatEvent: TypeAlias = ChatStarted | ChatText | ChatFinished | Failed
ChatListener: TypeAlias = Callable[[ChatEvent], None]


@dataclass(frozen=True)
class ModelInfo:
    """What GetInfo reports of a loaded model. `problem` is set when the model cannot serve letter reads."""

    model: str  # the name it is served under
    architecture: str
    path: str  # readout path: rows or logits
    prompt_style: str
    prompt_format_version: int
    context_tokens: int
    forward_tokens: int
    tier: str
    device: str  # cpu, metal or cuda
    dtype: str  # of the weights as computed with
    blas: str  # the BLAS in use on the CPU, "none" when only the slow reference one is there, "" elsewhere
    blas_gflops: float  # measured by the start-up probe, 0 elsewhere
    parameters: int
    weights_bytes: int
    problem: str | None = None
    adapters: tuple[str, ...] = ()
    chats: bool = True  # whether it continues conversations here


@dataclass(frozen=True)
class StoreInfo:
    """The prefix store as it stands: records and bytes held, and what has happened since the start."""

    tier: str  # exact, checkpoint, unsupported or off
    records: int
    bytes: int
    budget_bytes: int
    hits: int  # the whole prefix was kept
    partial_hits: int  # a start of it was
    misses: int
    stored: int
    refused: int
    evicted: int
