"""Callers that leave, die or come all at once: the engine stops what nobody waits for, and the server goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from letterwise import AsyncClient, Client, DeadlineExceeded, Decision

from . import material
from .processes import Server

pytestmark = pytest.mark.live
# Twenty questions on a state that is never kept: many seconds of work, unless it is stopped.
LONG = material.twenty(material.letters_of(60, year=2001))
SHORT = material.twenty("Customer 107 writes that the lamp came late.", 1)

CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from letterwise import Client
from tests.live import material, test_callers
with Client(sys.argv[1]) as client:
    for event in client.decide_stream(**material.call(test_callers.LONG)):
        print(event.kind, flush=True)
"""


@pytest.fixture
def quiet(client: Client, server: Server) -> Iterator[Decision]:
    """A small decision, and the check that the server still gives it afterwards."""
    before = client.decide(**material.call(SHORT))
    yield before
    assert client.decide(**material.call(SHORT)).answers == before.answers
    assert server.running


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not come about within {seconds} s"
        time.sleep(0.05)


def assert_idle(server: Server) -> None:
    """The process computes nothing: what was asked of it has been stopped, not only forgotten."""
    if not Path("/proc/self/stat").exists():
        return  # no such account here; the log has shown the end of the call

    def resting() -> bool:
        before = server.cpu_seconds()
        time.sleep(0.5)
        return server.cpu_seconds() - before < 0.1

    wait_until(resting, 5)


def test_cancelled_stream_stops_the_engine(quiet: Decision, client: Client, server: Server) -> None:
    """Closed after its first event, a stream of many seconds costs no more than the step that was running."""
    before = server.ended("DecideStream", "CANCELLED")
    with client.decide_stream(**material.call(LONG)) as events:
        assert next(events).kind == "accepted"
    wait_until(lambda: server.ended("DecideStream", "CANCELLED") == before + 1)
    assert_idle(server)


def test_deadline_of_a_caller_stops_the_engine(quiet: Decision, client: Client, server: Server) -> None:
    """The caller is told DEADLINE_EXCEEDED when its time is up, and the engine goes no further."""

    def ended() -> int:
        # the client's own end of the call may reach the server before the server's clock has come to it
        return server.ended("Decide", "DEADLINE_EXCEEDED") + server.ended("Decide", "CANCELLED")

    before = ended()
    with pytest.raises(DeadlineExceeded):
        client.decide(**material.call(LONG), timeout_seconds=1.5)
    wait_until(lambda: ended() == before + 1)
    assert_idle(server)


def test_killed_client_stops_the_engine(quiet: Decision, server: Server) -> None:
    """A client process that dies by SIGKILL in the middle says nothing; its connection's end is enough."""
    before = server.ended("DecideStream", "CANCELLED")
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.target, root], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "accepted\n"
        process.kill()
    wait_until(lambda: server.ended("DecideStream", "CANCELLED") == before + 1)
    assert_idle(server)


async def test_64_callers_at_once_all_get_the_same_numbers(server: Server) -> None:
    """Sixty-four connections ask the same at the same moment; each is answered, to the same bits."""
    clients = [AsyncClient(server.target, timeout_seconds=100) for _ in range(64)]
    try:
        decisions = await asyncio.gather(*(client.decide(**material.call(SHORT)) for client in clients))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    assert len(decisions) == 64
    assert all(decision.answers == decisions[0].answers for decision in decisions)
