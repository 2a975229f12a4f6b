"""Typed questions go out and typed answers come back, the same from both clients."""

from __future__ import annotations

import asyncio
import json
import re
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

import letterwise.v1
from letterwise import (
    Accepted,
    Adapter,
    AsyncClient,
    Choice,
    ChoiceAnswer,
    Client,
    Completed,
    InvalidRequest,
    Noul,
    NoulAnswer,
    Option,
    PrefixProgress,
    Score,
    ScoreAnswer,
    Skipped,
    WasSkipped,
    gather,
)
from letterwise.v1 import serving_pb2

WRONG: Any = 3  # where text is wanted
TEXT: Any = "abc"  # where a list is wanted
WRONG_MAPPING: Any = {"a": {1, 2}}
NOTHING: Any = None
STATE = {"z": 1, "a": ["é🙂", None]}
QUESTIONS = {
    "angry": Noul("Is the customer angry?", yes="furious"),
    "team": Choice("Which team?", {"shipping": None, "billing": {"why": "money"}}),
    "urgency": Score("How urgent?", ["can wait", ["list", 1], {"k": 0.5}, "can wait"]),
    "refund": Noul("Refund?", ask_if={"angry": ["yes"], "team": "billing"}),
}


def test_request_keeps_order_and_types(server: Any) -> None:
    """Text stays text, anything else is JSON text with its keys in order, and lists keep their order."""
    with Client(server.target) as client:
        client.decide(STATE, QUESTIONS, samples=4, ask=["angry", "team"], model="any")
    sent = server.servicer.requests[0]
    assert sent.state.json == '{"z": 1, "a": ["é🙂", null]}'
    assert [question.id for question in sent.questions] == list(QUESTIONS)
    assert sent.questions[0].noul.yes.text == "furious"
    assert not sent.questions[0].noul.HasField("no")
    options = sent.questions[1].choice.options
    assert [option.name for option in options] == ["shipping", "billing"]
    assert not options[0].HasField("description")
    assert json.loads(options[1].description.json) == {"why": "money"}
    assert [level.WhichOneof("kind") for level in sent.questions[2].score.levels] == ["text", "json", "json", "text"]
    wanted = [(each.question_id, list(each.answers)) for each in sent.questions[3].ask_if]
    assert wanted == [("angry", ["yes"]), ("team", ["billing"])]
    assert (sent.samples, list(sent.ask), sent.model) == (4, ["angry", "team"], "any")


def test_questions_may_carry_their_ids(server: Any) -> None:
    """A list of questions with ids sends what the mapping sends."""
    listed = [Noul("Angry?", id="angry"), Choice("Team?", ["a", Option("b", "second")], id="team")]
    mapped = {"angry": Noul("Angry?"), "team": Choice("Team?", {"a": None, "b": "second"})}
    with Client(server.target) as client:
        client.decide("s", listed)
        client.decide("s", mapped)
    first, second = server.servicer.requests
    assert first == second


def test_decide_gives_typed_answers(server: Any) -> None:
    """Each answer has its question's type, unrounded numbers and its options in order."""
    with Client(server.target) as client:
        decision = client.decide(STATE, QUESTIONS)
    assert list(decision.answers) == ["angry", "team", "urgency"]
    assert decision["angry"] == NoulAnswer("angry", 2 / 3, 0.1 + 0.2)
    team = decision["team"]
    assert team == ChoiceAnswer("team", "shipping", {"shipping": 2 / 3, "billing": 1 / 3}, 1 / 3, 0.1 + 0.2)
    assert isinstance(team, ChoiceAnswer)
    assert list(team.probabilities) == ["shipping", "billing"]
    urgency = decision["urgency"]
    assert isinstance(urgency, ScoreAnswer)
    assert urgency.levels == ("can wait", ["list", 1], {"k": 0.5}, "can wait")
    assert (urgency.probabilities, urgency.score, urgency.most_likely) == ((0.4, 0.2, 0.2, 0.2), 1 / 7, 0)
    assert decision.skipped == (Skipped("refund", "angry", "no", ("yes",)),)
    assert decision.diagnostics.skipped == decision.skipped
    assert (decision.model, decision.usage.input_tokens, decision.diagnostics.prefix.tier) == ("scripted", 400, "exact")
    with pytest.raises(KeyError, match="skipped"):
        decision["refund"]
    with pytest.raises(KeyError):
        decision["nobody"]


