"""Servers as a user runs them: the command in a process, its ready line, its log, its end."""

from __future__ import annotations

import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from letterwise import Client

COMMAND = str(Path(sys.executable).with_name("letterwise-service"))
START_SECONDS = 120.0


class Server:
    """`letterwise-service serve --model demo` on a free port, warm once made; HTTP is off unless asked for.

    `log`: what it has written on stderr.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = (folder / f"server-{time.monotonic_ns()}.log").open("w+")
        command = [COMMAND, "serve", "--model", "demo", "--port", "0", "--http-port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = self.process.stdout.readline() if selector.select(START_SECONDS) else ""
        where = r"127\.0\.0\.1:\d+"
        match = re.fullmatch(rf"letterwise-service: serving (\S+) on ({where})(?:, HTTP on ({where}))?\n", ready)
        if match is None:
            self.close()
            raise AssertionError(f"no ready line: {ready!r}")
        self.target = match[2]
        self.url = f"http://{match[3]}" if match[3] else ""

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def client(self, **settings: Any) -> Client:
        return Client(self.target, **settings)

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def ended(self, method: str, code: str) -> int:
        """How many RPCs the log has with this end."""
        return len(re.findall(rf"msg=rpc .*method={method} code={code} ", self.log()))

    def cpu_seconds(self) -> float:
        """Processor time that the process has used, all threads together."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def close(self) -> None:
        """Leaves nothing running."""
        if self.running:
            self.terminate()
            try:
                self.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


class Spare:
    """A second server, with a store of its own, started when one is wanted and again when it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Server | None = None

    def get(self) -> Server:
        if self._server is None or not self._server.running:
            self.close()
            self._server = Server(self._folder)
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def run(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    """`letterwise-service` with these arguments, to its end."""
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=seconds, check=False)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed command says: one line on stderr and nothing on stdout."""
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.removesuffix("\n")
