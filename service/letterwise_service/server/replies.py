"""Domain → protobuf: answers, skips, diagnostics, events and the server's description.

Pure: no I/O, no event loop. Knows nothing of errors (`status.py`) and nothing of requests (`requests.py`).
"""

from __future__ import annotations

import importlib.metadata
import json
import platform

from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import diagnostics_pb2, info_pb2

from ..config import EngineConfig, ServerConfig
from ..engine.events import (
    Accepted,
    Answered,
    Completed,
    Diagnostics,
    Event,
    Failed,
    ModelInfo,
    PrefixProgress,
    StoreInfo,
    WasSkipped,
)
from ..method.answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer, Skipped
from ..method.calibration import Calibration
from ..method.request import DecisionRequest, Json


def value_of(value: Json) -> pb.Value:
    """A JSON value as it came: text as text, anything else as JSON text with the characters kept."""
    if isinstance(value, str):
        return pb.Value(text=value)
    return pb.Value(json=json.dumps(value, ensure_ascii=False))


def answer_of(answer: Answer) -> pb.Answer:
    """One answer, unrounded."""
    reply = pb.Answer(question_id=answer.id, letter_mass=answer.letter_mass)
    if isinstance(answer, NoulAnswer):
        reply.noul.probability = answer.probability
    elif isinstance(answer, ChoiceAnswer):
        reply.choice.CopyFrom(_choice(answer))
    else:
        reply.score.CopyFrom(_score(answer))
    return reply


def _choice(answer: ChoiceAnswer) -> pb.ChoiceAnswer:
    pairs = zip(answer.names, answer.probabilities, strict=True)
    return pb.ChoiceAnswer(
        choice=answer.choice,
        probabilities=[pb.OptionProbability(name=name, probability=p) for name, p in pairs],
        confidence=answer.confidence,
    )


def _score(answer: ScoreAnswer) -> pb.ScoreAnswer:
    levels = enumerate(zip(answer.legend, answer.probabilities, strict=True))
    return pb.ScoreAnswer(
        score=answer.score,
        probabilities=[
            pb.LevelProbability(index=index, level=value_of(level), probability=p) for index, (level, p) in levels
        ],
        confidence=answer.confidence,
    )


def skipped_of(skipped: Skipped) -> diagnostics_pb2.Skipped:
    """One question that was not asked, and why."""
    return diagnostics_pb2.Skipped(
        question_id=skipped.id, because=skipped.because, was=skipped.was, wanted=skipped.wanted
    )


def diagnostics_of(ran: Diagnostics) -> diagnostics_pb2.Diagnostics:
    """How a decision ran."""
    return diagnostics_pb2.Diagnostics(
        readout=ran.readout,
        path=ran.path,
        prompt_style=ran.prompt_style,
        prompt_format_version=ran.prompt_format_version,
        stages=ran.stages,
        skipped=[skipped_of(skipped) for skipped in ran.skipped],
        orderings=ran.orderings,
        prefix=diagnostics_pb2.PrefixDiagnostics(
            tokens=ran.prefix.tokens,
            reused_tokens=ran.prefix.reused_tokens,
            stored=ran.prefix.stored,
            tier=ran.prefix.tier,
        ),
        passes=ran.passes,
        forwards=ran.forwards,
        prompt_tokens=ran.prompt_tokens,
        computed_tokens=ran.computed_tokens,
        padded_tokens=ran.padded_tokens,
        neutralized_tokens=ran.neutralized_tokens,
        queue_seconds=ran.queue_seconds,
        prefix_seconds=ran.prefix_seconds,
        tails_seconds=ran.tails_seconds,
        total_seconds=ran.total_seconds,
        ignored=ran.ignored,
    )


def usage_of(ran: Diagnostics) -> pb.Usage:
    """Every pass counted in full; nothing is generated."""
    return pb.Usage(input_tokens=ran.prompt_tokens, output_tokens=0)


def decision_of(request: DecisionRequest, outcomes: list[Answer | Skipped], completed: Completed) -> pb.DecideResponse:
    """A whole reply; answers and skips go in the request's order, whatever order they were read in."""
    place = {question.id: index for index, question in enumerate(request.questions)}
    ordered = sorted(outcomes, key=lambda outcome: place[outcome.id])
    return pb.DecideResponse(
        model=completed.model,
        answers=[answer_of(outcome) for outcome in ordered if not isinstance(outcome, Skipped)],
        skipped=[skipped_of(outcome) for outcome in ordered if isinstance(outcome, Skipped)],
        usage=usage_of(completed.diagnostics),
        diagnostics=diagnostics_of(completed.diagnostics),
    )