@pytest.mark.parametrize(("probability", "yes"), [(0.5, True), (0.4999, False), (1.0, True)])
def test_noul_answer_is_yes_from_one_half(probability: float, yes: bool) -> None:
    """`yes` turns at one half."""
    assert NoulAnswer("q", probability, 1.0).yes is yes


def test_stream_tells_events_in_order(server: Any) -> None:
    """Accepted first, then progress, outcomes and completed; an event of a newer contract is passed over."""
    with Client(server.target) as client:
        events = list(client.decide_stream(STATE, QUESTIONS))
    kinds = [event.kind for event in events]
    assert kinds == ["accepted", *["prefix"] * 3, "skipped", *["answer"] * 3, "completed"]
    assert events[0] == Accepted(3, 400)
    assert events[3] == PrefixProgress(150, 150, 64)
    assert isinstance(events[4], WasSkipped)
    assert isinstance(events[-1], Completed)


def test_stream_gathers_to_the_unary_reply(server: Any) -> None:
    """The union of the events equals the reply of `decide`, order included."""
    with Client(server.target) as client:
        streamed = gather(client.decide_stream(STATE, QUESTIONS), list(QUESTIONS))
        unary = client.decide(STATE, QUESTIONS)
    assert streamed == unary
    assert list(streamed.answers) == list(unary.answers)
    with pytest.raises(ValueError, match="completed"):
        gather([Accepted(1, 1)])


def test_prewarm_and_info_are_typed(server: Any) -> None:
    """The smaller calls fill their classes too; an absent optional is None."""
    with Client(server.target) as client:
        read, info = client.prewarm("state"), client.info()
    assert server.servicer.requests[0].state.text == "state"
    assert (read.prompt_tokens, read.reused_tokens, read.stored, read.tier) == (150, 64, True, "exact")
    assert read.diagnostics.prefix.tokens == 150
    assert (info.model.name, info.model.problem, info.model.weights_bytes) == ("scripted", None, 2**40)
    assert (info.calibration.temperature, info.prefix_store.records, info.build.platform) == (0.85, 3, "test")


def test_async_client_equals_the_sync_one(server: Any) -> None:
    """Every method of AsyncClient sends the same message and returns the same values."""

    async def everything() -> list[Any]:
        async with AsyncClient(server.target) as client:
            decision = await client.decide(STATE, QUESTIONS, samples=2)
            events = [event async for event in client.decide_stream(STATE, QUESTIONS, ask=["angry"])]
            return [decision, events, await client.prewarm(STATE), await client.info()]

    with Client(server.target) as client:
        sync = [
            client.decide(STATE, QUESTIONS, samples=2),
            list(client.decide_stream(STATE, QUESTIONS, ask=["angry"])),
            client.prewarm(STATE),
            client.info(),
        ]
    assert asyncio.run(everything()) == sync
    requests = server.servicer.requests
    assert requests[:4] == requests[4:]


