"""Every door gives the same numbers: gRPC and HTTP, unary and streamed, both clients, both command lines; chat the same
text.

A tiny random model behind a real server; the engine thread owns MLX, the event loop of the server has its own thread.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from letterwise import Adapter, AsyncClient, ChatReply, Client, Decision, Skipped, gather, jev
from letterwise import cli as client_cli
from letterwise_service import cli as service_cli
from letterwise_service import offline
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.engine.thread import Engine
from letterwise_service.method.dependencies import answer_names
from letterwise_service.method.jev import parse_body
from letterwise_service.server.app import App

from ..engine.models.adapter_files import adapter_folder, matrices, modules
from ..server.real import free_port
from ..server.test_gateway_streams import parsed
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
def app(folder: Path, tone: str) -> Iterator[App]:
    """A warm server, both of its ports open."""
    engine_config = EngineConfig(model=str(folder), adapters=(("tone", tone),))
    started: Future[tuple[asyncio.AbstractEventLoop, App]] = Future()
    warm = threading.Event()

    async def serve() -> None:
        app = App(Engine(engine_config), engine_config, ServerConfig(port=0, http_port=free_port()))
        await app.start()
        started.set_result((asyncio.get_running_loop(), app))
        assert await app.run(lambda model: warm.set()) == 0

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, app = started.result(30)
    assert warm.wait(60)
    yield app
    loop.call_soon_threadsafe(app.stop)
    thread.join(30)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def target(app: App) -> str:
    return f"127.0.0.1:{app.port}"


@pytest.fixture(scope="module")
def web(app: App) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{app.http_port}", timeout=60) as web:
        yield web


@pytest.fixture(scope="module")
def alone(folder: Path, tone: str) -> Iterator[Engine]:
    """The engine of `letterwise-service decide`, which keeps nothing, for many requests."""
    engine = Engine(EngineConfig(model=str(folder), adapters=(("tone", tone),), prefix_store=False, chat_rows=0))
    engine.start()
    engine.wait_ready(60)
    yield engine
    engine.close()


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


def test_http_gives_the_reply(web: httpx.Client, unary: Decision) -> None:
    """Unary and streamed; the union of the events is the reply."""
    reply = web.post("/v1/systemone", json=BODY).json()
    assert_same(reply, unary)
    assert union(web.post("/v1/systemone", json=BODY, headers=EVENTS).text)["answers"] == reply["answers"]


def test_http_grpc_and_command_line_agree_on_forty_requests(
    web: httpx.Client, target: str, alone: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn by a seed, over all that a request may hold: bit for bit, skips and order included."""
    draw = random.Random(40)
    bodies = [drawn(draw) for _ in range(40)]
    assert {len(body["questions"]) for body in bodies} == {1, 2, 3, 4}
    skipped = 0
    for number, body in enumerate(bodies):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(body))
        by_http = outcome(web.post("/v1/systemone", content=file.read_bytes()).json())
        by_command = outcome(offline.decide(alone, parse_body(file.read_bytes()).request).jev_reply())
        assert client_cli.main(["decide", str(file), "--server", target, "--json"]) == 0
        by_grpc = outcome(json.loads(capsys.readouterr().out))
        assert by_http == by_grpc == by_command, number
        if number % 5 == 0:
            events = web.post("/systemone", content=file.read_bytes(), headers=EVENTS).text
            assert outcome(union(events)) == by_http, number
        skipped += len(json.loads(by_http)["skipped"])
    assert skipped


def drawn(draw: random.Random) -> dict[str, Any]:
    """A sound request."""
    words = ["late", "é", "日本", "twice ", "\n", "🎫", '"', "<|im_end|>", "café"]
    text = "".join(draw.choices(words, k=draw.randint(0, 30)))
    state = draw.choice([text, {"body": text, "n": [1, 2.5, None, True]}, [text, {"deep": [text]}], 48213, 0.1, True])
    questions: dict[str, Any] = {}
    for number in range(draw.choices([1, 2, 3, 4], [4, 3, 2, 1])[0]):
        question = drawn_question(draw)
        if number and draw.random() < 0.4:
            first = next(iter(questions))
            question["ask_if"] = {first: draw.sample(answers_to(questions[first]), 1)}
        questions[f"{number} {draw.choice(words)!r}"] = question
    adapter = draw.choice([None, None, "tone", {"name": "tone", "scale": draw.random()}])
    service_class = draw.choice(["interactive", "batch"])
    samples = draw.choices([1, 2, 3, "auto"], [4, 2, 1, 1])[0]
    return {
        "state": state,
        "questions": questions,
        "samples": samples,
        "service_class": service_class,
        **({"adapter": adapter} if adapter else {}),
    }


def drawn_question(draw: random.Random) -> dict[str, Any]:
    asked = draw.choice(["Is it late?", ["Whose", "is it?"], {"ask": "Which?", "é": 1}])
    match draw.choice(["noul", "choice", "score"]):
        case "noul":
            criteria = draw.choice([None, {"true": "It is."}, {"false": ["no"], "true": {"a": 1}}])
            return {"type": "noul", "instructions": asked, "criteria": criteria}
        case "choice":
            names = [
                f"{number} {draw.random()}"
                for number in range(draw.choices([1, 2, 3, 5, 52, 53], [9, 9, 9, 9, 1, 1])[0])
            ]
            told = {name: draw.choice([None, "a description", {"days": 3}]) for name in names}
            return {"type": "choice", "instructions": asked, "criteria": told}
        case _:
            levels = [draw.choice(["low", "high", {"n": 1}, ["x"], 7]) for _ in range(draw.randint(1, 8))]
            return {"type": "score", "instructions": asked, "criteria": levels}


def answers_to(question: dict[str, Any]) -> list[str]:
    """What a later question may wait for."""
    body = {"state": "s", "questions": {"q": question}}
    return list(answer_names(parse_body(json.dumps(body)).request.questions[0]))


EVENTS = {"accept": "text/event-stream"}


def union(events: str) -> dict[str, Any]:
    """The reply that a stream of events tells, its answers in the request's order."""
    told = parsed(events)
    name, whole = told[-1]
    assert name == "completed"
    answers = {data["id"]: data["answer"] for name, data in told if name == "answer"}
    return {**whole, "answers": {id: answers[id] for id in whole["diagnostics"]["letter_mass"]}}


def outcome(reply: dict[str, Any]) -> str:
    """What every door must tell alike, to the last digit: answers, masses, skips and their order, usage."""
    diagnostics = reply["diagnostics"]
    same = ("letter_mass", "skipped", "stages", "orderings", "passes", "prompt_tokens", "prompt_style", "path")
    told = {name: diagnostics[name] for name in same}
    return json.dumps({"answers": reply["answers"], "usage": reply["usage"], **told})


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
