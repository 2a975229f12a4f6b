"""A call's end and the server's: cancels and deadlines reach the job, health and drain follow the engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import decision_pb2_grpc
from letterwise_service import errors, metrics
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.server.app import CHAT_SERVICE, SERVICE, App
from letterwise_service.server.listening import PortUnavailable

from . import bodies
from .conftest import Running, launch, shut
from .scripted import Job, ScriptedEngine


async def submitted(engine: ScriptedEngine, count: int = 1) -> Job:
    async with asyncio.timeout(5):
        while len(engine.jobs) < count:
            await asyncio.sleep(0.005)
    return engine.jobs[count - 1]


async def stopped(job: Job) -> bool:
    return await asyncio.to_thread(job.stopping.wait, 5)


def streamed() -> pb.DecideStreamRequest:
    return pb.DecideStreamRequest(request=bodies.ticket())


async def test_cancel_of_a_unary_call_stops_the_job(server: Running) -> None:
    """A caller that cancels Decide stops its job before the next forward."""
    server.engine.hold()
    call = server.stub.Decide(bodies.ticket())
    job = await submitted(server.engine)
    call.cancel()
    assert await stopped(job)
    assert job.forwards == 0


async def test_cancel_of_a_stream_stops_the_job(server: Running) -> None:
    """A caller that cancels DecideStream after some events stops its job."""
    server.engine.hold()
    call = server.stub.DecideStream(streamed())
    assert (await call.read()).HasField("accepted")
    call.cancel()
    assert await stopped(server.engine.jobs[0])


async def test_deadline_of_the_caller_reaches_the_engine_and_stops_the_job(server: Running) -> None:
    """The remaining time goes to the engine with the job, and its end stops the job."""
    server.engine.hold()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.Decide(bodies.ticket(), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    job = server.engine.jobs[0]
    assert job.deadline_seconds is not None
    assert 0 < job.deadline_seconds <= 0.3
    assert await stopped(job)


async def test_call_without_a_deadline_gives_the_engine_none(server: Running) -> None:
    """No deadline is no deadline: the job's own counts alone."""
    await server.stub.Decide(bodies.ticket())
    assert server.engine.jobs[0].deadline_seconds is None


async def test_vanished_caller_stops_the_job(server: Running) -> None:
    """A connection that goes away in the middle of a stream stops its job."""
    server.engine.hold()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.app.port}")
    call = decision_pb2_grpc.DecisionServiceStub(channel).DecideStream(streamed())
    await call.read()
    await channel.close(grace=None)
    assert await stopped(server.engine.jobs[0])


async def test_completed_job_is_not_cancelled(server: Running) -> None:
    """A job that ended well is left alone."""
    await server.stub.Decide(bodies.ticket())
    assert not server.engine.jobs[0].stopping.is_set()


async def test_slow_reader_does_not_hold_the_engine(server: Running) -> None:
    """A stream that nobody reads lets the engine finish its job and answer others."""
    stream = server.stub.DecideStream(streamed())
    await submitted(server.engine)
    async with asyncio.timeout(5):
        while not server.engine.jobs[0].ended:
            await asyncio.sleep(0.005)
        assert (await server.stub.Decide(bodies.ticket())).answers
        assert [event async for event in stream][-1].HasField("completed")


async def test_loading_server_answers_health_and_refuses_decisions(loading: Running) -> None:
    """Before the model is warm, health is NOT_SERVING and every call UNAVAILABLE; after, both turn."""
    names = ("", SERVICE, CHAT_SERVICE)
    assert [await loading.status(name) for name in names] == ["NOT_SERVING"] * 3
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await loading.stub.Decide(bodies.ticket())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "loading" in (caught.value.details() or "")
    assert not loading.ready.is_set()
    loading.engine.loaded.set()
    await asyncio.wait_for(loading.ready.wait(), 30)
    assert [await loading.status(name) for name in names] == ["SERVING"] * 3
    assert (await loading.stub.Decide(bodies.ticket())).answers


async def test_stop_while_loading_ends_the_server(loading: Running) -> None:
    """A stop does not wait for a load."""
    loading.app.stop()
    assert await asyncio.wait_for(loading.ended, 30) == 0
    assert not loading.ready.is_set()


async def test_failed_load_ends_the_server(engine: ScriptedEngine) -> None:
    """A model that cannot be loaded is raised with its reason, and the port is given back."""
    engine.load_error = errors.LoadFailed("no such model")
    running = await launch(engine)
    with pytest.raises(errors.LoadFailed, match="no such model"):
        await asyncio.wait_for(running.ended, 30)
    await running.channel.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", running.app.port))