@pytest.mark.parametrize(
    ("state", "questions", "keywords", "field"),
    [
        (float("nan"), {"q": Noul("?")}, {}, "state"),
        ({"a": object()}, {"q": Noul("?")}, {}, "state"),
        ("half \ud800", {"q": Noul("?")}, {}, "state"),
        ("s", {"q": Noul({1, 2})}, {}, "questions.q.instructions"),
        ("s", {"a": Noul("?"), "\udfff": Noul("?")}, {}, "questions[1].id"),
        ("s", {"q": Choice("?", [Option("ok"), Option(WRONG)])}, {}, "questions.q.options[1].name"),
        ("s", {"q": Choice("?", {"a": b"bytes"})}, {}, "questions.q.options[0].description"),
        ("s", {"q": Score("?", ["low", float("inf")])}, {}, "questions.q.levels[1]"),
        ("s", {"q": Noul("?", yes={"x": 1j})}, {}, "questions.q.yes"),
        ("s", {"q": Noul("?", ask_if={"o": ["yes", 0.5]})}, {}, "questions.q.ask_if.o"),
        ("s", {"q": "Is it?"}, {}, "questions.q"),
        ("s", {1: Noul("?")}, {}, "questions[0].id"),
        ("s", {"q": Noul}, {}, "questions.q"),
        ("s", {"q": Choice("?", WRONG)}, {}, "questions.q.options"),
        ("s", {"q": Choice("?", TEXT)}, {}, "questions.q.options"),
        ("s", {"q": Choice("?", [WRONG, WRONG])}, {}, "questions.q.options[0]"),
        ("s", {"q": Choice("?", [Option("ok"), None])}, {}, "questions.q.options[1]"),
        ("s", {"q": Score("?", WRONG)}, {}, "questions.q.levels"),
        ("s", {"q": Score("?", TEXT)}, {}, "questions.q.levels"),
        ("s", {"q": Score("?", WRONG_MAPPING)}, {}, "questions.q.levels"),
        ("s", {"q": Noul("?", ask_if=["o"])}, {}, "questions.q.ask_if"),
        ("s", {"q": Noul("?", ask_if={"o": None})}, {}, "questions.q.ask_if.o"),
        ("s", {"q": Noul("?", ask_if={"o": 0.5})}, {}, "questions.q.ask_if.o"),
        ("s", {"q": Noul("?", ask_if={1: "yes"})}, {}, "questions.q.ask_if.1"),
        ("s", Noul("?"), {}, "questions"),
        ("s", "Is it?", {}, "questions"),
        ("s", None, {}, "questions"),
        ("s", {"Is it?", "Was it?"}, {}, "questions"),
        ("s", [Noul("?")], {}, "questions[0].id"),
        ("s", [Noul("?", id=WRONG)], {}, "questions[0].id"),
        ("s", [Noul("?", id="q"), "Is it?"], {}, "questions[1]"),
        ("s", [Noul("?", id="q", yes=WRONG_MAPPING)], {}, "questions[0].yes"),
        ("s", {"q": Noul("?")}, {"samples": "many"}, "samples"),
        ("s", {"q": Noul("?")}, {"samples": 1.5}, "samples"),
        ("s", {"q": Noul("?")}, {"model": 0}, "model"),
        ("s", {"q": Noul("?")}, {"ask": 3}, "ask"),
        ("s", {"q": Noul("?")}, {"timeout_seconds": 0}, "timeout_seconds"),
        ("s", {"q": Noul("?")}, {"timeout_seconds": float("nan")}, "timeout_seconds"),
        ("s", {"q": Noul("?")}, {"timeout_seconds": TEXT}, "timeout_seconds"),
        ("s", {"q": Noul("?")}, {"samples": 0}, "samples"),
        ("s", {"q": Noul("?")}, {"samples": True}, "samples"),
        ("s", {"q": Noul("?")}, {"ask": []}, "ask"),
        ("s", {"q": Noul("?")}, {"ask": [1]}, "ask[0]"),
        ("s", {"q": Noul("?")}, {"adapter": WRONG}, "adapter"),
        ("s", {"q": Noul("?")}, {"adapter": Adapter(WRONG)}, "adapter.name"),
        ("s", {"q": Noul("?")}, {"adapter": "\ud800"}, "adapter.name"),
        ("s", {"q": Noul("?")}, {"adapter": Adapter("a", NOTHING)}, "adapter.scale"),
        ("s", {"q": Noul("?")}, {"adapter": Adapter("a", True)}, "adapter.scale"),
        ("s", {"q": Noul("?")}, {"adapter": Adapter("a", 10**400)}, "adapter.scale"),
        ("s", {"q": Noul("?")}, {"service_class": "slow"}, "service_class"),
        ("s", {"q": Noul("?")}, {"service_class": ["batch"]}, "service_class"),
    ],
)
def test_value_that_cannot_travel_names_its_field(
    server: Any, state: Any, questions: Any, keywords: dict[str, Any], field: str
) -> None:
    """A value that the wire cannot carry is refused before anything is sent."""
    with Client(server.target) as client, pytest.raises(InvalidRequest) as refused:
        client.decide(state, questions, **keywords)
    [violation] = refused.value.violations
    assert violation.field == field
    assert violation.description.startswith("expected ")
    assert (str(refused.value), refused.value.code) == (f"{field}: {violation.description}", "INVALID_ARGUMENT")
    with pytest.raises(InvalidRequest) as again:
        asyncio.run(from_coroutine(server.target, state, questions, keywords))
    assert again.value.violations == refused.value.violations
    assert server.servicer.requests == []


async def from_coroutine(target: str, state: Any, questions: Any, keywords: dict[str, Any]) -> None:
    async with AsyncClient(target) as client:
        await client.decide(state, questions, **keywords)


