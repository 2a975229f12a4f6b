"""The log's one form: a line per record, keys and values, no caller's text."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from letterwise_service.server import logs


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    level, handlers = logger.level, logger.handlers[:]
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(level: str, form: str = "text", **extra: object) -> str:
    stream = io.StringIO()
    logs.configure(level, stream, form)
    try:
        raise ValueError("SECRET\nSTATE")
    except ValueError:
        logging.getLogger("letterwise_service.some.place").exception("it failed", extra=extra)
    return stream.getvalue()


def test_line_has_keys_request_id_and_quoted_values(root: logging.Logger) -> None:
    """A record is one line whatever its values hold, with the id of the request that it belongs to."""
    token = logs.request_id.set("abc-1")
    try:
        line = logged("info", path='a "b"\nc', seconds=0.123456789)
    finally:
        logs.request_id.reset(token)
    assert line.count("\n") == 1
    assert 'level=error logger=place msg="it failed" request_id=abc-1' in line
    assert r'path="a \"b\"\nc"' in line
    assert "seconds=0.123457" in line


def test_error_is_logged_by_type_and_place_without_its_message(root: logging.Logger) -> None:
    """An exception's message may quote a state: it is left out, and debugging alone brings it back."""
    line = logged("info")
    assert "error=ValueError" in line
    assert "test_logs.py" in line
    assert "SECRET" not in line
    assert "SECRET" in logged("debug")


def test_json_line_is_an_object_with_the_same_keys(root: logging.Logger) -> None:
    """Numbers stay numbers with all their digits; what JSON has no word for becomes text."""
    tokens = logs.request_id.set("abc-1"), logs.caller.set("billing")
    try:
        line = logged(
            "info", "json", path="a\nb", seconds=0.123456789, count=3, ready=True, odd=math.nan, where=Path("/")
        )
    finally:
        logs.request_id.reset(tokens[0])
        logs.caller.reset(tokens[1])
    assert line.count("\n") == 1
    told = json.loads(line)
    assert {key: told[key] for key in ("level", "logger", "msg", "request_id", "caller", "error")} == {
        "level": "error",
        "logger": "place",
        "msg": "it failed",
        "request_id": "abc-1",
        "caller": "billing",
        "error": "ValueError",
    }
    assert (told["path"], told["seconds"], told["count"], told["ready"]) == ("a\nb", 0.123456789, 3, True)
    assert (told["odd"], told["where"]) == ("nan", "/")
    assert "SECRET" not in line


def test_callers_who_left_during_their_reply_are_no_errors(root: logging.Logger) -> None:
    """gRPC's own line of it is left out unless the log is at debug; its other lines stay."""
    logs.quiet_departures()
    logs.quiet_departures()
    grpc_log = logging.getLogger("grpc._cython.cygrpc")
    for level, lines in (("info", 1), ("debug", 2)):
        stream = io.StringIO()
        logs.configure(level, stream)
        grpc_log.error("ExecuteBatchError raised in core by servicer method [%s]", "/x/Decide")
        grpc_log.error("Unexpected [%s] raised by servicer method [%s]", "ValueError", "/x/Decide")
        assert len(stream.getvalue().splitlines()) == lines