def event_of(event: Event) -> pb.DecideStreamResponse:
    """One event of the stream; a Failed never travels as one."""
    match event:
        case Accepted():
            accepted = pb.DecisionAccepted(passes=event.passes, prompt_tokens=event.prompt_tokens)
            return pb.DecideStreamResponse(accepted=accepted)
        case PrefixProgress():
            return pb.DecideStreamResponse(prefix=_progress(event))
        case Answered():
            return pb.DecideStreamResponse(answer=answer_of(event.answer))
        case WasSkipped():
            return pb.DecideStreamResponse(skipped=skipped_of(event.skipped))
        case Completed():
            return pb.DecideStreamResponse(completed=_completed(event))
        case Failed():
            raise AssertionError("a failure is raised, not sent as an event")


def _progress(event: PrefixProgress) -> pb.PrefixProgress:
    return pb.PrefixProgress(
        done_tokens=event.done_tokens, total_tokens=event.total_tokens, reused_tokens=event.reused_tokens
    )


def _completed(event: Completed) -> pb.DecisionCompleted:
    return pb.DecisionCompleted(
        model=event.model, usage=usage_of(event.diagnostics), diagnostics=diagnostics_of(event.diagnostics)
    )


def prewarmed_of(completed: Completed) -> pb.PrewarmResponse:
    """What a prewarm did."""
    prefix = completed.diagnostics.prefix
    return pb.PrewarmResponse(
        model=completed.model,
        prompt_tokens=prefix.tokens,
        reused_tokens=prefix.reused_tokens,
        stored=prefix.stored,
        tier=prefix.tier,
        diagnostics=diagnostics_of(completed.diagnostics),
    )


def info_of(
    model: ModelInfo, store: StoreInfo | None, engine: EngineConfig, server: ServerConfig, calibration: Calibration
) -> info_pb2.GetInfoResponse:
    """The server's description; a model that cannot answer decisions has no store."""
    return info_pb2.GetInfoResponse(
        model=_model(model),
        limits=_limits(model, engine, server),
        calibration=info_pb2.Calibration(
            temperature=calibration.temperature,
            noul_temperature=calibration.noul_temperature,
            noul_bias=calibration.noul_bias,
        ),
        prefix_store=_store(store) if store else None,
        build=_build(),
    )


def _store(store: StoreInfo) -> info_pb2.PrefixStore:
    return info_pb2.PrefixStore(
        tier=store.tier,
        records=store.records,
        bytes=store.bytes,
        budget_bytes=store.budget_bytes,
        hits=store.hits,
        partial_hits=store.partial_hits,
        misses=store.misses,
        stored=store.stored,
        refused=store.refused,
        evicted=store.evicted,
    )


def _model(model: ModelInfo) -> info_pb2.Model:
    return info_pb2.Model(
        name=model.model,
        architecture=model.architecture,
        path=model.path,
        prompt_style=model.prompt_style,
        prompt_format_version=model.prompt_format_version,
        device=model.device,
        dtype=model.dtype,
        blas=model.blas,
        blas_gflops=model.blas_gflops,
        parameters=model.parameters,
        weights_bytes=model.weights_bytes,
        problem=model.problem,
        adapters=model.adapters,
    )


def _limits(model: ModelInfo, engine: EngineConfig, server: ServerConfig) -> info_pb2.Limits:
    return info_pb2.Limits(
        max_questions=engine.max_questions,
        max_options=engine.max_options,
        max_samples=engine.max_samples,
        max_message_bytes=server.max_message_bytes,
        context_tokens=model.context_tokens,
        forward_tokens=model.forward_tokens,
        queue_jobs=engine.queue_jobs,
        queue_tokens=engine.queue_tokens,
        job_deadline_seconds=engine.job_deadline_seconds,
        chat_rows=engine.chat_rows if model.chats else 0,
        chat_queue=engine.chat_queue,
        chat_max_tokens=engine.chat_max_tokens,
    )


def _build() -> info_pb2.Build:
    return info_pb2.Build(
        version=version_of("letterwise"),
        python_version=platform.python_version(),
        mlx_version=version_of("mlx"),
        mlx_lm_version=version_of("mlx-lm"),
        platform=f"{platform.system()} {platform.machine()}",
    )


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
