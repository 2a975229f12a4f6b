"""The RPCs over a real connection: what they answer, and that streamed and unary are one."""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import letterwise.v1
from letterwise.v1 import chat_pb2, info_pb2, serving_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise_service.method import calibration
from letterwise_service.method.decision import Decision, Reading
from letterwise_service.method.request import BATCH, INTERACTIVE, Adapter
from letterwise_service.server import requests
from letterwise_service.server.chat import ChatServicer
from letterwise_service.server.servicer import DecisionServicer

from . import bodies
from .conftest import Running
from .scripted import scripted_scores


async def test_decide_answers_as_the_method_does(server: Running) -> None:
    """Every number of a reply is the method's own, unrounded, for the scores that the engine read."""
    reply = await server.stub.Decide(bodies.ticket())
    decision = Decision(requests.decision_of(bodies.ticket(), server.engine.config), style="plain")
    expected = {}
    while passes := decision.ready():
        for one in passes:
            for outcome in decision.take(one, Reading(scripted_scores(one.text, one.letters), 0.5)):
                expected[outcome.id] = outcome
    got = {answer.question_id: answer for answer in reply.answers}
    assert got["refund"].noul.probability == expected["refund"].probability
    assert [p.probability for p in got["team"].choice.probabilities] == list(expected["team"].probabilities)
    assert got["team"].choice.confidence == expected["team"].confidence
    assert got["urgency"].score.score == expected["urgency"].score
    assert got["team"].letter_mass == 0.5


async def test_decide_keeps_the_order_of_the_request(server: Running) -> None:
    """A question that was read in a later stage still stands first when it was asked first."""
    reply = await server.stub.Decide(bodies.ticket())
    ids = [answer.question_id for answer in reply.answers]
    assert ids[0] == "escalate"
    assert sorted([*ids, *(s.question_id for s in reply.skipped)]) == sorted(q.id for q in bodies.ticket().questions)
    assert [p.name for p in reply.answers[ids.index("team")].choice.probabilities] == ["billing", "technical", "other"]


async def test_decide_reports_skips_with_their_reason(server: Running) -> None:
    """A skipped question is told with what it hung on; one that hangs on a skipped question has no `was`."""
    request = pb.DecideRequest(
        state=bodies.text("s"),
        questions=[
            bodies.choice("only", ("one",)),
            bodies.noul("no_chance", ask_if=bodies.after("pair", "b")),
            bodies.choice("pair", ("a", "b")),
            bodies.noul("later", ask_if=bodies.after("no_chance", "yes")),
        ],
    )
    server.engine.scores = lambda text, letters: tuple(-float(letter) for letter in range(letters))
    reply = await server.stub.Decide(request)
    first, second = reply.skipped
    assert (first.question_id, first.because, first.was, list(first.wanted)) == ("no_chance", "pair", "a", ["b"])
    assert (second.question_id, second.because, second.HasField("was")) == ("later", "no_chance", False)
    assert list(reply.diagnostics.skipped) == list(reply.skipped)


async def test_decide_stream_equals_decide(server: Running) -> None:
    """The union of the events is the unary reply, and the events come in their order."""
    unary = await server.stub.Decide(bodies.ticket())
    stream = server.stub.DecideStream(pb.DecideStreamRequest(request=bodies.ticket()))
    events = [event async for event in stream]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[:3] == ["accepted", "prefix", "prefix"]
    assert kinds[-1] == "completed"
    answers = {event.answer.question_id: event.answer for event in events if event.HasField("answer")}
    skipped = {event.skipped.question_id: event.skipped for event in events if event.HasField("skipped")}
    assert [answers[answer.question_id] for answer in unary.answers] == list(unary.answers)
    assert [skipped[skip.question_id] for skip in unary.skipped] == list(unary.skipped)
    assert (
        len(answers) + len(skipped)
        == len(unary.answers) + len(unary.skipped)
        == kinds.count("answer") + kinds.count("skipped")
    )
    completed = events[-1].completed
    assert (completed.model, completed.usage, completed.diagnostics) == (unary.model, unary.usage, unary.diagnostics)


