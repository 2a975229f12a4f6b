"""What a server says of itself: the served model, its limits and its versions.

Pure data; the fields are those of the messages of the same names in `info.proto`, where each is documented.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """The served model and how it is read; `problem` says why it cannot answer decisions, None when it can."""

    name: str
    architecture: str
    path: str
    prompt_style: str
    prompt_format_version: int
    device: str
    dtype: str
    blas: str
    blas_gflops: float
    parameters: int
    weights_bytes: int
    problem: str | None
    adapters: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What a request may ask for, and what the server takes at once."""

    max_questions: int
    max_options: int
    max_samples: int
    max_message_bytes: int
    context_tokens: int
    forward_tokens: int
    queue_jobs: int
    queue_tokens: int
    job_deadline_seconds: float
    chat_rows: int
    chat_queue: int
    chat_max_tokens: int


@dataclass(frozen=True)
class Calibration:
    """The constants that turn letter scores into probabilities."""

    temperature: float
    noul_temperature: float
    noul_bias: float


@dataclass(frozen=True)
class PrefixStore:
    """The store of kept state prefixes, as it is now; counts since the server's start."""

    tier: str
    records: int
    bytes: int
    budget_bytes: int
    hits: int
    misses: int
    evicted: int
    partial_hits: int
    stored: int
    refused: int


@dataclass(frozen=True)
class Build:
    """The versions that the server runs on."""

    version: str
    python_version: str
    mlx_version: str
    mlx_lm_version: str
    platform: str


@dataclass(frozen=True)
class Info:
    """A server's description."""

    model: Model
    limits: Limits
    calibration: Calibration
    prefix_store: PrefixStore
    build: Build