def test_plain_meanings_are_accepted(server: Any) -> None:
    """One id for a list of one, a bool for yes or no, an index for a level, "auto" as in a file."""
    questions = {
        "a": Noul("?"),
        "u": Score("?", ("low", "high")),
        "b": Noul("?", ask_if={"a": True, "u": [0, "high", False]}),
        "c": Choice("?", (name for name in "xy"), ask_if=None),
        "d": Noul("?", ask_if=NOTHING),
    }
    with Client(server.target) as client:
        client.decide("s", questions, samples="auto", ask="a")
        client.decide("s", (question for question in [Noul("?", id="q")]), samples=10**12)
    first, second = server.servicer.requests
    assert [list(each.answers) for each in first.questions[2].ask_if] == [["yes"], ["0", "high", "no"]]
    assert [option.name for option in first.questions[3].choice.options] == ["x", "y"]
    assert (first.samples, list(first.ask), second.samples) == (1, ["a"], 2**32 - 1)
    assert [question.id for question in second.questions] == ["q"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("questions[1].options[1].name", "questions.team.options[1].name"),
        ("questions[3].ask_if[1].answers[0]", "questions.refund.ask_if.team"),
        ("questions[2].id", "questions.urgency"),
        ("questions[0]", "questions.angry"),
        ("questions", "questions"),
        ("questions[7].id", "questions[7].id"),
    ],
)
def test_refusal_of_the_server_is_told_in_the_callers_paths(path: str, told: str, server: Any, refusal: Any) -> None:
    """Questions by id are named by id, from both kinds of call; questions in a list by their place."""
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field=path, description="expected something else")
    server.servicer.refusals = [refusal(grpc.StatusCode.INVALID_ARGUMENT, details=(bad,)) for _ in range(3)]
    with Client(server.target) as client:
        for questions, field in ((QUESTIONS, told), ([Noul("?", id="q")], path)):
            with pytest.raises(InvalidRequest) as refused:
                client.decide("s", questions)
            assert [violation.field for violation in refused.value.violations] == [field]
        with pytest.raises(InvalidRequest, match=re.escape(told)):
            list(client.decide_stream("s", QUESTIONS))


def test_stream_is_left_when_the_server_has_ended_it(server: Any) -> None:
    """Whoever stops at the completed event has still let the call end well; so has the asynchronous client."""

    async def gathered() -> None:
        async with AsyncClient(server.target) as client, client.decide_stream("s", QUESTIONS) as events:
            async for event in events:
                if event.kind == "completed":
                    break

    with Client(server.target) as client:
        gather(client.decide_stream("s", QUESTIONS))
    asyncio.run(gathered())
    assert server.servicer.left == [False, False]


@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_every_rpc_has_a_client_method(client_class: type) -> None:
    """A new RPC in the contract, of whichever service, fails here until both clients have it."""
    named = {"GetInfo": "info"}
    files = [import_module(f"letterwise.v1.{each.name}") for each in iter_modules(letterwise.v1.__path__)]
    services = [
        service
        for file in files
        if hasattr(file, "DESCRIPTOR")
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    assert {service.name for service in services} == {"DecisionService", "ChatService"}
    for method in (method for service in services for method in service.methods):
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        assert callable(getattr(client_class, named.get(method.name, words)))


@pytest.mark.parametrize(
    ("adapter", "sent"),
    [
        (None, None),
        ("tone", serving_pb2.Adapter(name="tone", scale=1)),
        (Adapter("tone", 0), serving_pb2.Adapter(name="tone", scale=0)),
        (Adapter("law", -0.5), serving_pb2.Adapter(name="law", scale=-0.5)),
    ],
)
@pytest.mark.parametrize(("service_class", "number"), [(None, 0), ("interactive", 1), ("batch", 2)])
def test_adapter_and_service_class_are_sent(
    server: Any, adapter: Any, sent: serving_pb2.Adapter | None, service_class: Any, number: int
) -> None:
    """With each call that reads; nothing is sent of what was not given."""
    given = {"adapter": adapter, "service_class": service_class}
    with Client(server.target) as client:
        client.decide("s", QUESTIONS, **given)
        list(client.decide_stream("s", QUESTIONS, **given))
        client.prewarm("s", **given)
    decided, streamed, prewarmed = server.servicer.requests
    for request in (decided, streamed.request, prewarmed):
        assert (request.HasField("adapter"), request.service_class) == (adapter is not None, number)
        assert sent is None or request.adapter == sent