async def test_decide_stream_sends_each_event_as_it_comes(server: Running) -> None:
    """An answer does not wait for the end of the decision."""
    server.engine.hold()
    stream = server.stub.DecideStream(pb.DecideStreamRequest(request=bodies.ticket()))
    events = aiter(stream)
    assert (await anext(events)).HasField("accepted")
    assert not stream.done()
    server.engine.release()
    assert [event async for event in events][-1].HasField("completed")


async def test_decide_legend_keeps_levels_as_they_came(server: Running) -> None:
    """Text levels come back as text; numbers, lists and objects as JSON text with their characters and key order."""
    levels = [pb.Value(text="低"), pb.Value(json="7"), pb.Value(json='["é", null]'), pb.Value(json='{"z": 1, "a": 2}')]
    question = pb.Question(id="q", instructions=bodies.text("?"), score=pb.Score(levels=levels))
    reply = await server.stub.Decide(pb.DecideRequest(state=bodies.text(""), questions=[question]))
    assert [p.level for p in reply.answers[0].score.probabilities] == levels
    assert [p.index for p in reply.answers[0].score.probabilities] == [0, 1, 2, 3]


async def test_decide_samples_are_lowered_to_the_limit(server: Running) -> None:
    """More orders than the limit are the limit; none are one."""
    question = [bodies.choice()]
    many = await server.stub.Decide(pb.DecideRequest(state=bodies.text("s"), questions=question, samples=500))
    none = await server.stub.Decide(pb.DecideRequest(state=bodies.text("s"), questions=question))
    assert (many.diagnostics.orderings, none.diagnostics.orderings) == (4, 1)


async def test_decide_asks_only_what_is_named(server: Running) -> None:
    """`ask` limits the questions, and usage counts only what was read."""
    request = bodies.ticket()
    request.ask.extend(["refund"])
    reply = await server.stub.Decide(request)
    assert [answer.question_id for answer in reply.answers] == ["refund"]
    assert reply.usage.input_tokens == reply.diagnostics.prompt_tokens > 0
    assert reply.usage.output_tokens == 0


async def test_decide_treats_json_text_and_text_alike(server: Running) -> None:
    """A JSON string is the text that it holds."""
    plain = pb.DecideRequest(state=pb.Value(text="héllo"), questions=[bodies.noul()])
    quoted = pb.DecideRequest(state=pb.Value(json='"h\\u00e9llo"'), questions=[bodies.noul()])
    assert (await server.stub.Decide(plain)).answers == (await server.stub.Decide(quoted)).answers


async def test_prewarm_reports_the_prefix(server: Running) -> None:
    """A prewarm says what was read and whether it is kept, and reads no pass."""
    reply = await server.stub.Prewarm(pb.PrewarmRequest(state=bodies.text("a state")))
    assert (reply.model, reply.prompt_tokens, reply.stored, reply.tier) == ("scripted", 7, True, "exact")
    assert reply.diagnostics.passes == 0


async def test_get_info_describes_model_limits_and_store(server: Running) -> None:
    """GetInfo has the model, the limits that requests are held to, the constants and the store's counters."""
    reply = await server.stub.GetInfo(info_pb2.GetInfoRequest())
    assert (reply.model.name, reply.model.path, reply.model.HasField("problem")) == ("scripted", "rows", False)
    assert (reply.limits.max_questions, reply.limits.max_samples, reply.limits.queue_jobs) == (8, 4, 3)
    assert reply.limits.max_message_bytes == 2**20
    assert (reply.limits.chat_rows, reply.limits.chat_queue, reply.limits.chat_max_tokens) == (8, 64, 2048)
    assert list(reply.model.adapters) == ["tone"]
    assert reply.calibration.temperature == calibration.TEMPERATURE
    assert (reply.prefix_store.hits, reply.prefix_store.misses, reply.prefix_store.evicted) == (5, 6, 1)
    assert (reply.prefix_store.partial_hits, reply.prefix_store.stored, reply.prefix_store.refused) == (7, 3, 4)
    assert reply.build.version
    assert reply.build.python_version.startswith("3.")


