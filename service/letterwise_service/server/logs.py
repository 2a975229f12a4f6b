"""The log's form: a line a record on stderr, `key=value` or JSON, each with the id of the request that it belongs to.

Owns the request id and the caller's name of the running call, which follow a coroutine by context variable. Holds no
state text: what is logged are names, numbers and ids.
"""

from __future__ import annotations

import contextvars
import json
import logging
import math
import re
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from typing import TextIO

# The header, or gRPC's metadata, in which a caller may name a call and is told its name.
REQUEST_ID = "x-request-id"
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

# The id of the call that the current coroutine serves, and the name of the token that was shown; empty outside one.
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """`time=… level=… logger=… msg="…" key=value …`; the keys are those given in `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the values hold."""
        return " ".join(f"{key}={_quoted(value)}" for key, value in _pairs(record).items())


class JsonFormatter(logging.Formatter):
    """The same keys and values as one JSON object; a float keeps all its digits."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the values hold."""
        return json.dumps({key: _native(value) for key, value in _pairs(record).items()})


def named(headers: Mapping[str, str]) -> str:
    """The id of a call: the caller's own, if it can stand in a log, or a new one. It is in every later line."""
    asked = headers.get(REQUEST_ID, "")
    identifier = asked if _ACCEPTABLE_ID.fullmatch(asked) else uuid.uuid4().hex
    request_id.set(identifier)
    return identifier


_FORMATS: dict[str, type[logging.Formatter]] = {"text": KeyValueFormatter, "json": JsonFormatter}


def configure(level: str, stream: TextIO = sys.stderr, form: str = "text") -> None:
    """Sends every log line of the process to `stream` in one form: text or json."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_FORMATS[form]())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def quiet_departures() -> None:
    """A caller that leaves while its reply is being sent is its own affair: gRPC's line of it is no error of ours."""
    _GRPC.addFilter(_no_departure)  # a filter that is there is not added again


_GRPC = logging.getLogger("grpc._cython.cygrpc")


def _no_departure(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("ExecuteBatchError raised in core") or _GRPC.isEnabledFor(logging.DEBUG)


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    pairs: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
        "level": record.levelname.lower(),
        "logger": record.name.rsplit(".", 1)[-1],
        "msg": record.getMessage(),
    }
    about = {"request_id": request_id.get(), "caller": caller.get()}
    pairs |= {key: value for key, value in about.items() if value}
    pairs |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
    if record.exc_info and record.exc_info[1]:
        pairs |= _exception(record.exc_info[1])
    return pairs


def _exception(error: BaseException) -> dict[str, object]:
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


def _native(value: object) -> object:
    # JSON has no word for a float that is not finite.
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else str(value)


def _quoted(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text and not any(c in text for c in ' "=\\') and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