async def test_drain_answers_what_was_admitted_and_refuses_the_rest(server: Running) -> None:
    """From the drain's first moment health says so and new calls are UNAVAILABLE; the running one gets its answers."""
    watch = server.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    server.engine.hold()
    running = asyncio.ensure_future(server.stub.Decide(bodies.ticket()))
    await submitted(server.engine)
    server.app.stop()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    late = grpc.aio.insecure_channel(f"127.0.0.1:{server.app.port}")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await decision_pb2_grpc.DecisionServiceStub(late).Decide(bodies.ticket())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    server.engine.release()
    assert (await running).answers
    # The open watch does not hold the server for the whole grace of a minute.
    assert await asyncio.wait_for(server.ended, 30) == 0
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await watch.read()
    await late.close()


async def test_drain_waits_for_the_reader_of_a_stream(server: Running) -> None:
    """A stream whose job has ended is still read to its end."""
    server.engine.hold()
    stream = server.stub.DecideStream(streamed())
    events = aiter(stream)
    await anext(events)
    server.app.stop()
    await asyncio.sleep(0.05)
    server.engine.release()
    assert [event async for event in events][-1].HasField("completed")
    assert await asyncio.wait_for(server.ended, 30) == 0


async def test_drain_is_cut_when_the_time_is_up(engine: ScriptedEngine) -> None:
    """A decision that outlasts the drain ends as UNAVAILABLE with the reason, its job is stopped, the server ends."""
    running = await launch(engine, drain_seconds=0.3)
    await asyncio.wait_for(running.ready.wait(), 30)
    engine.hold()
    call = asyncio.ensure_future(running.stub.Decide(bodies.ticket()))
    job = await submitted(engine)
    running.app.stop()
    with pytest.raises(grpc.aio.AioRpcError, match="shutting down") as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await stopped(job)
    assert await asyncio.wait_for(running.ended, 30) == 0
    await shut(running)


async def test_second_stop_cuts_the_drain(server: Running) -> None:
    """Asked twice, the server does not wait for what runs."""
    server.engine.hold()
    call = asyncio.ensure_future(server.stub.Decide(bodies.ticket()))
    await submitted(server.engine)
    server.app.stop()
    server.app.stop()
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call
    assert await asyncio.wait_for(server.ended, 30) == 0


async def test_death_of_the_engine_ends_calls_and_server(server: Running) -> None:
    """Calls that wait on a dead engine get UNAVAILABLE, health turns, and the exit code is not 0."""
    server.engine.hold()
    call = asyncio.ensure_future(server.stub.Decide(bodies.ticket()))
    await submitted(server.engine)
    watch = server.health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    server.engine.die()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await asyncio.wait_for(server.ended, 30) == 1


async def test_port_in_use_is_one_sentence(server: Running) -> None:
    """A second server on the port fails at once and says why."""
    app = App(ScriptedEngine(), EngineConfig(), ServerConfig(port=server.app.port))
    with pytest.raises(PortUnavailable, match=rf"cannot listen on 127.0.0.1:{server.app.port}: "):
        await app.start()


async def test_metrics_count_rpcs_by_code(server: Running) -> None:
    """Started, handled, sent and the time are counted under the names that dashboards know."""

    def value(name: str, method: str, **labels: str) -> float:
        kind = "server_stream" if method == "DecideStream" else "unary"
        known = {"grpc_type": kind, "grpc_service": SERVICE, "grpc_method": method}
        return metrics.REGISTRY.get_sample_value(name, {**known, **labels}) or 0.0

    def counted() -> list[float]:
        return [
            value("grpc_server_started_total", "Decide"),
            value("grpc_server_handled_total", "Decide", grpc_code="OK"),
            value("grpc_server_handled_total", "Decide", grpc_code="INVALID_ARGUMENT"),
            value("grpc_server_handling_seconds_count", "Decide"),
            value("grpc_server_msg_sent_total", "Decide"),
            value("grpc_server_msg_sent_total", "DecideStream"),
        ]

    before = counted()
    await server.stub.Decide(bodies.ticket())
    with pytest.raises(grpc.aio.AioRpcError):
        await server.stub.Decide(pb.DecideRequest())
    events = [event async for event in server.stub.DecideStream(streamed())]
    await asyncio.sleep(0.05)
    gained = [after - earlier for after, earlier in zip(counted(), before, strict=True)]
    assert gained == [2, 1, 1, 2, 1, len(events)]
    assert value("letterwise_rpcs_in_flight", "Decide") == 0