SERVICERS = {"DecisionService": DecisionServicer, "ChatService": ChatServicer}
RPCS = [
    (service.name, method)
    for module in (pb, chat_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize(("service", "method"), RPCS, ids=[method.full_name for _, method in RPCS])
def test_servicer_covers_every_rpc_of_the_descriptor(service: str, method: Any) -> None:
    """An RPC that is added to the proto and not here fails this test; streamed ones are generators."""
    own = vars(SERVICERS[service]).get(method.name)
    assert own is not None
    assert inspect.isasyncgenfunction(own) if method.server_streaming else inspect.iscoroutinefunction(own)


def test_every_service_of_the_contract_has_its_servicer() -> None:
    """A service that is added to the proto files fails here until it is among those above."""
    files = [import_module(f"letterwise.v1.{each.name}") for each in iter_modules(letterwise.v1.__path__)]
    services = {name for file in files if hasattr(file, "DESCRIPTOR") for name in file.DESCRIPTOR.services_by_name}
    assert services == set(SERVICERS)


ADAPTERS = [
    (None, None),
    (serving_pb2.Adapter(name="tone"), Adapter("tone")),
    (serving_pb2.Adapter(name="tone", scale=0), Adapter("tone", 0.0)),
    (serving_pb2.Adapter(name="tone", scale=-2.5), Adapter("tone", -2.5)),
]
CLASSES = [
    (serving_pb2.SERVICE_CLASS_UNSPECIFIED, INTERACTIVE),
    (serving_pb2.SERVICE_CLASS_INTERACTIVE, INTERACTIVE),
    (serving_pb2.SERVICE_CLASS_BATCH, BATCH),
]


@pytest.mark.parametrize(("sent", "adapter"), ADAPTERS)
@pytest.mark.parametrize(("number", "service_class"), CLASSES)
async def test_adapter_and_service_class_reach_the_engine(
    server: Running, sent: serving_pb2.Adapter | None, adapter: Adapter | None, number: Any, service_class: str
) -> None:
    """Decide, DecideStream and Prewarm hand both on; an absent scale is all of the adapter."""
    asked = pb.DecideRequest(state=bodies.text("s"), questions=[bodies.noul()], adapter=sent, service_class=number)
    await server.stub.Decide(asked)
    assert [event async for event in server.stub.DecideStream(pb.DecideStreamRequest(request=asked))]
    await server.stub.Prewarm(pb.PrewarmRequest(state=bodies.text("s"), adapter=sent, service_class=number))
    permits = [job.permit for job in server.engine.jobs]
    assert [(permit.adapter, permit.service_class) for permit in permits] == [(adapter, service_class)] * 3


async def test_reflection_lists_the_services(server: Running) -> None:
    """Reflection knows ours, health and itself."""
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    reply = await call.read()
    names = {service.name for service in reply.list_services_response.service}
    ours = {f"letterwise.v1.{name}" for name in SERVICERS}
    assert names == {*ours, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    call.cancel()


async def test_request_id_is_accepted_or_made_and_returned(server: Running) -> None:
    """The caller's id comes back in the trailers, on success and on failure; a bad one is replaced."""

    async def returned(request: pb.DecideRequest, given: str) -> str | bytes | None:
        call = server.stub.Decide(request, metadata=(("x-request-id", given),))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call
        return dict(await call.trailing_metadata()).get("x-request-id")

    sound = pb.DecideRequest(state=bodies.text("s"), questions=[bodies.noul()])
    assert await returned(sound, "abc-123") == "abc-123"
    assert await returned(pb.DecideRequest(), "abc-124") == "abc-124"
    made = await returned(sound, "not acceptable; " + "x" * 300)
    assert isinstance(made, str)
    assert len(made) == 32
