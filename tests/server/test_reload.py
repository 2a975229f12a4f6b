"""SIGHUP on a server in a process: tokens, certificates and calibration change, decisions under way do not."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from letterwise import Client, Noul, Tls, Unauthenticated, Unavailable
from letterwise.v1 import decision_pb2 as pb
from letterwise.v1 import info_pb2
from letterwise_service import cli
from letterwise_service.calibration_file import Calibrated
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.config_file import ConfigError
from letterwise_service.engine import thread
from letterwise_service.method.calibration import NOUL_TEMPERATURE, PUBLISHED, Calibration, calibrated_yes
from letterwise_service.method.decision import Decision
from letterwise_service.method.passes import Reading
from letterwise_service.method.request import Choice, DecisionRequest, Option
from letterwise_service.method.request import Noul as DomainNoul
from letterwise_service.server import app
from letterwise_service.server.tracing import Tracing

from . import bodies
from .authority import Authority
from .conftest import launch, shut
from .scripted import ScriptedEngine

# `serve` as the command runs it, in front of the scripted engine; the real one's module would load MLX.
PROGRAM = """
import sys, types
from letterwise_service import cli
from tests.server.scripted import ScriptedEngine
sys.modules["letterwise_service.engine.thread"] = types.SimpleNamespace(Engine=ScriptedEngine)
sys.exit(cli.main(["serve", "--port", "0", "--http-port", "0", "--log-format", "json", *sys.argv[1:]]))
"""


class Served:
    """A server in a process, warm once made."""

    def __init__(self, log: IO[str], *settings: str) -> None:
        command = [sys.executable, "-c", PROGRAM, *settings]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        self.target = self.process.stdout.readline().split()[-1]
        self.log = Path(log.name)

    def hang_up(self) -> None:
        """SIGHUP, and its line in the log."""
        lines = self.lines("reading tokens")
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.lines("reading tokens") > lines)

    def lines(self, message: str) -> int:
        """How many log lines have this message, every line being JSON."""
        logged = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sum(message in line["msg"] for line in logged)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    authority = Authority(tmp_path / "ours", "authority")
    certificate, key = authority.sign("server")
    (tmp_path / "tokens").write_text("old-token")
    (tmp_path / "calibration.toml").write_text("noul_bias = 0.5\n")
    settings = {
        "--token-file": tmp_path / "tokens",
        "--tls-certificate": certificate,
        "--tls-key": key,
        "--calibration-file": tmp_path / "calibration.toml",
    }
    with (tmp_path / "log").open("w+") as log:
        server = Served(log, *(str(part) for pair in settings.items() for part in pair))
        yield server
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert server.process.stdout is not None
        server.process.stdout.close()


def asked(served: Served, authority: Path, token: str) -> tuple[float, float]:
    """The bias that the server tells of, and the one that its answer was calibrated with."""
    target = served.target.replace("127.0.0.1", "localhost")
    with Client(target, tls=Tls(authority), token=token, retry=None, timeout_seconds=10) as client:
        angry = client.decide("s", {"angry": Noul("?")})["angry"].probability
        told = client.info().calibration
    plain = Calibration(told.temperature, told.noul_temperature, 0.0)
    request = DecisionRequest("s", (DomainNoul("angry", "?"),), calibration=plain)
    decision = Decision(request, style="plain")
    (one,) = decision.ready()
    (answer,) = decision.take(one, ScriptedEngine()._read(one))
    return told.noul_bias, math.log(angry / (1 - angry)) - math.log(answer.probability / (1 - answer.probability))


def test_hang_up_reads_all_three_again(served: Served, tmp_path: Path) -> None:
    """Broken files change nothing, and the log says which and why; good ones count from the next call on."""
    ours, theirs = tmp_path / "ours", Authority(tmp_path / "theirs", "stranger")
    assert asked(served, ours / "authority.pem", "old-token") == pytest.approx((0.5, 0.5))
    (ours / "server.key").write_text("no key")
    (tmp_path / "tokens").write_text("# nobody")
    (tmp_path / "calibration.toml").write_text("temperature = 'warm'\n")
    served.hang_up()
    for kept in ("old tokens stay", "old certificate stays", "old calibration stays"):
        until(lambda kept=kept: served.lines(kept) >= 1)  # type: ignore[misc]
    assert asked(served, ours / "authority.pem", "old-token") == pytest.approx((0.5, 0.5))
    for new, old in zip(theirs.sign("server"), ("server.pem", "server.key"), strict=True):
        (ours / old).write_bytes(new.read_bytes())
    (tmp_path / "tokens").write_text("new-token")
    (tmp_path / "calibration.toml").write_text("noul_bias = -0.25\n")
    served.hang_up()
    assert asked(served, theirs.file, "new-token") == pytest.approx((-0.25, -0.25))
    with pytest.raises(Unauthenticated):
        asked(served, theirs.file, "old-token")
    with pytest.raises(Unavailable):
        asked(served, ours / "authority.pem", "new-token")
    assert served.lines("rpc") >= 5  # and no handshake that failed has left a line of another form


async def test_hang_up_of_a_closed_terminal_is_a_stop(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in a terminal reloads while the terminal is there, and ends with it."""
    keyboard, screen = os.openpty()
    with os.fdopen(screen, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        settings = ServerConfig(port=0, http_port=0)
        ended = asyncio.create_task(app._serve(engine, engine.config, settings, Tracing()))
        while signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        assert not ended.done()
        os.close(keyboard)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await asyncio.wait_for(ended, 30) == 0


async def test_decision_under_way_keeps_its_calibration(tmp_path: Path) -> None:
    """One that was admitted before a reload is calibrated as it began, one after it anew."""
    file = tmp_path / "calibration.json"
    file.write_text('{"noul_bias": 2.0}')
    engine = ScriptedEngine(EngineConfig(calibration_file=str(file)))
    running = await launch(engine)
    await running.ready.wait()
    engine.hold()
    request = pb.DecideRequest(state=bodies.text("s"), questions=[bodies.noul()])
    begun = asyncio.ensure_future(running.stub.Decide(request))
    while not engine.jobs:
        await asyncio.sleep(0.01)
    file.write_text('{"noul_bias": -2.0}')
    running.app.reload()
    engine.release()
    old, new = await begun, await running.stub.Decide(request)
    info = await running.stub.GetInfo(info_pb2.GetInfoRequest())
    await shut(running)
    logits = [math.log(p / (1 - p)) for p in (reply.answers[0].noul.probability for reply in (old, new))]
    assert logits[0] - logits[1] == pytest.approx(4.0)
    assert info.calibration.noul_bias == -2.0


def test_calibration_moves_every_kind_of_answer() -> None:
    """Temperature spreads the letters of a choice; slope and bias shape a yes."""
    question = Choice("team", "?", (Option("a"), Option("b")))

    def first(calibration: Calibration) -> float:
        decision = Decision(DecisionRequest("s", (question,), calibration=calibration), style="plain")
        (one,) = decision.ready()
        (answer,) = decision.take(one, Reading((1.0, 0.0), 0.5))
        return answer.probabilities[0]  # type: ignore[union-attr]

    assert first(PUBLISHED) == pytest.approx(1 / (1 + math.exp(-1 / 0.85)), abs=1e-15)
    assert first(Calibration(temperature=2.0)) == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-15)
    shaped = calibrated_yes(0.9, Calibration(noul_temperature=2.0, noul_bias=0.25))
    assert shaped == pytest.approx(1 / (1 + math.exp(-(math.log(9) / 2 + 0.25))), abs=1e-15)
    assert 0.0 <= calibrated_yes(0.0, Calibration(noul_temperature=0.01)) < 1e-300


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("temprature = 1", "unknown key 'temprature'; expected temperature, noul_temperature, noul_bias"),
        ('{"temperature": "1"}', "temperature: expected a number from 0.01 to 100"),
        ("temperature = true", "temperature: expected a number"),
        ("noul_bias = nan", "noul_bias: expected a number from -100 to 100"),
        ("noul_temperature = 0", "noul_temperature: expected a number from 0.01 to 100"),
        ("[1]", "unknown key '1'"),
        ("1", "neither TOML nor a JSON object"),
        ("{", "neither TOML nor a JSON object"),
        ("\udcff", "neither TOML nor a JSON object"),
        (None, "cannot read"),
    ],
)
def test_calibration_file_that_is_none_is_one_sentence(tmp_path: Path, content: str | None, told: str) -> None:
    """It names the key and what was expected."""
    file = tmp_path / "calibration"
    if content is not None:
        file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=told):
        Calibrated(str(file))


def test_calibration_left_out_is_the_published_one(tmp_path: Path) -> None:
    """Without a file, and for each key that a file leaves out."""
    file = tmp_path / "calibration"
    file.write_text("noul_bias = 1")
    assert Calibrated(None).current == Calibration()
    assert Calibrated(str(file)).current == Calibration(0.85, NOUL_TEMPERATURE, 1.0)


def test_start_over_broken_files_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 before any model is touched."""
    tokens = tmp_path / "tokens"
    tokens.write_text("# nobody\n")
    monkeypatch.setattr(thread, "Engine", ScriptedEngine)
    root, interval = logging.getLogger(), sys.getswitchinterval()
    level, handlers = root.level, root.handlers[:]
    try:
        assert cli.main(["serve", "--port", "0", "--http-port", "0", "--token-file", str(tokens)]) == 2
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.setswitchinterval(interval)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"letterwise-service: token_file: {tokens} holds no token\n"
