"""A small share of the attack on both doors, and that the attack sees what it looks for. `python -m bench.fuzz` is all
of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import fuzz, mutant_bodies, mutant_messages, mutant_requests
from letterwise.v1 import chat_pb2, decision_pb2
from letterwise_service.config import EngineConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import LetterwiseError
from letterwise_service.method import jev, openai
from letterwise_service.server import chat_messages, requests

from ..tiny import tiny_folder
from .scripted import ScriptedEngine, scripted_scores

EXAMPLES = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
SHARE = range(1, 200)


async def test_share_of_the_attack_breaks_nothing(tmp_path: Path) -> None:
    """On a real engine: no 500, no INTERNAL, nothing in the log, every answer in time, sound decisions untouched."""
    config = fuzz.engine_config(tiny_folder(tmp_path, max_position_embeddings=2048))
    async with fuzz.attacked(Engine(config), config, seed=7) as attack:
        await attack.run(range(1))
        await attack.run(SHARE)
        await attack.run(range(500, 501))
    counts = attack.counts
    assert counts.beacons == 2
    assert counts.http.total() + counts.grpc.total() == len(SHARE) + 2
    assert {"200", "400", "404", "405", "422", "closed"} <= set(counts.http), counts.http
    assert {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"} <= set(counts.grpc), counts.grpc


def test_attack_reaches_every_rpc_and_every_route() -> None:
    """A new one of either is attacked without another word, or fails here."""
    called = {mutant_messages.grpc_case(Random(number)).path for number in range(200)}
    services = [*decision_pb2.DESCRIPTOR.services_by_name.values(), *chat_pb2.DESCRIPTOR.services_by_name.values()]
    assert called == {f"/{service.full_name}/{rpc.name}" for service in services for rpc in service.methods}
    asked = {
        case.data.split(b" ", 2)[1].decode()
        for number in range(900)
        if (case := mutant_requests.http_case(Random(number))).whole
    }
    assert {*mutant_requests.ROUTES, *mutant_requests.WATCHES} <= asked


def test_case_follows_from_its_number() -> None:
    """What broke a server can be sent again."""
    for make in (mutant_requests.http_case, mutant_messages.grpc_case):
        assert [make(Random(f"1:{number}")) for number in range(50)] == [
            make(Random(f"1:{number}")) for number in range(50)
        ]


@EXAMPLES
@given(st.randoms(use_true_random=False), st.sampled_from([jev.parse_body, jev.parse_prewarm, openai.parse_body]))
def test_bodies_are_read_or_refused(draw: Random, parse: Callable[[bytes], object]) -> None:
    """By every parser, with an error of ours."""
    body = mutant_bodies.json_body(draw, draw.choice(mutant_requests.ROUTES))
    with contextlib.suppress(LetterwiseError):
        parse(body)


@EXAMPLES
@given(st.randoms(use_true_random=False), st.sampled_from(["DecideRequest", "PrewarmRequest"]))
def test_messages_are_read_or_refused(draw: Random, name: str) -> None:
    """By protobuf, or with an error of ours."""
    kind: Any = decision_pb2.DESCRIPTOR.message_types_by_name[name]
    try:
        message: Any = message_factory.GetMessageClass(kind).FromString(mutant_messages.message(draw, kind))
    except DecodeError:
        return
    with contextlib.suppress(LetterwiseError):
        if isinstance(message, decision_pb2.DecideRequest):
            requests.decision_of(message, EngineConfig())
        else:
            requests.prewarm_of(message)


@EXAMPLES
@given(st.randoms(use_true_random=False))
def test_chats_are_read_or_refused(draw: Random) -> None:
    """The same for a conversation."""
    try:
        message = chat_pb2.ChatRequest.FromString(mutant_messages.message(draw, chat_pb2.ChatRequest.DESCRIPTOR))
    except DecodeError:
        return
    with contextlib.suppress(LetterwiseError):
        chat_messages.request_of(message, EngineConfig())


@pytest.mark.parametrize("number", [40, 41])
async def test_attack_ends_at_a_failure_of_the_server(number: int) -> None:
    """500 by one door and INTERNAL by the other: the case is told, with its number."""
    engine = ScriptedEngine()
    engine.scores = lambda text, letters: (float("nan"),) * letters
    async with fuzz.attacked(engine, engine.config, seed=7) as attack:
        with pytest.raises(fuzz.Broken, match=r"case \d+.*(500|INTERNAL|the log has)"):
            await attack.run(range(number, 400, 2), callers=2)


async def test_attack_ends_at_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case has its time."""
    monkeypatch.setattr(fuzz, "_CASE_SECONDS", 0.3)
    engine = ScriptedEngine()
    async with fuzz.attacked(engine, engine.config, seed=7) as attack:
        engine.hold()
        with pytest.raises(fuzz.Broken, match=r"no answer in 0\.3 s"):
            await attack.run(SHARE, callers=2)
        engine.release()


async def test_attack_ends_at_a_disturbed_decision() -> None:
    """The last bit of one score is enough."""
    engine = ScriptedEngine()
    async with fuzz.attacked(engine, engine.config, seed=7) as attack:
        await attack.run(range(1))
        engine.scores = lambda text, letters: tuple(s * (1 + 1e-15) for s in scripted_scores(text, letters))
        with pytest.raises(fuzz.Broken, match="a sound decision was disturbed"):
            await attack.run(range(500, 501))
