"""Every metric's name, label and bucket, and one function per event that is counted.

The RPC names are the well-known ones of the gRPC monitoring interceptors, so public dashboards fit. Safe on any
thread. Label values are words of this module, or facts of the served model; never a caller's text. Knows nothing of
gRPC, of how the numbers are scraped, or of what happened: it only counts. `docs/metrics.md` says what each means.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from . import errors

REGISTRY = CollectorRegistry()
# These would be gauges beside every counter and histogram, which say only when it was made. (The call has no types.)
disable_created_metrics()  # type: ignore[no-untyped-call]
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

# What is refused and what ends.
DECISION, PREWARM, CHAT = "decision", "prewarm", "chat"
# Kinds of forward, those of chat beside them.
PREFIX, TAILS, COPY = "prefix", "tails", "copy"
# How much of a decision's prefix was kept; unknown when it ended before that was looked up.
COLD, PARTIAL, KEPT, UNKNOWN = "cold", "partial", "kept", "unknown"
OK = "ok"
# The word for each error; what is not here has its base's.
REASONS: dict[type[errors.LetterwiseError], str] = {
    errors.InvalidRequest: "invalid",
    errors.MalformedBody: "invalid",
    errors.TooLong: "too_long",
    errors.ModelUnsuitable: "unsuitable",
    errors.Unsupported: "unsupported",
    errors.QueueFull: "queue_full",
    errors.OutOfMemory: "out_of_memory",
    errors.Draining: "draining",
    errors.EngineDown: "engine_down",
    errors.DeadlineExceeded: "deadline",
    errors.Cancelled: "cancelled",
    errors.Unauthenticated: "unauthenticated",
    errors.LoadFailed: "engine_down",
    errors.ReadFailed: "read_failed",
    errors.LetterwiseError: "failed",
}

_RPC = ("grpc_type", "grpc_service", "grpc_method")
# A kept prefix answers in tens of milliseconds, a long cold state on a processor in a minute.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# A forward is at most 128 tokens: about a millisecond on a large GPU, a second on a busy processor.
_FORWARD_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
# Fine near 0, where the model wanted to say something else, and near 1, where it should be.
_MASSES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


def _counter(name: str, help: str, *labels: str) -> Counter:
    return Counter(name, help, labels, registry=REGISTRY)


def _gauge(name: str, help: str, *labels: str) -> Gauge:
    return Gauge(name, help, labels, registry=REGISTRY)


def _histogram(name: str, help: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
    return Histogram(name, help, labels, buckets=buckets, registry=REGISTRY)


_started = _counter("grpc_server_started_total", "RPCs started.", *_RPC)
_handled = _counter("grpc_server_handled_total", "RPCs ended, by code.", *_RPC, "grpc_code")
_received = _counter("grpc_server_msg_received_total", "Messages received.", *_RPC)
_sent = _counter("grpc_server_msg_sent_total", "Messages sent.", *_RPC)
_handling = _histogram("grpc_server_handling_seconds", "Time from an RPC's start to its end.", *_RPC)
_in_flight = _gauge("letterwise_rpcs_in_flight", "RPCs started and not ended.", *_RPC)
_http = _counter("letterwise_http_requests_total", "HTTP requests ended, by status.", "route", "method", "status")
_http_seconds = _histogram(
    "letterwise_http_request_seconds", "Time from an HTTP request's head to the end of its reply.", "route", "method"
)
_ready = _gauge("letterwise_ready", "1 while health says SERVING.")

_forward = _histogram(
    "letterwise_forward_seconds",
    "Wall time of the step that a forward ran in; each of two that run side by side counts the whole of it.",
    "kind",
    buckets=_FORWARD_SECONDS,
)
_tokens = _counter("letterwise_tokens_total", "Tokens of decisions and prewarms.", "what")
_queue_wait = _histogram("letterwise_queue_wait_seconds", "Time from acceptance to leaving the queue.", "service_class")
_decision = _histogram(
    "letterwise_decision_seconds", "Time from a decision's acceptance to its end.", "tier", "prefix", "outcome"
)
_mass = _histogram("letterwise_letter_mass", "Letter mass of answers.", buckets=_MASSES)
_jobs = _gauge("letterwise_jobs", "Decisions and prewarms in the engine.", "state")
_chat_rows = _gauge("letterwise_chat_rows", "Chats in the engine.", "state")
_chat_tokens = _counter("letterwise_chat_tokens_total", "Tokens of chats.", "direction")
_ended = _counter("letterwise_ended_total", "Accepted work that ended, well or not.", "what", "reason")
_refused = _counter("letterwise_refused_total", "Work that was not accepted.", "what", "reason")
_unauthenticated = _counter("letterwise_unauthenticated_total", "Calls without a known bearer token, of both doors.")
_reloads = _counter(
    "letterwise_reloads_total", "Files that were read again, and whether the old were kept.", "what", "outcome"
)
_gflops = _gauge("letterwise_blas_gflops", "float32 products at start-up, 1e9 operations a second; 0 on a GPU.")
_model = Info("letterwise_model", "The served model and what computes it.", registry=REGISTRY)

_STORE = "letterwise_prefix_store_"
_store_events = {
    name: _counter(f"{_STORE}{name}_total", help, "tier")
    for name, help in {
        "hits": "Prefixes that were kept whole when a job wanted them.",
        "partial_hits": "Prefixes of which a start was kept.",
        "misses": "Prefixes of which nothing was kept.",
        "stored": "Records put into the store: blocks in the exact tier, states in the checkpoint tier.",
        "refused": "Prefixes that found no room, or not for all of them.",
        "evicted": "Records dropped to make room.",
    }.items()
}
_store_records = _gauge(f"{_STORE}records", "Records in the store.", "tier")
_store_bytes = _gauge(f"{_STORE}bytes", "Memory of the kept prefixes.", "tier")

# Series that are known beforehand are there from the start: one that appears with its first event has no rate.
for _metric, _words in (
    (_forward, (PREFIX, TAILS, COPY, CHAT)),
    (_tokens, ("computed", "padded", "reused")),
    (_queue_wait, ("interactive", "batch")),
    (_jobs, ("waiting", "running")),
    (_chat_rows, ("waiting", "generating")),
    (_chat_tokens, ("input", "reused", "output")),
):
    for _word in _words:
        _metric.labels(_word)


def rpc_started(kind: str, service: str, method: str) -> None:
    """An RPC has started; each has one request. `kind`: unary or server_stream."""
    _started.labels(kind, service, method).inc()
    _received.labels(kind, service, method).inc()
    _in_flight.labels(kind, service, method).inc()


def rpc_message_sent(kind: str, service: str, method: str) -> None:
    """A reply or a stream event has been handed to the transport."""
    _sent.labels(kind, service, method).inc()


def rpc_handled(kind: str, service: str, method: str, code: str, seconds: float) -> None:
    """An RPC has ended with `code` (`OK`, `INVALID_ARGUMENT` …) after `seconds`."""
    _handled.labels(kind, service, method, code).inc()
    _handling.labels(kind, service, method).observe(seconds)
    _in_flight.labels(kind, service, method).dec()


def http_handled(route: str, method: str, status: int, seconds: float) -> None:
    """An HTTP request has ended with `status` after `seconds`; a route or method that we lack comes as one word."""
    _http.labels(route, method, str(status)).inc()
    _http_seconds.labels(route, method).observe(seconds)


def serving(ready: bool) -> None:
    """Health has become SERVING, or has ceased to be."""
    _ready.set(1 if ready else 0)


def model_loaded(*, model: str, device: str, blas: str, gflops: float, version: str) -> None:
    """What is served from now on, and what computes it."""
    _model.info({"model": model, "device": device, "blas": blas, "version": version})
    _gflops.set(gflops)


def forward_ran(kind: str, seconds: float, *, computed_tokens: int = 0, padded_tokens: int = 0) -> None:
    """A forward has run in a step of `seconds`. `kind`: PREFIX, TAILS, COPY or CHAT; chat's tokens are its own."""
    _forward.labels(kind).observe(seconds)
    _tokens.labels("computed").inc(computed_tokens)
    _tokens.labels("padded").inc(padded_tokens)


