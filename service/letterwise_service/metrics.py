"""Every metric's name, label and bucket, and one function per event that is counted.

The RPC names are the well-known ones of the gRPC monitoring interceptors, so public dashboards fit. Safe on any
thread. Knows nothing of gRPC, of how the numbers are scraped, or of what happened: it only counts.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

_RPC = ("grpc_type", "grpc_service", "grpc_method")
# A kept prefix answers in tens of milliseconds, a long cold state on a processor in a minute.
_RPC_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

_started = Counter("grpc_server_started_total", "RPCs started.", _RPC, registry=REGISTRY)
_handled = Counter("grpc_server_handled_total", "RPCs ended, by code.", (*_RPC, "grpc_code"), registry=REGISTRY)
_received = Counter("grpc_server_msg_received_total", "Messages received.", _RPC, registry=REGISTRY)
_sent = Counter("grpc_server_msg_sent_total", "Messages sent.", _RPC, registry=REGISTRY)
_handling = Histogram(
    "grpc_server_handling_seconds",
    "Time from an RPC's start to its end.",
    _RPC,
    buckets=_RPC_BUCKETS,
    registry=REGISTRY,
)
_in_flight = Gauge("letterwise_rpcs_in_flight", "RPCs started and not ended.", _RPC, registry=REGISTRY)
_ready = Gauge("letterwise_ready", "1 while health says SERVING.", registry=REGISTRY)

_STORE = "letterwise_prefix_store_"
_store_events = {
    name: Counter(f"{_STORE}{name}_total", help, ("tier",), registry=REGISTRY)
    for name, help in {
        "hits": "Prefixes that were kept whole when a job wanted them.",
        "partial_hits": "Prefixes of which a start was kept.",
        "misses": "Prefixes of which nothing was kept.",
        "stored": "Records put into the store: blocks in the exact tier, states in the checkpoint tier.",
        "refused": "Prefixes that found no room, or not for all of them.",
        "evicted": "Records dropped to make room.",
    }.items()
}
_store_records = Gauge(f"{_STORE}records", "Records in the store.", ("tier",), registry=REGISTRY)
_store_bytes = Gauge(f"{_STORE}bytes", "Memory of the kept prefixes.", ("tier",), registry=REGISTRY)


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


def serving(ready: bool) -> None:
    """Health has become SERVING, or has ceased to be."""
    _ready.set(1 if ready else 0)


def prefix_store_changed(tier: str, *, records: int, held_bytes: int, **events: int) -> None:
    """The store of kept prefixes holds so much now. `events`: how many hits, misses … since the last call."""
    _store_records.labels(tier).set(records)
    _store_bytes.labels(tier).set(held_bytes)
    for name, count in events.items():
        _store_events[name].labels(tier).inc(count)
