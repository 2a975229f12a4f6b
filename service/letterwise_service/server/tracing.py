"""Traces of calls for OpenTelemetry: a span per call, and under it the times that the engine reports of the work.

Owns what is traced: names, numbers and ids, never a caller's text. Needs the extra `tracing`, which is imported only
when tracing is on. The spans of a decision are made when it has ended, from its diagnostics: the engine knows nothing
of them. Runs on the event loop; spans are sent from a thread of the exporter's own.
"""

from __future__ import annotations

import contextvars
import importlib.util
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..config_file import ConfigError
from ..engine.events import ChatFinished, Completed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_GRPC, _HTTP = "grpc", "http/protobuf"
_MISSING = "tracing needs OpenTelemetry: pip install 'letterwise[tracing]'"

# The span of the call that the current coroutine serves, with the tracer that made it.
_current: contextvars.ContextVar[tuple[Tracer, Span] | None] = contextvars.ContextVar("span", default=None)


class Tracing:
    """Makes spans with one provider, or none at all without one."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("letterwise") if provider else None

    @contextmanager
    def call(self, name: str, headers: Mapping[str, str], **attributes: str) -> Iterator[Call]:
        """A server span around a call; `headers` may name the caller's trace (W3C `traceparent`, `tracestate`)."""
        if self._tracer is None:
            yield Call(None)
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(headers)
        span = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=attributes)
        _current.set((self._tracer, span))
        try:
            yield Call(span)
        finally:
            span.end()

    def close(self) -> None:
        """Sends what is left and ends the exporter's thread. Not on an event loop."""
        if self._provider is not None:
            self._provider.shutdown()


class Call:
    """The span of one call."""

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def ended(self, code: str, *, failed: bool) -> None:
        """The call's end: the name of its code, and whether the server is at fault."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("letterwise.code", code)
            if failed:
                self._span.set_status(StatusCode.ERROR)


def told(event: object) -> None:
    """Puts the work of a decision, prewarm or chat that has just ended under the span of its call."""
    if (current := _current.get()) is None:
        return
    if isinstance(event, Completed):
        ran = event.diagnostics
        spans = {"queue": ran.queue_seconds, "prefix": ran.prefix_seconds, "tails": ran.tails_seconds}
        _lay(current, ran.total_seconds, spans, _numbers(event))
    elif isinstance(event, ChatFinished):
        spans = {"queue": event.queue_seconds, "generation": event.total_seconds - event.queue_seconds}
        _lay(current, event.total_seconds, spans, _numbers(event))


def _lay(
    current: tuple[Tracer, Span], total_seconds: float, spans: Mapping[str, float], numbers: Mapping[str, int]
) -> None:
    """One span after the other, from the work's acceptance on; a decision that took turns had its gaps elsewhere."""
    from opentelemetry.trace import set_span_in_context

    tracer, call = current
    call.set_attributes({f"letterwise.{name}": number for name, number in numbers.items()})
    begins = time.time_ns() - round(total_seconds * 1e9)
    for name, seconds in spans.items():
        ends = begins + round(seconds * 1e9)
        tracer.start_span(name, context=set_span_in_context(call), start_time=begins).end(ends)
        begins = ends


def _numbers(event: Completed | ChatFinished) -> dict[str, int]:
    if isinstance(event, ChatFinished):
        return {"prompt_tokens": event.prompt_tokens, "output_tokens": event.output_tokens}
    ran = event.diagnostics
    return {
        "prompt_tokens": ran.prompt_tokens,
        "computed_tokens": ran.computed_tokens,
        "reused_tokens": ran.prefix.reused_tokens,
        "passes": ran.passes,
        "forwards": ran.forwards,
    }


def tracing(setting: str, environment: Mapping[str, str]) -> Tracing:
    """What `--tracing` asks for: on, off, or auto. Raises ConfigError where it is on and cannot be."""
    if not check(setting, environment):
        return Tracing()
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = environment.get("OTEL_SERVICE_NAME") or "letterwise"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(_exporter(_protocol(environment))))
    return Tracing(provider)


def check(setting: str, environment: Mapping[str, str]) -> bool:
    """Whether tracing is to be on. Raises ConfigError where it cannot be."""
    wanted = any(environment.get(name) for name in _ENDPOINTS)
    if setting == "off" or (setting == "auto" and not (wanted and _installed())):
        return False
    if not _installed():
        raise ConfigError(_MISSING)
    if (protocol := _protocol(environment)) not in (_GRPC, _HTTP):
        raise ConfigError(f"{_PROTOCOLS[1]} {protocol!r}: expected {_GRPC} or {_HTTP}")
    return True


def _protocol(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in _PROTOCOLS if environment.get(name)), _GRPC)


def _installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk.trace") is not None
    except ModuleNotFoundError:
        return False


def _exporter(protocol: str) -> SpanExporter:
    """Sends spans by OTLP; where to is the exporter's own to read from the environment."""
    if protocol == _GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http()
