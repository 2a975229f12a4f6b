"""A Jev body means the same through the client and the wire as it does to the service that reads it directly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from letterwise import jev
from letterwise.requests import decide_request
from letterwise_service.config import EngineConfig
from letterwise_service.method.jev import parse_body
from letterwise_service.server.requests import decision_of

NOUL = {"type": "noul", "instructions": "?"}
BODIES: dict[str, dict[str, Any]] = {
    "text": {"state": "", "questions": {"q": NOUL}},
    "object": {"state": {"z": [1, 1.5, True, None], "a": {"é": "🙂"}}, "questions": {"q": NOUL}},
    "list": {"state": [1, "two", {"k": 0.1}], "questions": {"q": NOUL}, "samples": "auto"},
    "number": {"state": 0, "questions": {"q": NOUL}, "samples": 7},
    "false": {"state": False, "questions": {"q": {**NOUL, "instructions": {"b": 1, "a": [2]}}}, "samples": 10**12},
    "criteria": {
        "state": "s",
        "questions": {
            "described": {**NOUL, "criteria": {"true": {"why": "x"}, "false": "", "maybe": 1}, "depends_on": "x"},
            "half described": {**NOUL, "criteria": {"false": None, "true": 0}},
            "choice": {"type": "choice", "instructions": 3, "criteria": {"z": None, "a": "", "b": [1], "c d": "é"}},
            "score": {"type": "score", "instructions": "?", "criteria": ["a", "a", None, 1, [2], {"k": "v"}]},
        },
        "think": False,
        "unheard": 1,
    },
    "conditions": {
        "state": "s",
        "questions": {"a": NOUL, "b": {**NOUL, "ask_if": {"a": "yes"}}, "c": {**NOUL, "ask_if": {"a": ["yes", "no"]}}},
        "ask": ["b", "a"],
        "model": "jev-latest",
    },
    "adapter by name": {"state": "s", "questions": {"q": NOUL}, "adapter": "tone", "service_class": "batch"},
    "adapter with its scale": {
        "state": "s",
        "questions": {"q": NOUL},
        "adapter": {"name": "tone", "scale": -2, "rank": 8},
        "service_class": "interactive",
    },
    "adapter without one": {"state": "s", "questions": {"q": NOUL}, "adapter": {"name": "tone", "scale": None}},
    "nothing of either": {"state": "s", "questions": {"q": NOUL}, "adapter": None, "service_class": None},
}


@pytest.mark.parametrize("name", BODIES)
def test_body_reads_the_same_through_the_wire(name: str) -> None:
    """The service builds the same request from the client's message as from the body itself."""
    body = json.dumps(BODIES[name])
    direct = parse_body(body)
    read = jev.read_body(jev.parse(body))
    message = decide_request(
        read.state,
        read.questions,
        samples=read.samples,
        ask=read.ask,
        adapter=read.adapter,
        service_class=read.service_class,
        model=read.model,
    )
    wired = decision_of(message, EngineConfig())
    assert (wired.state, wired.questions, wired.samples, wired.ask) == (
        direct.request.state,
        direct.request.questions,
        direct.request.samples,
        direct.request.ask,
    )
    assert repr(wired) == repr(direct.request).replace(repr(direct.request.ignored), "()")
    assert set(read.ignored) == set(direct.request.ignored)
    assert read.model == direct.model
