"""The log's one form: `key=value` lines on stderr, each with the id of the request that it belongs to.

Owns the request id of the running RPC, which follows a coroutine by context variable. Holds no state text: what is
logged are names, numbers and ids.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import time
import traceback
from typing import TextIO

# The id of the RPC that the current coroutine serves; empty outside one.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """`time=… level=… logger=… msg="…" key=value …`; the keys are those given in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the values hold."""
        pairs: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name.rsplit(".", 1)[-1],
            "msg": record.getMessage(),
        }
        if current := request_id.get():
            pairs["request_id"] = current
        pairs |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info and record.exc_info[1]:
            pairs |= self._exception(record.exc_info[1])
        return " ".join(f"{key}={_quoted(value)}" for key, value in pairs.items())

    def _exception(self, error: BaseException) -> dict[str, object]:
        """Its type and its frames, innermost first."""
        frames = traceback.extract_tb(error.__traceback__)
        told: dict[str, object] = {
            "error": type(error).__name__,
            "frames": " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames)),
        }
        # The message may quote a caller's text.
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            told["text"] = str(error)
        return told


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Sends every log line of the process to `stream` in the one form."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _quoted(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text and not any(c in text for c in ' "=\\') and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
