"""A real gRPC server on a free loopback port whose replies follow a fixed rule, and which can be told to refuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import status_pb2

from letterwise.v1 import chat_pb2, diagnostics_pb2, info_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise.v1.chat_pb2_grpc import ChatServiceServicer, add_ChatServiceServicer_to_server
from letterwise.v1.decision_pb2_grpc import DecisionServiceServicer, add_DecisionServiceServicer_to_server

WAIT_SECONDS = 10


@dataclass
class Refusal:
    """A status to end a call with, as a server sends it."""

    code: grpc.StatusCode
    message: str = "refused"
    details: tuple[Message, ...] = ()
    trailers: tuple[tuple[str, str], ...] = ()

    def abort(self, context: grpc.ServicerContext) -> None:
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in self.details:
            status.details.add().Pack(detail)
        encoded = ("grpc-status-details-bin", status.SerializeToString())
        context.set_trailing_metadata((encoded, *self.trailers) if self.details else self.trailers)
        context.abort(self.code, self.message)


@dataclass
class ScriptedServicer(DecisionServiceServicer, ChatServiceServicer):
    """Answers by a fixed rule: the first option has twice the weight of each other one; a chat repeats what was said.

    refusals: taken one by one before anything is answered.
    hold: when set to an unset event, the server waits for it after the first answer of a stream, or before a reply.
    breaks: a chat ends with this after its first word.
    events: when set, what every chat is answered with.
    left: for each stream that came to its last event, whether the client had gone before the call's end.
    """

    refusals: list[Refusal] = field(default_factory=list)
    requests: list[Message] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event | None = None
    breaks: Refusal | None = None
    events: list[chat_pb2.ChatResponse] | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    left: list[bool] = field(default_factory=list)

    def Decide(self, request: pb.DecideRequest, context: grpc.ServicerContext) -> pb.DecideResponse:
        self._enter(request, context)
        self._wait(context)
        answers, skipped = _outcomes(request)
        return pb.DecideResponse(
            model="scripted", answers=answers, skipped=skipped, usage=_usage(), diagnostics=_diagnostics(skipped)
        )

    def DecideStream(
        self, request: pb.DecideStreamRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.DecideStreamResponse]:
        self._enter(request, context)
        answers, skipped = _outcomes(request.request)
        yield pb.DecideStreamResponse(accepted=pb.DecisionAccepted(passes=len(answers), prompt_tokens=400))
        for done in (64, 128, 150):
            progress = pb.PrefixProgress(done_tokens=done, total_tokens=150, reused_tokens=64)
            yield pb.DecideStreamResponse(prefix=progress)
        # an event of a newer contract: one that this client's messages do not have
        yield pb.DecideStreamResponse.FromString(b"\xfa\x01\x00")
        for skip in skipped:
            yield pb.DecideStreamResponse(skipped=skip)
        for answer in reversed(answers):
            yield pb.DecideStreamResponse(answer=answer)
            self._wait(context)
        done_event = pb.DecisionCompleted(model="scripted", usage=_usage(), diagnostics=_diagnostics(skipped))
        yield pb.DecideStreamResponse(completed=done_event)
        # time enough for a client that leaves at the completed event to be seen to
        time.sleep(0.1)
        self.left.append(not context.is_active())

    def Chat(self, request: chat_pb2.ChatRequest, context: grpc.ServicerContext) -> Iterator[chat_pb2.ChatResponse]:
        self._enter(request, context)
        if self.events is not None:
            yield from self.events
            return
        words = " ".join(message.content for message in request.messages).split(" ")
        said = words[: request.max_tokens] if request.HasField("max_tokens") else words
        yield chat_pb2.ChatResponse(started=chat_pb2.ChatStarted(prompt_tokens=len(words), reused_tokens=1))
        # an event of a newer contract: one that this client's messages do not have
        yield chat_pb2.ChatResponse.FromString(b"\xfa\x01\x00")
        for place, word in enumerate(said):
            tokens = [chat_pb2.ChatToken(id=place, logprob=-0.1 - 0.2)]
            yield chat_pb2.ChatResponse(delta=chat_pb2.ChatDelta(text=" " * bool(place) + word, tokens=tokens))
            if self.breaks:
                self.breaks.abort(context)
            self._wait(context)
        yield chat_pb2.ChatResponse(finished=_chat_end(len(words), len(said)))
        time.sleep(0.1)
        self.left.append(not context.is_active())

    def Prewarm(self, request: pb.PrewarmRequest, context: grpc.ServicerContext) -> pb.PrewarmResponse:
        self._enter(request, context)
        return pb.PrewarmResponse(
            model="scripted",
            prompt_tokens=150,
            reused_tokens=64,
            stored=True,
            tier="exact",
            diagnostics=_diagnostics([]),
        )

    def GetInfo(self, request: info_pb2.GetInfoRequest, context: grpc.ServicerContext) -> info_pb2.GetInfoResponse:
        self._enter(request, context)
        return info_pb2.GetInfoResponse(
            model=info_pb2.Model(
                name="scripted", architecture="none", blas_gflops=1.5, weights_bytes=2**40, adapters=["tone", "law"]
            ),
            limits=info_pb2.Limits(max_questions=256, job_deadline_seconds=120, chat_rows=8),
            calibration=info_pb2.Calibration(temperature=0.85, noul_temperature=1.829074),
            prefix_store=info_pb2.PrefixStore(tier="exact", records=3),
            build=info_pb2.Build(version="0.1.0", platform="test"),
        )

    def _enter(self, request: Message, context: grpc.ServicerContext) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        context.add_callback(self.ended.set)
        if self.refusals:
            self.refusals.pop(0).abort(context)

    def _wait(self, context: grpc.ServicerContext) -> None:
        while self.hold is not None and context.is_active() and not self.hold.wait(0.01):
            pass


@dataclass
class Server:
    """A running server: where it listens, and the servicer behind it."""

    target: str
    servicer: ScriptedServicer


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of its own for one test."""
    servicer = ScriptedServicer()
    running = grpc.server(futures.ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
    add_DecisionServiceServicer_to_server(servicer, running)
    add_ChatServiceServicer_to_server(servicer, running)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    yield Server(f"127.0.0.1:{port}", servicer)
    running.stop(None).wait(WAIT_SECONDS)


@pytest.fixture
def refusal() -> type[Refusal]:
    """The class that scripts a failed call."""
    return Refusal


def _chat_end(prompt_tokens: int, output_tokens: int) -> chat_pb2.ChatFinished:
    cut = output_tokens < prompt_tokens
    return chat_pb2.ChatFinished(
        model="scripted",
        finish_reason=chat_pb2.FINISH_REASON_LENGTH if cut else chat_pb2.FINISH_REASON_STOP,
        usage=chat_pb2.ChatUsage(input_tokens=prompt_tokens, output_tokens=output_tokens),
        queue_seconds=0.25,
        total_seconds=1.5,
    )


def _outcomes(request: pb.DecideRequest) -> tuple[list[pb.Answer], list[diagnostics_pb2.Skipped]]:
    """Every question without a condition is answered, and every other one is skipped."""
    asked = [each for each in request.questions if not request.ask or each.id in request.ask]
    answers = [_answer(question) for question in asked if not question.ask_if]
    return answers, [
        diagnostics_pb2.Skipped(
            question_id=question.id,
            because=question.ask_if[0].question_id,
            was="no",
            wanted=question.ask_if[0].answers,
        )
        for question in asked
        if question.ask_if
    ]


def _answer(question: pb.Question) -> pb.Answer:
    answer = pb.Answer(question_id=question.id, letter_mass=0.1 + 0.2)
    match question.WhichOneof("kind"):
        case "noul":
            answer.noul.probability = 2 / 3
        case "choice":
            names = [option.name for option in question.choice.options]
            listed = [pb.OptionProbability(name=n, probability=p) for n, p in zip(names, _weights(names), strict=True)]
            answer.choice.CopyFrom(pb.ChoiceAnswer(choice=names[0], probabilities=listed, confidence=1 / 3))
        case "score":
            levels = question.score.levels
            parts = zip(levels, _weights(levels), strict=True)
            scored = [pb.LevelProbability(index=i, level=v, probability=p) for i, (v, p) in enumerate(parts)]
            answer.score.CopyFrom(pb.ScoreAnswer(score=1 / 7, probabilities=scored, confidence=0.25))
    return answer


def _weights(options: Any) -> list[float]:
    return [(2 if place == 0 else 1) / (len(options) + 1) for place in range(len(options))]


def _usage() -> pb.Usage:
    return pb.Usage(input_tokens=400, output_tokens=0)


def _diagnostics(skipped: list[diagnostics_pb2.Skipped]) -> diagnostics_pb2.Diagnostics:
    return diagnostics_pb2.Diagnostics(
        readout="letters",
        path="rows",
        prompt_style="plain",
        prompt_format_version=1,
        stages=1,
        skipped=skipped,
        orderings=1,
        prefix=diagnostics_pb2.PrefixDiagnostics(tokens=150, reused_tokens=64, stored=True, tier="exact"),
        passes=3,
        forwards=2,
        prompt_tokens=400,
        computed_tokens=200,
        total_seconds=0.5,
    )
