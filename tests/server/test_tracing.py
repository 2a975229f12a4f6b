"""Spans as an exporter gets them: one per call under the caller's own trace, and under it what the engine reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from letterwise.v1 import chat_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise_service.config_file import ConfigError
from letterwise_service.server import tracing
from letterwise_service.server.tracing import Tracing

from . import bodies
from .conftest import Running, launch, shut
from .scripted import ScriptedEngine
from .web import TICKET, opened

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = ("traceparent", f"00-{TRACE}-{PARENT}-01")
SERVICE = "letterwise.v1.DecisionService"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def traced(engine: ScriptedEngine, exporter: InMemorySpanExporter) -> AsyncIterator[Running]:
    """A warm server whose spans stay in memory."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running = await launch(engine, tracing=Tracing(provider))
    await running.ready.wait()
    yield running
    await shut(running)


async def spans(exporter: InMemorySpanExporter, call: str) -> dict[str, ReadableSpan]:
    """All spans, once that of the call has ended; the reply may be here a moment before."""
    for _ in range(200):
        found = {span.name: span for span in exporter.get_finished_spans()}
        if call in found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"no span {call}")


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


@pytest.mark.parametrize("streamed", [False, True])
async def test_decision_has_its_times_under_the_callers_trace(
    traced: Running, exporter: InMemorySpanExporter, streamed: bool
) -> None:
    """Queue, prefix and tails one after the other, as long as the diagnostics say; the call under `traceparent`."""
    metadata = (TRACEPARENT, ("x-request-id", "r-1"))
    if streamed:
        asked = pb.DecideStreamRequest(request=bodies.ticket())
        events = [event async for event in traced.stub.DecideStream(asked, metadata=metadata)]
        diagnostics = events[-1].completed.diagnostics
    else:
        diagnostics = (await traced.stub.Decide(bodies.ticket(), metadata=metadata)).diagnostics
    name = f"{SERVICE}/{'DecideStream' if streamed else 'Decide'}"
    found = await spans(exporter, name)
    assert set(found) == {name, "queue", "prefix", "tails"}
    call = found[name]
    assert call.parent is not None
    assert (f"{call.parent.trace_id:032x}", f"{call.parent.span_id:016x}") == (TRACE, PARENT)
    assert call.kind is SpanKind.SERVER
    told = {
        "request_id": "r-1",
        "letterwise.code": "OK",
        "letterwise.prompt_tokens": diagnostics.prompt_tokens,
        "letterwise.computed_tokens": diagnostics.computed_tokens,
        "letterwise.reused_tokens": 0,
        "letterwise.passes": diagnostics.passes,
        "letterwise.forwards": diagnostics.forwards,
    }
    assert dict(call.attributes or {}) == told
    parts = [found["queue"], found["prefix"], found["tails"]]
    assert [part.parent and part.parent.span_id for part in parts] == [call.context.span_id] * 3
    lasted = [diagnostics.queue_seconds, diagnostics.prefix_seconds, diagnostics.tails_seconds]
    assert [seconds(part) for part in parts] == pytest.approx(lasted)
    assert [part.end_time for part in parts[:2]] == [part.start_time for part in parts[1:]]


async def test_http_request_is_traced_alike(engine: ScriptedEngine, exporter: InMemorySpanExporter) -> None:
    """The same spans below it, under the trace of the request's own `traceparent`."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with opened(engine, tracing=Tracing(provider)) as web:
        await web.post(TICKET, headers=dict([TRACEPARENT]))
        found = await spans(exporter, "POST /v1/systemone")
    call = found["POST /v1/systemone"]
    assert call.parent is not None
    assert f"{call.parent.trace_id:032x}" == TRACE
    assert (call.attributes or {})["letterwise.code"] == "200"
    assert {span.parent and span.parent.span_id for name, span in found.items() if " " not in name} == {
        call.context.span_id
    }
    assert {name for name in found if " " not in name} == {"queue", "prefix", "tails"}


async def test_chat_has_queue_and_generation(traced: Running, exporter: InMemorySpanExporter) -> None:
    """Of a trace of its own where the caller names none, or nothing that is one."""
    asked = chat_pb2.ChatRequest(messages=[chat_pb2.ChatMessage(role="user", content="one two")])
    async for _ in traced.chat.Chat(asked, metadata=(("traceparent", "nonsense"),)):
        pass
    found = await spans(exporter, "letterwise.v1.ChatService/Chat")
    assert found["letterwise.v1.ChatService/Chat"].parent is None
    assert [seconds(found[name]) for name in ("queue", "generation")] == pytest.approx([0.25, 1.5])


async def test_failed_calls_have_their_code(traced: Running, exporter: InMemorySpanExporter) -> None:
    """A caller's mistake is no error of ours, a failure is; neither has spans of work."""
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.stub.Decide(pb.DecideRequest())
    found = await spans(exporter, f"{SERVICE}/Decide")
    assert set(found) == {f"{SERVICE}/Decide"}
    assert (found[f"{SERVICE}/Decide"].attributes or {})["letterwise.code"] == "INVALID_ARGUMENT"
    assert found[f"{SERVICE}/Decide"].status.status_code is StatusCode.UNSET
    exporter.clear()
    traced.engine.scores = lambda text, letters: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(grpc.aio.AioRpcError):
        await traced.stub.Decide(bodies.ticket())
    failed = (await spans(exporter, f"{SERVICE}/Decide"))[f"{SERVICE}/Decide"]
    assert failed.status.status_code is StatusCode.ERROR
    assert not failed.events


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize(
    ("setting", "environment", "on"),
    [
        ("auto", {}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4317"}, True),
        ("off", ENDPOINT, False),
        ("on", {}, True),
    ],
)
def test_tracing_is_on_where_it_was_asked_for(setting: str, environment: dict[str, str], on: bool) -> None:
    """By the setting, or by the exporter's own variable."""
    assert tracing.check(setting, environment) is on


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_exporter_speaks_the_protocol_that_was_asked_for(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of OTLP's; a provider with it begins and ends without a collector."""
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_SERVICE_NAME": "ours"}
    made: Any = tracing.tracing("on", environment)
    assert made._provider.resource.attributes["service.name"] == "ours"
    exporter = made._provider._active_span_processor._span_processors[0].span_exporter
    assert f".proto.{protocol.partition('/')[0]}." in type(exporter).__module__
    made.close()


def test_tracing_that_cannot_be_on_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown protocol, or no OpenTelemetry: auto goes without, on says what to install."""
    with pytest.raises(ConfigError, match="expected grpc or http/protobuf"):
        tracing.check("on", {"OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"})
    monkeypatch.setattr(tracing, "_installed", lambda: False)
    assert tracing.check("auto", ENDPOINT) is False
    with pytest.raises(ConfigError, match=r"pip install 'letterwise\[tracing\]'"):
        tracing.tracing("on", {})
