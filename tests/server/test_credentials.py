"""Bearer tokens: who is let in, what the others learn, and what happens when the file changes."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from letterwise import Client, Noul, errors
from letterwise import cli as client_cli
from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import info_pb2
from letterwise_service import metrics
from letterwise_service.config import ServerConfig
from letterwise_service.config_file import ConfigError
from letterwise_service.errors import Unauthenticated
from letterwise_service.server import logs
from letterwise_service.server.credentials import Credentials

from . import bodies
from .conftest import Running, launch, shut
from .scripted import ScriptedEngine

WRONG = [
    None,
    "",
    "Bearer",
    "Bearer ",
    "Bearer wrong",
    "Bearer first-toke",
    "Bearer first-token2",
    "Bearer name:first-token",
    "Basic first-token",
    "first-token",
    "Bearer first-token second",
    "Bearer \udcff",
    "Bearer " + "x" * 10_000,
]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("# who may ask\n\nfirst-token\n  billing: second-token==  \n")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def credentials(file: Path, clock: Clock) -> Credentials:
    return Credentials(str(file), clock)


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    """A test leaves no caller's name behind."""
    token = logs.caller.set("")
    yield
    logs.caller.reset(token)


def refused(credentials: Credentials, header: str | None) -> str:
    with pytest.raises(Unauthenticated) as caught:
        credentials.check(header)
    return str(caught.value)


def test_token_of_the_file_is_taken_by_its_name(credentials: Credentials) -> None:
    """The scheme in any case; a token without a name has its place for one."""
    credentials.check("Bearer first-token")
    assert logs.caller.get() == "token-1"
    credentials.check("bearer  second-token==")
    assert logs.caller.get() == "billing"


def test_every_other_header_gets_one_and_the_same_refusal(credentials: Credentials) -> None:
    """Whatever is wrong with it; the refusal is counted and holds nothing of what was shown."""
    before = metrics.REGISTRY.get_sample_value("letterwise_unauthenticated_total") or 0
    assert len({refused(credentials, header) for header in WRONG}) == 1
    assert metrics.REGISTRY.get_sample_value("letterwise_unauthenticated_total") == before + len(WRONG)
    assert "first" not in refused(credentials, "Bearer first-toke")


def test_every_token_is_compared_whichever_was_shown(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first, the last, a wrong one and none at all are compared with all of them, by digests of one length."""
    import hmac

    compared: list[tuple[int, int]] = []
    genuine = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return genuine(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for header in ("Bearer first-token", "Bearer second-token==", "Bearer x", None):
        compared.clear()
        with contextlib.suppress(Unauthenticated):
            credentials.check(header)
        assert compared == [(32, 32), (32, 32)]


def test_without_a_file_anything_is_taken() -> None:
    """A key that nobody asked for does no harm."""
    for header in (*WRONG, "Bearer local"):
        Credentials(None).check(header)


def test_changed_file_is_read_within_a_second_and_looked_at_once_a_second(
    credentials: Credentials, file: Path, clock: Clock
) -> None:
    """New tokens come, old ones go; within the second nothing is looked at."""
    file.write_text("third-token\n")
    credentials.check("Bearer first-token")
    refused(credentials, "Bearer third-token")
    clock.now += 1.0
    credentials.check("Bearer third-token")
    refused(credentials, "Bearer first-token")


def test_file_behind_a_link_that_is_turned_is_read(tmp_path: Path, clock: Clock) -> None:
    """As Kubernetes turns its links: same path, same size, same time, another file."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"token-{name}")
        os.utime(tmp_path / name, ns=(5, 5))
    link = tmp_path / "tokens"
    link.symlink_to("one")
    credentials = Credentials(str(link), clock)
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)
    clock.now += 1.0
    credentials.check("Bearer token-two")
    refused(credentials, "Bearer token-one")


@pytest.mark.parametrize("content", ["", "# none\n", "SECRET token", "a name:SECRET", "good\nSECRET^", None])
def test_broken_new_file_keeps_the_old_tokens_and_says_so_once(
    credentials: Credentials, file: Path, clock: Clock, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    """Nobody is locked out by a slip; the error in the log has the reason and no token."""
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    for _ in range(3):
        clock.now += 1.0
        credentials.check("Bearer first-token")
    errors_logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors_logged) == 1
    assert "SECRET" not in str(vars(errors_logged[0]))
    with pytest.raises(ConfigError) as caught:
        Credentials(str(file))
    assert "SECRET" not in str(caught.value)


