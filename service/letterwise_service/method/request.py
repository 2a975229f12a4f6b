"""The decision request: one frozen domain object, the same from every front door.

Owns the types that a caller's question becomes. Knows nothing of protobuf, JSON bodies, tokens or models.
Values that arrive as JSON (`Json`) keep their parsed form: how each is turned into text is `prompt.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .calibration import PUBLISHED, Calibration

# A parsed JSON value; objects keep the order in which their keys came.
Json: TypeAlias = Any


@dataclass(frozen=True)
class Option:
    """One option of a choice, in the caller's order."""

    name: str
    description: Json = None


@dataclass(frozen=True)
class Noul:
    """A yes or no question; `yes` and `no` may each be described."""

    id: str
    instructions: Json
    yes: Json = None
    no: Json = None
    # question id → the answers of that question that let this one be asked; all must hold
    ask_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """One of several options."""

    id: str
    instructions: Json
    options: tuple[Option, ...] = ()
    ask_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """One of several ordered levels, lowest first; a level is any JSON value."""

    id: str
    instructions: Json
    levels: tuple[Json, ...] = ()
    ask_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Question: TypeAlias = Noul | Choice | Score


INTERACTIVE, BATCH = "interactive", "batch"


@dataclass(frozen=True)
class Adapter:
    """A named LoRA adapter, and how much of it is added (1: as it was trained)."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True)
class DecisionRequest:
    """A state and the questions about it.

    samples: how many option orders to read and average (1: the given order once).
    ask: the ids to answer, or None for all.
    ignored: names of fields that were accepted and not used, for the diagnostics.
    adapter: the adapter to read with, or None for the model alone.
    service_class: INTERACTIVE or BATCH: which work goes first.
    calibration: what the scores are read with; a setting of the service, never a field of a body.
    """

    state: Json
    questions: tuple[Question, ...]
    samples: int = 1
    ask: tuple[str, ...] | None = None
    ignored: tuple[str, ...] = ()
    adapter: Adapter | None = None
    service_class: str = INTERACTIVE
    calibration: Calibration = PUBLISHED
