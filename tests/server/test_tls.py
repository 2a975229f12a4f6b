"""TLS and mutual TLS on real ports: who gets in, and certificates that change, break and expire under way."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from letterwise import AsyncClient, Client, InvalidRequest, Tls, Unavailable
from letterwise import cli as client_cli
from letterwise_service import metrics
from letterwise_service.config import ServerConfig
from letterwise_service.config_file import ConfigError
from letterwise_service.server.transport import Certificates, certificates

from .authority import Authority
from .conftest import Running, launch, shut
from .real import free_port
from .scripted import ScriptedEngine


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours", "authority")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """An authority that nobody here trusts at first."""
    return Authority(tmp_path / "theirs", "stranger")


@pytest.fixture
def files(ours: Authority, tmp_path: Path) -> dict[str, str]:
    """The settings of a server with TLS; the files can be written over."""
    return deploy(tmp_path, *ours.sign("server"))


def deploy(folder: Path, certificate: Path, key: Path) -> dict[str, str]:
    """Puts a pair where the server has its own."""
    shutil.copy(certificate, folder / "tls.crt")
    shutil.copy(key, folder / "tls.key")
    return {"tls_certificate": str(folder / "tls.crt"), "tls_key": str(folder / "tls.key")}


def secure_channel(authority: Authority, *pair: Path) -> Any:
    shown = [path.read_bytes() for path in reversed(pair)] or [None, None]
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *shown)
    return lambda port: grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)


async def running(engine: ScriptedEngine, authority: Authority, *pair: Path, **settings: Any) -> AsyncIterator[Running]:
    server = await launch(engine, channel=secure_channel(authority, *pair), **settings)
    await asyncio.wait_for(server.ready.wait(), 30)
    yield server
    await shut(server)


@pytest.fixture
async def secured(engine: ScriptedEngine, ours: Authority, files: dict[str, str]) -> AsyncIterator[Running]:
    async for server in running(engine, ours, **files):
        yield server


@pytest.fixture
async def mutual(
    engine: ScriptedEngine, ours: Authority, files: dict[str, str], tmp_path: Path
) -> AsyncIterator[Running]:
    roots = shutil.copy(ours.file, tmp_path / "roots.pem")
    async for server in running(engine, ours, *ours.sign("prober"), tls_client_ca=str(roots), **files):
        yield server


async def answers(server: Running, authority: Authority, *pair: Path) -> bool:
    """Whether a new connection gets an answer; one that is refused must say that it was not reached."""
    tls = Tls(authority.file, *pair)
    async with AsyncClient(f"localhost:{server.app.port}", tls=tls, retry=None, timeout_seconds=5) as client:
        try:
            return (await client.info()).model.name == "scripted"
        except Unavailable:
            return False


async def test_tls_answers_whoever_trusts_its_authority(secured: Running, ours: Authority, theirs: Authority) -> None:
    """Both clients and the command; not one that trusts another authority, and not plain text."""
    assert await secured.status() == "SERVING"
    assert await answers(secured, ours)
    assert not await answers(secured, theirs)
    target = f"localhost:{secured.app.port}"

    def use() -> None:
        with Client(target, tls=Tls(ours.file)) as client:
            assert client.info()
        with Client(target, retry=None, timeout_seconds=5) as plain, pytest.raises(Unavailable):
            plain.info()
        assert client_cli.main(["info", "--server", target, "--tls-ca", str(ours.file)]) == 0

    await asyncio.to_thread(use)


async def test_failed_handshake_is_told_in_plain_words(mutual: Running, ours: Authority, theirs: Authority) -> None:
    """What is wrong, and on which side, as far as a client can know."""
    port, pair = mutual.app.port, ours.sign("caller")

    def told(host: str, tls: Tls | None) -> str:
        with Client(f"{host}:{port}", tls=tls, retry=None, timeout_seconds=5) as client:
            with pytest.raises(Unavailable) as caught:
                client.info()
            return str(caught.value)

    wants = "it closed the connection at once; does it want TLS, or a certificate?"
    for host, tls, reason in (
        ("localhost", Tls(theirs.file, *pair), "its certificate is not trusted here, or is not valid now"),
        ("localhost", None, wants),
        ("localhost", Tls(ours.file), wants),
        ("ipv4:127.0.0.1", Tls(ours.file, *theirs.sign("caller")), wants),
    ):
        assert (await asyncio.to_thread(told, host, tls)).endswith(f":{port}: {reason}")


async def test_mutual_tls_wants_a_certificate_of_its_authority(
    mutual: Running, ours: Authority, theirs: Authority
) -> None:
    """None, and one that somebody else signed, do not get in."""
    assert await answers(mutual, ours, *ours.sign("caller"))
    assert not await answers(mutual, ours)
    assert not await answers(mutual, ours, *theirs.sign("caller"))
    certificate, key = map(str, ours.sign("command"))
    told = ["--tls-ca", str(ours.file), "--tls-certificate", certificate, "--tls-key", key]
    target = f"localhost:{mutual.app.port}"
    assert await asyncio.to_thread(client_cli.main, ["info", "--server", target, *told]) == 0


async def test_new_certificate_is_shown_without_a_restart(
    secured: Running, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """New connections get it within a second; one that is open stays open."""
    assert await secured.status() == "SERVING"
    deploy(tmp_path, *theirs.sign("server"))
    await asyncio.sleep(1.05)
    assert await answers(secured, theirs)
    assert not await answers(secured, ours)
    assert await secured.status() == "SERVING"


async def test_new_authority_of_callers_counts_after_a_reload(
    mutual: Running, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """Whom the old one signed is out, whom the new one signed is in."""
    caller, stranger = ours.sign("caller"), theirs.sign("caller")
    shutil.copy(theirs.file, tmp_path / "roots.pem")
    mutual.app.reload()
    assert not await answers(mutual, ours, *caller)
    assert await answers(mutual, ours, *stranger)


@pytest.mark.parametrize("broken", ["other key", "empty", "gone"])
async def test_broken_new_pair_keeps_the_old_one(
    secured: Running, ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """A key of another certificate, half a file, no file: callers notice nothing, the log and a counter do."""
    kept = {"what": "certificates", "outcome": "kept"}
    before = metrics.REGISTRY.get_sample_value("letterwise_reloads_total", kept) or 0
    match broken:
        case "other key":
            shutil.copy(ours.sign("other")[1], tmp_path / "tls.key")
        case "empty":
            (tmp_path / "tls.crt").write_bytes(b"")
        case "gone":
            (tmp_path / "tls.crt").unlink()
    secured.app.reload()
    assert await answers(secured, ours)
    assert metrics.REGISTRY.get_sample_value("letterwise_reloads_total", kept) == before + 1
    assert any("old certificate stays" in record.getMessage() for record in caplog.records)


async def test_expired_certificate_is_refused_by_callers_and_mended_by_a_new_one(
    secured: Running, ours: Authority, tmp_path: Path
) -> None:
    """The server goes on, connections that are open too; a new pair brings new ones back."""
    deploy(tmp_path, *ours.sign("server", seconds=3))
    secured.app.reload()
    assert await secured.status() == "SERVING"
    assert await answers(secured, ours)
    await asyncio.sleep(3.1)
    assert not await answers(secured, ours)
    assert await secured.status() == "SERVING"
    deploy(tmp_path, *ours.sign("server"))
    secured.app.reload()
    assert await answers(secured, ours)


async def test_http_follows_the_files_too(
    engine: ScriptedEngine, ours: Authority, theirs: Authority, files: dict[str, str], tmp_path: Path
) -> None:
    """The pair and the authority of callers, both changed between two handshakes on one open port."""
    roots = tmp_path / "roots.pem"
    shutil.copy(ours.file, roots)
    caller, stranger = ours.sign("caller"), theirs.sign("caller")
    async for server in running(engine, ours, *caller, http_port=free_port(), tls_client_ca=str(roots), **files):
        port = server.app.http_port
        assert await alive(port, ours, *caller)
        assert not await alive(port, ours)
        assert not await alive(port, ours, *stranger)
        deploy(tmp_path, *theirs.sign("server"))
        shutil.copy(theirs.file, roots)
        server.app.reload()
        assert await alive(port, theirs, *stranger)
        assert not await alive(port, theirs, *caller)
        assert not await alive(port, ours, *stranger)


async def alive(port: int, authority: Authority, *pair: Path) -> bool:
    """Whether a new connection to the HTTP port gets its answer."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair:
        context.load_cert_chain(*pair)
    try:
        async with httpx.AsyncClient(verify=context) as client:
            return (await client.get(f"https://127.0.0.1:{port}/healthz")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"tls_certificate": "CERTIFICATE"}, "TLS needs both tls_certificate and tls_key"),
        ({"tls_client_ca": "CERTIFICATE"}, "TLS needs both tls_certificate and tls_key"),
        ({"tls_certificate": "KEY", "tls_key": "KEY"}, "are no pair of PEM files"),
        ({"tls_certificate": "CERTIFICATE", "tls_key": "LOCKED"}, "are no pair of PEM files without a password"),
        ({"tls_certificate": "CERTIFICATE", "tls_key": "KEY", "tls_client_ca": "KEY"}, "holds no PEM certificate"),
        ({"tls_certificate": "CERTIFICATE", "tls_key": "KEY", "tls_client_ca": "EMPTY"}, "holds no PEM certificate"),
        ({"tls_certificate": "NOWHERE", "tls_key": "KEY"}, "cannot read"),
    ],
)
def test_files_that_cannot_serve_are_one_sentence(
    ours: Authority, tmp_path: Path, settings: dict[str, str], told: str
) -> None:
    """A missing half, a wrong kind, a key that wants a password: said before anything is served, never asked for."""
    certificate, key = ours.sign("server")
    (tmp_path / "empty").touch()
    (tmp_path / "locked").write_bytes(locked(key))
    paths = {
        "CERTIFICATE": certificate,
        "KEY": key,
        "LOCKED": tmp_path / "locked",
        "EMPTY": tmp_path / "empty",
        "NOWHERE": tmp_path / "nowhere",
    }
    with pytest.raises(ConfigError, match=told):
        certificates(ServerConfig(**{name: str(paths[word]) for name, word in settings.items()}))


def locked(key: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    read = serialization.load_pem_private_key(key.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"secret")
    return read.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)


def test_plain_text_is_the_default(files: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """No setting, no TLS; with both files, not mutual until an authority is given."""
    assert certificates(ServerConfig()) is None
    held = certificates(ServerConfig(**files))
    assert isinstance(held, Certificates)
    assert not held.mutual
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        (Tls(ca="/nowhere"), "tls.ca"),
        (Tls(certificate="/nowhere"), "tls"),
        (Tls(certificate=__file__, key="/nowhere"), "tls.key"),
        (Tls(ca="/dev/null"), "tls.ca"),
    ],
)
def test_client_refuses_files_that_are_none(tls: Tls, field: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any channel is opened; the command tells it in its flags' names and exits 2."""
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidRequest) as caught:
            kind("localhost", tls=tls)
        assert [violation.field for violation in caught.value.violations] == [field]
    assert client_cli.main(["info", "--tls-ca", "/nowhere"]) == 2
    assert capsys.readouterr().err == "letterwise: --tls-ca: cannot read /nowhere: No such file or directory\n"