def test_reload_reads_the_file_at_once(credentials: Credentials, file: Path) -> None:
    """What SIGHUP asks for, before any second has passed."""
    file.write_text("third-token")
    credentials.reload()
    credentials.check("Bearer third-token")


@pytest.fixture
async def guarded(engine: ScriptedEngine, file: Path) -> AsyncIterator[Running]:
    """A warm server that wants a token."""
    running = await launch(engine, token_file=str(file))
    await running.ready.wait()
    yield running
    await shut(running)


def bearer(token: str) -> Any:
    return (("authorization", f"Bearer {token}"),)


async def test_every_rpc_wants_a_token(guarded: Running) -> None:
    """Unary and streamed, of both services, before anything reaches the engine; with one they answer."""
    calls: dict[str, Any] = {
        "Decide": lambda **more: guarded.stub.Decide(bodies.ticket(), **more),
        "Prewarm": lambda **more: guarded.stub.Prewarm(pb.PrewarmRequest(state=bodies.text("s")), **more),
        "GetInfo": lambda **more: guarded.stub.GetInfo(info_pb2.GetInfoRequest(), **more),
        "DecideStream": lambda **more: last(
            guarded.stub.DecideStream(pb.DecideStreamRequest(request=bodies.ticket()), **more)
        ),
    }
    for name, call in calls.items():
        for metadata in ((), bearer("wrong"), (*bearer("first-token"), *bearer("first-token"))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, name
            assert "x-request-id" in dict(caught.value.trailing_metadata() or ())
        assert not guarded.engine.jobs
        await call(metadata=bearer("first-token"))
        guarded.engine.jobs.clear()


async def last(call: Any) -> Any:
    return [event async for event in call][-1]


async def test_health_and_reflection_need_no_token(guarded: Running) -> None:
    """A balancer's probe has none, and the contract is public."""
    assert await guarded.status() == "SERVING"
    stub = reflection_pb2_grpc.ServerReflectionStub(guarded.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    async for reply in stub.ServerReflectionInfo(iter([asked])):
        assert reply.list_services_response.service


async def test_bad_message_without_a_token_is_refused_for_the_token(guarded: Running) -> None:
    """The message of somebody unknown is not even parsed."""
    call = guarded.channel.unary_unary("/letterwise.v1.DecisionService/Decide")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_clients_and_commands_show_a_token(
    guarded: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`token=` of both clients, LETTERWISE_TOKEN of the command; without it, Unauthenticated."""
    import asyncio

    from letterwise import AsyncClient

    target = f"127.0.0.1:{guarded.app.port}"

    def use() -> None:
        with Client(target, token="first-token") as client:
            assert client.decide("s", {"a": Noul("?")})["a"]
            assert client.info()
            assert client.chat("hi there").finish()
        with Client(target) as stranger, pytest.raises(errors.Unauthenticated):
            stranger.info()
        monkeypatch.setenv("LETTERWISE_TOKEN", "second-token==")
        assert client_cli.main(["info", "--server", target]) == 0
        monkeypatch.setenv("LETTERWISE_TOKEN", "wrong")
        assert client_cli.main(["info", "--server", target]) == 1
        monkeypatch.setenv("LETTERWISE_TOKEN", "SECRET token")
        assert client_cli.main(["info", "--server", target]) == 2

    await asyncio.to_thread(use)
    assert "SECRET" not in capsys.readouterr().err
    async with AsyncClient(target, token="first-token") as client:
        assert (await client.decide("s", {"a": Noul("?")}))["a"]
        assert [event async for event in client.decide_stream("s", {"a": Noul("?")})]
        assert await client.chat("hi").finish()


@pytest.mark.parametrize(
    ("host", "tokens", "warned"), [("127.0.0.1", False, 0), ("0.0.0.0", False, 1), ("0.0.0.0", True, 0)]
)
async def test_open_door_on_another_address_is_warned_of(
    engine: ScriptedEngine, file: Path, caplog: pytest.LogCaptureFixture, host: str, tokens: bool, warned: int
) -> None:
    """Loopback without tokens is fine, everywhere with tokens too."""
    running = await launch(engine, host=host, token_file=str(file) if tokens else None)
    await shut(running)
    assert sum("anyone who reaches" in record.getMessage() for record in caplog.records) == warned


def test_default_has_no_tokens() -> None:
    """The setting is a file, and there is none."""
    assert ServerConfig().token_file is None
