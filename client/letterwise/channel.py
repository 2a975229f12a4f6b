"""How a channel to a server is set up: message limits and the retry policy.

Owns the gRPC channel options and the service config. Opens nothing.

The policy: a call that ends UNAVAILABLE or RESOURCE_EXHAUSTED before its first reply is sent again, after the time that
the server names (`grpc-retry-pushback-ms`), or else after a random time under a growing bound. The call's deadline
bounds all attempts together. Nothing else is repeated: a deadline that passed would only add load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .v1 import decision_pb2

ChannelOption: TypeAlias = tuple[str, Any]

DEFAULT_TARGET = "localhost:50051"
DEFAULT_TIMEOUT_SECONDS = 120.0
DEFAULT_MESSAGE_BYTES = 16 * 2**20
RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
# gRPC itself lowers a larger number to this one
MOST_ATTEMPTS = 5


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
    """The gRPC service config of the decision service."""
    service = decision_pb2.DESCRIPTOR.services_by_name["DecisionService"].full_name
    method: dict[str, Any] = {"name": [{"service": service}]}
    if retry is not None:
        method["retryPolicy"] = {
            "maxAttempts": retry.attempts,
            "initialBackoff": f"{retry.first_backoff_seconds}s",
            "maxBackoff": f"{retry.longest_backoff_seconds}s",
            "backoffMultiplier": retry.growth,
            "retryableStatusCodes": list(RETRYABLE_CODES),
        }
    return {"methodConfig": [method]}
