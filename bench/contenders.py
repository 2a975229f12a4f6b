"""Contenders as processes: started once, asked one case at a time, ended by their own id.

A contender that cannot start or fails is missing from then on, with its reason; it never gets numbers. Knows nothing
of what the cases mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
# What our own engine sets for itself; a peer starts without it.
_OURS = ("OPENBLAS_NUM_THREADS", "MLX_BFS_MAX_WIDTH", "MLX_DISABLE_COMPILE", "PYTHONPATH")
_END_SECONDS = 20.0
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+")


class Missing(Exception):
    """The contender is not there, or no longer; the message is why."""


@dataclass(frozen=True)
class Entry:
    """A contender by name: the interpreter, the module under `bench.workers`, its arguments and environment."""

    name: str
    python: Path
    module: str
    arguments: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Contender:
    """One started entry. `about` is what it said of itself when it had loaded."""

    def __init__(self, entry: Entry) -> None:
        """Raises Missing."""
        self.name = entry.name
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the contender
        kept = {name: value for name, value in os.environ.items() if name not in _OURS}
        self._process = subprocess.Popen(
            [str(entry.python), "-m", f"bench.workers.{entry.module}", *entry.arguments],
            cwd=ROOT,
            env={**kept, **entry.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.about = self._reply()
        except Missing:
            self.close()
            raise

    def ask(self, case: dict[str, Any]) -> dict[str, Any]:
        """The contender's reply to a case. Raises Missing when it has failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise Missing(self._reason()) from None
        return self._reply()

    def close(self) -> None:
        """End the process: by the end of its input, else by its id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it may be gone already
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Missing(self._reason())
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _reason(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return without_folders(lines[-1]) if lines else f"it ended with status {self._process.returncode}"


def without_folders(text: str) -> str:
    """A reason that may be published: file names without the folders of this machine, and not too long."""
    return _FOLDERS.sub("", text)[:200]
