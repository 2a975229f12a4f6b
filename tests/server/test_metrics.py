"""What Prometheus sees: every documented name on a live server, with the counts of what was really done."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from prometheus_client.metrics import MetricWrapperBase

from letterwise.v1 import chat_pb2, serving_pb2
from letterwise.v1 import decision_pb2 as pb
from letterwise_service import errors, metrics
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.server.app import App
from letterwise_service.server.listening import PortUnavailable
from tests.engine.conftest import Heard
from tests.engine.engines import Gate, submit
from tests.tiny import tiny_folder

from . import bodies
from .conftest import Running
from .real import Real, Scraped, fetch, free_port, serving
from .scripted import ScriptedEngine

TABLE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
# name → type, labels
DOCUMENTED = {
    name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", TABLE, re.MULTILINE)
}
REASONS = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", TABLE.partition("## Reasons")[2], re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


def exposed(family: Any) -> str:
    """The name under which the text format shows a family."""
    return str(family.name) + {"counter": "_total", "info": "_info"}.get(family.type, "")


def test_documented_metrics_are_those_of_the_registry() -> None:
    """Each name once, with its type and labels; none that is not there, none that is not documented."""
    kinds = {exposed(one): "gauge" if one.type == "info" else one.type for one in metrics.REGISTRY.collect()}
    assert {name: kind for name, (kind, _) in DOCUMENTED.items()} == kinds
    for collector in set(metrics.REGISTRY._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and collector._type != "info":
            (family,) = collector.describe()
            assert frozenset(collector._labelnames) == DOCUMENTED[exposed(family)][1], family.name


def test_every_error_has_a_documented_word() -> None:
    """No refusal or end is counted without a word, and the table has each."""
    assert set(metrics.REASONS) <= {errors.LetterwiseError, *errors.LetterwiseError.__subclasses__()}
    assert sorted(REASONS) == sorted({metrics.OK, *metrics.REASONS.values()})
    for error in errors.LetterwiseError.__subclasses__():
        assert error in metrics.REASONS, f"{error.__name__} is counted as its base"


async def test_scrape_has_every_name_with_its_labels_and_the_right_counts(folder: Path) -> None:
    """Decisions cold and kept, of both classes, a prewarm, a chat, a cancel, refusals: all as their replies say."""
    async with serving(folder) as real:
        before = await real.scrape()
        cold = await real.stub.Decide(bodies.ticket())
        kept = await real.stub.Decide(in_batch(bodies.ticket()))
        warmed = await real.stub.Prewarm(pb.PrewarmRequest(state=bodies.text("another state " * 20)))
        finished = [event async for event in real.chat.Chat(chat("Where is it?"))][-1].finished
        with pytest.raises(grpc.aio.AioRpcError):
            await real.stub.Decide(pb.DecideRequest(state=bodies.text("x" * 5000), questions=[bodies.noul()]))
        gate = await asyncio.to_thread(cancel_one, real)
        by_http = await asyncio.to_thread(fetch, real.http_port)
        after = await real.scrape()

    def gained(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    told = [cold.diagnostics, kept.diagnostics, warmed.diagnostics, gate.completed().diagnostics]
    masses = [each.letter_mass for each in (*cold.answers, *kept.answers, *gate.outcomes().values())]
    kinds = ("prefix", "tails", "copy")
    assert gained("letterwise_tokens_total", what="computed") == sum(each.computed_tokens for each in told)
    assert gained("letterwise_tokens_total", what="padded") == sum(each.padded_tokens for each in told)
    assert gained("letterwise_tokens_total", what="reused") == kept.diagnostics.prefix.reused_tokens > 0
    forwards = sum(gained("letterwise_forward_seconds_count", kind=kind) for kind in kinds)
    assert forwards == sum(each.forwards for each in told)
    assert gained("letterwise_forward_seconds_count", kind="chat") >= finished.usage.output_tokens > 0
    assert gained("letterwise_letter_mass_count") == len(masses)
    assert gained("letterwise_letter_mass_sum") == pytest.approx(sum(masses))
    assert gained("letterwise_queue_wait_seconds_count", service_class="interactive") == 4
    assert gained("letterwise_queue_wait_seconds_count", service_class="batch") == 1
    ends = {("cold", "ok"): 2, ("kept", "ok"): 1, ("unknown", "cancelled"): 1}
    for (prefix, outcome), count in ends.items():
        labels = {"tier": "exact", "prefix": prefix, "outcome": outcome}
        assert gained("letterwise_decision_seconds_count", **labels) == count, labels
    assert gained("letterwise_decision_seconds_count") == 4
    seconds = kept.diagnostics.total_seconds
    assert gained("letterwise_decision_seconds_sum", prefix="kept") == pytest.approx(seconds, abs=0.05)
    ended = [("decision", "ok", 3), ("decision", "cancelled", 1), ("prewarm", "ok", 1), ("chat", "ok", 1)]
    for what, reason, count in ended:
        assert gained("letterwise_ended_total", what=what, reason=reason) == count, (what, reason)
    for reason in ("too_long", "deadline"):
        assert gained("letterwise_refused_total", what="decision", reason=reason) == 1
    assert gained("letterwise_chat_tokens_total", direction="input") == finished.usage.input_tokens
    assert gained("letterwise_chat_tokens_total", direction="output") == finished.usage.output_tokens
    assert gained("letterwise_prefix_store_hits_total", tier="exact") == 1
    assert gained("grpc_server_handled_total", grpc_method="Decide", grpc_code="OK") == 2
    assert gained("letterwise_http_requests_total", route="/metrics", method="GET", status="200") == 1
    assert set(Scraped(by_http).families) == set(after.families)
    check_names(after)
    check_facts(real, after)


def in_batch(request: pb.DecideRequest) -> pb.DecideRequest:
    request.service_class = serving_pb2.SERVICE_CLASS_BATCH
    return request


def chat(text: str) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(messages=[chat_pb2.ChatMessage(role="user", content=text)], max_tokens=5)


def cancel_one(real: Real) -> Heard:
    """Behind a decision that is held, cancels one that waits, and has one refused whose time is up; the one held."""
    gate = Gate(real.engine)
    job, heard = submit(real.engine)
    with pytest.raises(errors.DeadlineExceeded):
        real.engine.submit(job.permit, Heard(), deadline_seconds=0.0)
    held = Scraped(real.fetch())
    assert [held.value("letterwise_jobs", state=state) for state in ("waiting", "running")] == [1, 1]
    job.cancel()
    gate.open()
    assert isinstance(heard.error(), errors.Cancelled)
    assert real.engine.wait_idle(10)
    return gate.heard


def check_names(scraped: Scraped) -> None:
    """Every documented name is there, with its type and, where it has samples, its labels."""
    for name, (kind, labels) in DOCUMENTED.items():
        if name.startswith("process_") and not sys.platform.startswith("linux"):
            continue
        family = scraped.families[name.removesuffix("_total")]
        assert family.type == kind, name
        assert all(set(sample.labels) - {"le"} == labels for sample in family.samples), name
        assert family.samples or name.endswith("_total"), f"nothing was ever counted as {name}"


def check_facts(real: Real, scraped: Scraped) -> None:
    """What is served, and that nothing runs any more."""
    info = real.engine.info
    assert scraped.value("letterwise_model_info", model="tiny", device="cpu", blas=info.blas) == 1
    assert scraped.value("letterwise_blas_gflops") == pytest.approx(info.blas_gflops)
    assert scraped.value("letterwise_ready") == 1
    assert [scraped.value("letterwise_jobs", state=state) for state in ("waiting", "running")] == [0, 0]
    assert [scraped.value("letterwise_chat_rows", state=state) for state in ("waiting", "generating")] == [0, 0]


def made(port: int) -> App:
    return App(ScriptedEngine(), EngineConfig(), ServerConfig(port=0, http_port=0, metrics_port=port))


async def test_metrics_port_in_use_is_one_sentence() -> None:
    """The server does not start, and says why."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"^cannot listen on 127.0.0.1:{port} for metrics: [^\n]+$"):
            await made(port).start()


async def test_metrics_port_closes_with_the_server() -> None:
    """Scraped while the model loads; after the end there is neither socket nor thread, and the port is free."""
    port, threads = free_port(), set(threading.enumerate())
    app = made(port)
    await app.start()
    ended = asyncio.create_task(app.run(lambda model: None))
    scraped = Scraped(await asyncio.to_thread(fetch, port))
    assert "letterwise_ready" in scraped.families
    app.stop()
    assert await asyncio.wait_for(ended, 30) == 0
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
    left = set(threading.enumerate()) - threads
    assert not any("serve_forever" in one.name for one in left)


async def test_no_port_is_opened_unless_asked_for(server: Running) -> None:
    """Metrics are off by default."""
    assert ServerConfig().metrics_port == 0
    assert server.app._scrape._running is None