def tokens_reused(tokens: int) -> None:
    """A job has found so much of its prefix kept."""
    _tokens.labels("reused").inc(tokens)


def left_queue(service_class: str, seconds: float) -> None:
    """A job has left the queue, to run or to end, after waiting so long."""
    _queue_wait.labels(service_class).observe(seconds)


def answered(letter_mass: float) -> None:
    """A question has been answered."""
    _mass.observe(letter_mass)


def decision_ended(tier: str, prefix: str, error: errors.LetterwiseError | None, seconds: float) -> None:
    """A decision has ended. `prefix`: COLD, PARTIAL, KEPT or UNKNOWN."""
    _decision.labels(tier, prefix, _reason(error)).observe(seconds)


def ended(what: str, error: errors.LetterwiseError | None) -> None:
    """Accepted work has ended: well, or with an error. `what`: DECISION, PREWARM or CHAT."""
    _ended.labels(what, _reason(error)).inc()


def refused(what: str, error: errors.LetterwiseError) -> None:
    """Work was not accepted."""
    _refused.labels(what, _reason(error)).inc()


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Counts an error of the domain that leaves the block as a refusal of `what`."""
    try:
        yield
    except errors.LetterwiseError as error:
        refused(what, error)
        raise


def unauthenticated() -> None:
    """A call came without a known token."""
    _unauthenticated.inc()


def reloaded(what: str, *, kept: bool) -> None:
    """`what` (tokens, certificates, calibration) was to be read again; `kept`: it could not, and the old stays."""
    _reloads.labels(what, "kept" if kept else "loaded").inc()


def jobs_changed(*, waiting: int, running: int) -> None:
    """So many decisions and prewarms wait and run now."""
    _jobs.labels("waiting").set(waiting)
    _jobs.labels("running").set(running)


def chats_changed(*, waiting: int, generating: int) -> None:
    """So many chats wait and generate now."""
    _chat_rows.labels("waiting").set(waiting)
    _chat_rows.labels("generating").set(generating)


def chat_tokens(*, input: int = 0, reused: int = 0, output: int = 0) -> None:
    """A chat's prompt was taken, `reused` of it kept from before; or so many tokens were generated."""
    for direction, count in (("input", input), ("reused", reused), ("output", output)):
        if count:
            _chat_tokens.labels(direction).inc(count)


def prefix_store_changed(tier: str, *, records: int, held_bytes: int, **events: int) -> None:
    """The store of kept prefixes holds so much now. `events`: how many hits, misses … since the last call."""
    _store_records.labels(tier).set(records)
    _store_bytes.labels(tier).set(held_bytes)
    for name, count in events.items():
        _store_events[name].labels(tier).inc(count)


def _reason(error: errors.LetterwiseError | None) -> str:
    return OK if error is None else next(REASONS[base] for base in type(error).__mro__ if base in REASONS)
