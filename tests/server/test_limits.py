"""The transport's bounds on a real port: metadata, and calls at once on one connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from letterwise.v1 import info_pb2
from letterwise.v1.decision_pb2_grpc import DecisionServiceStub

from .conftest import Running


async def test_metadata_is_taken_up_to_its_bound(server: Running) -> None:
    """Room for a token and a trace; what is larger is refused before any handler, and the server goes on."""
    taken, refused = (("x-note", "n" * 12_000),), (("x-note", "n" * 17_000),)
    assert await server.stub.GetInfo(info_pb2.GetInfoRequest(), metadata=taken)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.GetInfo(info_pb2.GetInfoRequest(), metadata=refused)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await server.stub.GetInfo(info_pb2.GetInfoRequest())


async def test_calls_past_a_connections_bound_wait_for_an_end(server: Running) -> None:
    """1,024 run at once; one more is answered as soon as one of them ends."""
    watches = [server.health.Watch(health_pb2.HealthCheckRequest()) for _ in range(1024)]
    await asyncio.gather(*(watch.read() for watch in watches))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.GetInfo(info_pb2.GetInfoRequest(), timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    watches.pop().cancel()
    assert await server.stub.GetInfo(info_pb2.GetInfoRequest(), timeout=5)
    for watch in watches:
        watch.cancel()


async def test_calls_that_come_all_at_once_are_all_answered(server: Running) -> None:
    """Thousands by several connections, more than the event loop has taken up: none is cut off."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    f"127.0.0.1:{server.app.port}", options=[("grpc.use_local_subchannel_pool", 1)]
                )
            )
            for _ in range(3)
        ]
        stubs = [DecisionServiceStub(channel) for channel in channels]
        calls = [stub.GetInfo(info_pb2.GetInfoRequest()) for stub in stubs for _ in range(900)]
        await asyncio.gather(*calls)


async def test_calls_past_a_connections_bound_are_not_reset(server: Running) -> None:
    """Twice as many as run at once, on one connection that is open already: each has its answer."""
    assert await server.stub.GetInfo(info_pb2.GetInfoRequest())
    assert all(await asyncio.gather(*(server.stub.GetInfo(info_pb2.GetInfoRequest()) for _ in range(2_000))))
