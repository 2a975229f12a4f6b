"""What a caller is told when a decision is refused or fails: the code, the details, the trailers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import errors_pb2, serving_pb2
from letterwise_service import errors

from . import bodies
from .bodies import after, choice, noul, score, text
from .conftest import Running
from .scripted import scripted_scores


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def detail(error: grpc.aio.AioRpcError, kind: Callable[[], Any]) -> Any:
    """The detail of a kind in an error's rich status, which must agree with the error itself."""
    sent = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
    status = errors_pb2.ErrorStatus.FromString(sent)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = kind()
    assert any(one.Unpack(found) for one in status.details)
    return found


def asked(*questions: pb.Question, state: pb.Value | None = None, **fields: Any) -> pb.DecideRequest:
    return pb.DecideRequest(state=state or text("SECRET-STATE"), questions=questions, **fields)


def with_instructions(value: pb.Value | None) -> pb.Question:
    return pb.Question(id="q", instructions=value, noul=pb.Noul())


def options(*built: pb.Option) -> pb.Question:
    return pb.Question(id="q", instructions=text("?"), choice=pb.Choice(options=built))


BAD = {
    "no state": (pb.DecideRequest(questions=[noul()]), "state"),
    "a state of no kind": (asked(noul(), state=pb.Value()), "state"),
    "a null state": (asked(noul(), state=pb.Value(json="null")), "state"),
    "a state that is not JSON": (asked(noul(), state=pb.Value(json="{SECRET-STATE")), "state"),
    "an empty JSON text": (asked(noul(), state=pb.Value(json="")), "state"),
    "a state with a repeated key": (asked(noul(), state=pb.Value(json='{"a": 1, "a": 2}')), "state"),
    "a state with NaN": (asked(noul(), state=pb.Value(json='{"a": NaN}')), "state"),
    "a state with a number past the largest": (asked(noul(), state=pb.Value(json="[1e400]")), "state"),
    "a state nested past 100": (asked(noul(), state=pb.Value(json="[" * 101 + "]" * 101)), "state"),
    "a state nested past any stack": (asked(noul(), state=pb.Value(json="[" * 60_000)), "state"),
    "a state with half a pair": (asked(noul(), state=pb.Value(json='"\\ud800"')), "state"),
    "an integer of 5,000 digits": (asked(noul(), state=pb.Value(json="9" * 5000)), "state"),
    "an adapter without a name": (asked(noul(), adapter=serving_pb2.Adapter(scale=1)), "adapter.name"),
    "an adapter with a name past any": (asked(noul(), adapter=serving_pb2.Adapter(name="x" * 300)), "adapter.name"),
    "a scale that is no number": (
        asked(noul(), adapter=serving_pb2.Adapter(name="tone", scale=math.nan)),
        "adapter.scale",
    ),
    "a scale past any sense": (asked(noul(), adapter=serving_pb2.Adapter(name="tone", scale=101)), "adapter.scale"),
    "a service class of a later contract": (asked(noul(), service_class=9), "service_class"),
    "no questions": (asked(), "questions"),
    "too many questions": (asked(*(noul(str(i)) for i in range(9))), "questions"),
    "an empty id": (asked(noul("")), "questions[0].id"),
    "an id of 300 characters": (asked(noul("x" * 300)), "questions[0].id"),
    "an id given twice": (asked(noul("a"), score("b"), noul("a")), "questions[2].id"),
    "no kind of question": (asked(noul(), pb.Question(id="q", instructions=text("?"))), "questions[1]"),
    "no instructions": (asked(with_instructions(None)), "questions[0].instructions"),
    "instructions of no kind": (asked(with_instructions(pb.Value())), "questions[0].instructions"),
    "null instructions": (asked(with_instructions(pb.Value(json="null"))), "questions[0].instructions"),
    "instructions that are not JSON": (asked(with_instructions(pb.Value(json="{"))), "questions[0].instructions"),
    "a yes that is not JSON": (
        asked(pb.Question(id="q", instructions=text("?"), noul=pb.Noul(yes=pb.Value(json="]")))),
        "questions[0].yes",
    ),
    "a no with a repeated key": (
        asked(pb.Question(id="q", instructions=text("?"), noul=pb.Noul(no=pb.Value(json='{"a":1,"a":1}')))),
        "questions[0].no",
    ),
    "no options": (asked(choice("q", ())), "questions[0].options"),
    "too many options": (asked(choice("q", tuple(map(str, range(61))))), "questions[0].options"),
    "a blank option name": (asked(noul(), noul("b"), choice("q", (" ", "b"))), "questions[2].options[0].name"),
    "an option name with a line break": (asked(choice("q", ("a", "b\nc"))), "questions[0].options[1].name"),
    "an option name with a control character": (asked(choice("q", ("a\x07",))), "questions[0].options[0].name"),
    "an option name given twice": (asked(choice("q", ("a", "b", "a"))), "questions[0].options[2].name"),
    "a description that is not JSON": (
        asked(options(pb.Option(name="a", description=pb.Value(json="nope")))),
        "questions[0].options[0].description",
    ),
    "no levels": (asked(score("q", ())), "questions[0].levels"),
    "too many levels": (asked(score("q", tuple(map(str, range(61))))), "questions[0].levels"),
    "a level that is not JSON": (
        asked(pb.Question(id="q", instructions=text("?"), score=pb.Score(levels=[text("a"), pb.Value(json="{")]))),
        "questions[0].levels[1]",
    ),
    "a condition on an unknown question": (asked(noul(ask_if=after("x", "yes"))), "questions[0].ask_if[0]"),
    "a condition on itself": (asked(noul("a", ask_if=after("a", "yes"))), "questions[0].ask_if[0]"),
    "a condition without answers": (asked(noul("a"), noul("b", ask_if=after("a"))), "questions[1].ask_if[0]"),
    "a condition on an unknown answer": (
        asked(noul("a"), noul("b", ask_if=after("a", "yes", "maybe"))),
        "questions[1].ask_if[0].answers[1]",
    ),
    "two conditions on one question": (
        asked(noul("a"), noul("b", ask_if=[*after("a", "yes"), *after("a", "no")])),
        "questions[1].ask_if[1].question_id",
    ),
    "a cycle": (
        asked(noul("a", ask_if=after("b", "yes")), noul("b", ask_if=after("a", "yes"))),
        "questions[0].ask_if",
    ),
    "an unknown id in ask": (asked(noul(), ask=["refund", "ghost"]), "ask[1]"),
    "an id twice in ask": (asked(noul(), ask=["refund", "refund"]), "ask[1]"),
    "an ask without what it depends on": (
        asked(noul("a"), noul("b", ask_if=after("a", "yes")), ask=["b"]),
        "ask",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_names_its_field(server: Running, name: str) -> None:
    """Each kind of bad input is INVALID_ARGUMENT with its field's path, unary and streamed; no state is quoted."""
    request, field = BAD[name]
    unary = await refused(server.stub.Decide(request))
    streamed = await refused(server.stub.DecideStream(pb.DecideStreamRequest(request=request)).read())
    assert unary.code() is grpc.StatusCode.INVALID_ARGUMENT
    fields = [violation.field for violation in detail(unary, error_details_pb2.BadRequest).field_violations]
    assert field in fields
    assert "SECRET-STATE" not in (unary.details() or "")
    assert (streamed.code(), streamed.details()) == (unary.code(), unary.details())
    assert not server.engine.jobs


async def test_bad_input_does_not_disturb_a_decision_beside_it(server: Running) -> None:
    """A decision that runs while forty bad requests are refused answers as it does alone."""
    alone = await server.stub.Decide(bodies.ticket())
    server.engine.hold()
    beside = asyncio.ensure_future(server.stub.Decide(bodies.ticket()))
    for request, _ in BAD.values():
        await refused(server.stub.Decide(request))
    server.engine.release()
    assert (await beside).answers == alone.answers


async def test_bad_input_in_many_places_fits_the_metadata_limit(server: Running) -> None:
    """A request that is wrong everywhere, with long ids in many scripts, is still told so."""
    questions = [noul("語" * 250 + str(i), ask_if=after("幽" * 200, "yes")) for i in range(8)]
    error = await refused(server.stub.Decide(asked(*questions)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert detail(error, error_details_pb2.BadRequest).field_violations[0].field == "questions[0].ask_if[0]"


async def test_prewarm_without_a_state_names_it(server: Running) -> None:
    """Prewarm holds its state to the same rules."""
    error = await refused(server.stub.Prewarm(pb.PrewarmRequest()))
    assert detail(error, error_details_pb2.BadRequest).field_violations[0].field == "state"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"adapter": serving_pb2.Adapter(name="tone", scale=math.inf)}, "adapter.scale"),
        ({"service_class": 9}, "service_class"),
    ],
)
async def test_prewarm_holds_adapter_and_service_class_to_the_rules(
    server: Running, fields: dict[str, Any], field: str
) -> None:
    """As a decision does."""
    error = await refused(server.stub.Prewarm(pb.PrewarmRequest(state=text("s"), **fields)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [each.field for each in detail(error, error_details_pb2.BadRequest).field_violations] == [field]


async def test_image_is_unimplemented(server: Running) -> None:
    """A state that holds an image is refused, in Decide and in Prewarm."""
    state = pb.Value(json='{"image": "data:image/png;base64,AAAA"}')
    for call in (server.stub.Decide(asked(noul(), state=state)), server.stub.Prewarm(pb.PrewarmRequest(state=state))):
        assert (await refused(call)).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_too_long_is_out_of_range_with_the_numbers(server: Running) -> None:
    """A prompt past the budget tells its tokens and the limit."""
    error = await refused(server.stub.Decide(asked(noul(), state=text("x" * 5000))))
    assert error.code() is grpc.StatusCode.OUT_OF_RANGE
    limit = detail(error, errors_pb2.TokenLimit)
    assert limit.limit_tokens == 4096 < limit.tokens


async def test_too_large_a_message_is_refused(server: Running) -> None:
    """A request past the message limit is refused by the transport, and the next one is answered."""
    error = await refused(server.stub.Decide(asked(noul(), state=text("x" * 2**21))))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await server.stub.Decide(bodies.ticket())).answers


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ModelUnsuitable("letter Q is two tokens"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.Unsupported("a diffusion model"), grpc.StatusCode.UNIMPLEMENTED),
        (errors.EngineDown("gone"), grpc.StatusCode.UNAVAILABLE),
        (errors.Draining("going down"), grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded("too late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.Unauthenticated("who?"), grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_domain_error_has_its_code_and_message(
    server: Running, error: errors.LetterwiseError, code: grpc.StatusCode
) -> None:
    """An error of the domain reaches the caller with its own code and words."""
    server.engine.admit_error = error
    got = await refused(server.stub.Decide(bodies.ticket()))
    assert (got.code(), got.details()) == (code, str(error))
    assert rpc_status.from_call(got).message == str(error)


async def test_queue_full_says_when_to_come_back(server: Running) -> None:
    """A full queue is RESOURCE_EXHAUSTED with RetryInfo and the pushback trailer; what was admitted is answered."""
    server.engine.hold()
    running = [asyncio.ensure_future(server.stub.Decide(bodies.ticket())) for _ in range(3)]
    while len(server.engine.jobs) < 3:
        await asyncio.sleep(0.005)
    error = await refused(server.stub.Decide(bodies.ticket()))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "1500"
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1500
    server.engine.release()
    replies = await asyncio.gather(*running)
    assert all(reply.answers for reply in replies)


@pytest.mark.parametrize("where", ["in the engine", "at admission"])
async def test_internal_error_hides_its_text(server: Running, caplog: pytest.LogCaptureFixture, where: str) -> None:
    """An unforeseen failure is INTERNAL with an id; the log has id and place, and neither has a state's text."""

    def explode(text: str, letters: int) -> tuple[float, ...]:
        raise KeyError(text)

    if where == "in the engine":
        server.engine.scores = explode
    else:
        server.engine.admit_error = KeyError("SECRET-STATE")
    with caplog.at_level(logging.INFO):
        error = await refused(server.stub.Decide(asked(noul())))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "SECRET" not in (error.details() or "")
    error_id = detail(error, error_details_pb2.RequestInfo).request_id
    record = next(record for record in caplog.records if getattr(record, "error_id", None) == error_id)
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
    assert "SECRET-STATE" not in record.getMessage()


async def test_score_that_is_not_finite_fails_the_request(server: Running) -> None:
    """NaN from the model is an error, never an answer, and the next decision is answered."""
    server.engine.scores = lambda text, letters: (float("nan"),) * letters
    assert (await refused(server.stub.Decide(asked(noul())))).code() is grpc.StatusCode.INTERNAL
    server.engine.scores = scripted_scores
    assert (await server.stub.Decide(asked(noul()))).answers
