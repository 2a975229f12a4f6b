"""Every door gives the same numbers: gRPC unary and streamed, both clients, both command lines.

A tiny random model behind a real server; the engine thread owns MLX, the event loop of the server has its own thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from letterwise import AsyncClient, Client, Decision, Skipped, gather, jev
from letterwise import cli as client_cli
from letterwise_service import cli as service_cli
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.server.app import App

from ..tiny import tiny_folder

BODY: dict[str, Any] = {
    "state": {"subject": "Lampe à café ☕", "order": 48213, "lines": ["late", "broken"]},
    "samples": 2,
    "questions": {
        "late": {"type": "noul", "instructions": "Late?", "criteria": {"true": "It came late."}},
        "team": {
            "type": "choice",
            "instructions": ["Whose", "is it?"],
            "criteria": {"shipping": {"days": 3}, "billing": "money", "nobody": None},
        },
        "room": {"type": "choice", "instructions": "Room?", "criteria": {str(room): None for room in range(60)}},
        "urgency": {"type": "score", "instructions": "Urgent?", "criteria": ["no", "yes", "yes", {"now": True}]},
        "never": {"type": "noul", "instructions": "Asked?", "ask_if": {"team": ["nobody"], "late": ["yes"]}},
        "nor": {"type": "noul", "instructions": "Asked?", "ask_if": {"team": ["billing"], "late": ["no"]}},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"), max_position_embeddings=8192)


@pytest.fixture(scope="module")
def target(folder: Path) -> Iterator[str]:
    """A server's address."""
    engine_config = EngineConfig(model=str(folder))
    started: Future[tuple[asyncio.AbstractEventLoop, App]] = Future()
    warm = threading.Event()

    async def serve() -> None:
        app = App(Engine(engine_config), engine_config, ServerConfig(port=0))
        await app.start()
        started.set_result((asyncio.get_running_loop(), app))
        assert await app.run(lambda model: warm.set()) == 0

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, app = started.result(30)
    assert warm.wait(60)
    yield f"127.0.0.1:{app.port}"
    loop.call_soon_threadsafe(app.stop)
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def unary(target: str) -> Decision:
    """The reply that the others are compared with, and the first read of its state."""
    with Client(target) as client:
        return client.decide(**keywords())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The request as a file."""
    path = tmp_path_factory.mktemp("request") / "request.json"
    path.write_text(json.dumps(BODY))
    return str(path)


def keywords() -> dict[str, Any]:
    """The request as keywords of `decide`."""
    body = jev.read_body(BODY)
    return {"state": body.state, "questions": body.questions, "samples": body.samples}


def test_request_covers_every_kind_of_outcome(unary: Decision) -> None:
    """The comparison is of something: each type is answered, one question is composed, and one at least is skipped."""
    assert {"late", "team", "room", "urgency"} <= set(unary.answers)
    assert unary.skipped
    assert all(isinstance(skip, Skipped) for skip in unary.skipped)
    assert len(unary.answers) + len(unary.skipped) == len(BODY["questions"])
    assert unary.diagnostics.stages == 2


def test_streamed_events_are_the_unary_reply(target: str, unary: Decision) -> None:
    """Answers, skips, usage and order."""
    with Client(target) as client:
        streamed = gather(client.decide_stream(**keywords()), list(BODY["questions"]))
    assert list(streamed.answers.items()) == list(unary.answers.items())
    assert (streamed.skipped, streamed.usage, streamed.model) == (unary.skipped, unary.usage, unary.model)


async def test_asynchronous_client_gives_the_synchronous_reply(target: str, unary: Decision) -> None:
    """Unary and streamed."""
    async with AsyncClient(target) as client:
        decided = await client.decide(**keywords())
        events = [event async for event in client.decide_stream(**keywords())]
    streamed = gather(events, list(BODY["questions"]))
    assert decided.answers == streamed.answers == unary.answers
    assert decided.skipped == streamed.skipped == unary.skipped


@pytest.mark.parametrize("command", ["decide", "stream"])
def test_client_command_prints_the_reply(
    command: str, target: str, file: str, unary: Decision, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` has every digit of the answers and the skips."""
    assert client_cli.main([command, file, "--server", target, "--json"]) == 0
    assert_same(json.loads(capsys.readouterr().out), unary)


def test_offline_command_prints_the_reply(
    folder: Path, file: str, unary: Decision, capsys: pytest.CaptureFixture[str]
) -> None:
    """`letterwise-service decide`, with no server and no store, gives the server's numbers."""
    assert service_cli.main(["decide", file, "--model", str(folder), "--json"]) == 0
    assert_same(json.loads(capsys.readouterr().out), unary)


def assert_same(reply: dict[str, Any], unary: Decision) -> None:
    expected = json.loads(json.dumps(jev.reply(unary)))
    assert reply["answers"] == expected["answers"]
    assert list(reply["answers"]) == list(expected["answers"])
    assert reply["usage"] == expected["usage"]
    told, wanted = reply["diagnostics"], expected["diagnostics"]
    same = ("letter_mass", "skipped", "stages", "orderings", "passes", "prompt_tokens", "prompt_style", "path")
    assert {name: told[name] for name in same} == {name: wanted[name] for name in same}
