"""Every door gives the same numbers: gRPC unary and streamed, both clients, both command lines; chat the same text.

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

from letterwise import Adapter, AsyncClient, ChatReply, Client, Decision, Skipped, gather, jev
from letterwise import cli as client_cli
from letterwise_service import cli as service_cli
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.server.app import App

from ..engine.adapter_files import adapter_folder, matrices, modules
from ..tiny import tiny_folder, tiny_model

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
def tone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an adapter that changes every number."""
    model = tiny_model("llama")
    tensors = matrices(model, modules(model, "q_proj", "v_proj", "down_proj"))
    return str(adapter_folder(tmp_path_factory.mktemp("tone"), tensors))


@pytest.fixture(scope="module")
def target(folder: Path, tone: str) -> Iterator[str]:
    """A server's address."""
    engine_config = EngineConfig(model=str(folder), adapters=(("tone", tone),))
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


async def test_doors_agree_with_an_adapter(
    folder: Path, tone: str, target: str, unary: Decision, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for in a call or in a file, streamed, beside others or offline; and its numbers are not the model's own."""
    settings: dict[str, Any] = {"adapter": Adapter("tone", 0.5), "service_class": "batch"}
    with Client(target) as client:
        adapted = client.decide(**keywords(), **settings)
        streamed = gather(client.decide_stream(**keywords(), **settings), list(BODY["questions"]))
    async with AsyncClient(target) as client:
        await client.prewarm(BODY["state"], **settings)
        plain, kept = await asyncio.gather(client.decide(**keywords()), client.decide(**keywords(), **settings))
    assert adapted.answers == streamed.answers == kept.answers
    assert plain.answers == unary.answers
    assert all(adapted.answers[name] != unary.answers[name] for name in adapted.answers if name in unary.answers)
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**BODY, "adapter": {"name": "tone", "scale": 0.5}, "service_class": "batch"}))
    assert client_cli.main(["decide", str(file), "--server", target, "--json"]) == 0
    assert_same(json.loads(capsys.readouterr().out), adapted)
    offline = ["decide", str(file), "--model", str(folder), "--adapters", f"tone={tone}", "--json"]
    assert service_cli.main(offline) == 0
    assert_same(json.loads(capsys.readouterr().out), adapted)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3, "adapter": "tone"}])
async def test_chat_doors_agree(target: str, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Both clients and the command, greedy and drawn: the same text, and in the clients the same tokens."""
    question = "Is the lamp late? ☕"
    with Client(target) as client:
        first = client.chat(question, max_tokens=40, **settings).finish()
        pieces = list(client.chat(question, max_tokens=40, **settings).texts())
    async with AsyncClient(target) as client:
        again = await client.chat(question, max_tokens=40, **settings).finish()
    assert first.text == "".join(pieces)
    assert told(first) == told(again)
    assert len(first.tokens) == first.usage.output_tokens > 0
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    asked = ["chat", question, "--max-tokens", "40", "--server", target, *flags]
    assert client_cli.main([*asked, "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["text"], reply["finish_reason"]) == (first.text, first.finish_reason)
    assert reply["usage"]["output_tokens"] == first.usage.output_tokens
    assert client_cli.main(asked) == 0
    assert capsys.readouterr().out.removesuffix("\n") == first.text.removesuffix("\n")


def told(reply: ChatReply) -> tuple[object, ...]:
    """What two replies to one request have in common: all but times and what was kept."""
    return (reply.text, reply.finish_reason, reply.usage, reply.tokens, reply.model)


def assert_same(reply: dict[str, Any], unary: Decision) -> None:
    expected = json.loads(json.dumps(jev.reply(unary)))
    assert reply["answers"] == expected["answers"]
    assert list(reply["answers"]) == list(expected["answers"])
    assert reply["usage"] == expected["usage"]
    told, wanted = reply["diagnostics"], expected["diagnostics"]
    same = ("letter_mass", "skipped", "stages", "orderings", "passes", "prompt_tokens", "prompt_style", "path")
    assert {name: told[name] for name in same} == {name: wanted[name] for name in same}
