"""Bad input over real gRPC: each kind is refused with its field's path, and a decision beside it does not notice."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from letterwise import Client
from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import decision_pb2_grpc

from . import material
from .processes import Server

pytestmark = pytest.mark.live
BESIDE = material.twenty(material.letters_of(material.LONG_LINES, year=2020))
Change = Callable[[pb.DecideRequest], object]


def text(value: str) -> pb.Value:
    return pb.Value(text=value)


def sound() -> pb.DecideRequest:
    """A request with nothing wrong: a yes/no question, a choice that waits for it, a score."""
    return pb.DecideRequest(
        state=text("The lamp came late."),
        questions=[
            pb.Question(id="late", instructions=text("Late?"), noul=pb.Noul()),
            pb.Question(
                id="team",
                instructions=text("Whose?"),
                choice=pb.Choice(options=[pb.Option(name="billing"), pb.Option(name="shipping")]),
                ask_if=[pb.AskIf(question_id="late", answers=["yes"])],
            ),
            pb.Question(id="urgency", instructions=text("Urgent?"), score=pb.Score(levels=[text("no"), text("yes")])),
        ],
    )


# What is done to the sound request, and the field that the refusal must name.
INVALID: list[tuple[str, Change]] = [
    ("state", lambda r: r.ClearField("state")),
    ("state", lambda r: r.state.CopyFrom(pb.Value())),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json="null"))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json='{"a": '))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json="[NaN]"))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json="1e400"))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json='{"a": 1, "a": 2}'))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json='"\\ud800"'))),
    ("state", lambda r: r.state.CopyFrom(pb.Value(json="[" * 200 + "]" * 200))),
    ("questions", lambda r: r.ClearField("questions")),
    ("questions", lambda r: r.questions.extend([r.questions[0]] * 300)),
    ("questions[0].id", lambda r: r.questions[0].ClearField("id")),
    ("questions[0].id", lambda r: setattr(r.questions[0], "id", "x" * 300)),
    ("questions[2].id", lambda r: setattr(r.questions[2], "id", "late")),
    ("questions[1].instructions", lambda r: r.questions[1].ClearField("instructions")),
    ("questions[1].instructions", lambda r: r.questions[1].instructions.CopyFrom(pb.Value(json="{"))),
    ("questions[0]", lambda r: r.questions[0].ClearField("noul")),
    ("questions[0].yes", lambda r: r.questions[0].noul.yes.CopyFrom(pb.Value())),
    ("questions[1].options", lambda r: r.questions[1].choice.ClearField("options")),
    ("questions[1].options", lambda r: r.questions[1].choice.options.extend([pb.Option(name="x")] * 3000)),
    ("questions[1].options[0].name", lambda r: setattr(r.questions[1].choice.options[0], "name", " ")),
    ("questions[1].options[1].name", lambda r: setattr(r.questions[1].choice.options[1], "name", "a\nb")),
    ("questions[1].options[1].name", lambda r: setattr(r.questions[1].choice.options[1], "name", "billing")),
    ("questions[1].options[0].description", lambda r: r.questions[1].choice.options[0].description.SetInParent()),
    ("questions[2].levels", lambda r: r.questions[2].score.ClearField("levels")),
    ("questions[2].levels[1]", lambda r: r.questions[2].score.levels[1].CopyFrom(pb.Value(json="tru"))),
    ("questions[1].ask_if[0]", lambda r: setattr(r.questions[1].ask_if[0], "question_id", "nobody")),
    ("questions[1].ask_if[0]", lambda r: setattr(r.questions[1].ask_if[0], "question_id", "team")),
    ("questions[1].ask_if[0].answers[0]", lambda r: r.questions[1].ask_if[0].answers.__setitem__(0, "perhaps")),
    ("questions[1].ask_if[0]", lambda r: r.questions[1].ask_if[0].ClearField("answers")),
    ("questions[0].ask_if", lambda r: r.questions[0].ask_if.append(pb.AskIf(question_id="team", answers=["billing"]))),
    ("ask[0]", lambda r: r.ask.append("nobody")),
    ("ask", lambda r: r.ask.append("team")),
]
# The other refusals, which name no field of a violation list: the code, and what the message must hold.
REFUSED: list[tuple[grpc.StatusCode, str, Change]] = [
    (grpc.StatusCode.OUT_OF_RANGE, "tokens", lambda r: r.state.CopyFrom(text("late " * 9000))),
    (
        grpc.StatusCode.UNIMPLEMENTED,
        "state",
        lambda r: r.state.CopyFrom(pb.Value(json='{"type": "image_url", "image_url": {"url": "x"}}')),
    ),
]


def refusal(stub: decision_pb2_grpc.DecisionServiceStub, request: pb.DecideRequest) -> grpc.RpcError:
    """The error of a call that must not succeed."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.Decide(request, timeout=60)
    return caught.value


def fields(error: grpc.RpcError) -> list[str]:
    """The paths in a status's BadRequest detail."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    found = error_details_pb2.BadRequest()
    detail: Any
    for detail in status.details:
        if detail.Unpack(found):
            return [violation.field for violation in found.field_violations]
    return []


def test_bad_input_names_its_field_and_disturbs_no_decision(server: Server, client: Client) -> None:
    """Thirty-five kinds, one after the other, while twenty questions are read beside them: every refusal names what
    is wrong, and the decision keeps its bits."""
    quiet = client.decide(**material.call(BESIDE))
    beside = []
    reader = threading.Thread(target=lambda: beside.append(client.decide(**material.call(BESIDE))))
    wrong = []
    with grpc.insecure_channel(server.target) as channel:
        stub = decision_pb2_grpc.DecisionServiceStub(channel)
        assert len(stub.Decide(sound(), timeout=60).answers) >= 2
        reader.start()
        for path, change in INVALID:
            change(request := sound())
            error = refusal(stub, request)
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT or fields(error)[:1] != [path]:
                wrong.append((path, error.code(), error.details()))
        for code, words, change in REFUSED:
            change(request := sound())
            error = refusal(stub, request)
            if error.code() is not code or words not in error.details():
                wrong.append((words, error.code(), error.details()))
        still_running = reader.is_alive()
    reader.join()
    assert wrong == []
    assert still_running, "the decision ended before the last refusal, so nothing was beside it"
    assert beside[0].answers == quiet.answers
