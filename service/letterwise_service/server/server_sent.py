"""A decision's events as server-sent events: those of DecideStream, each a name and a JSON object.

Owns their form. Answers have the Jev reply's shape, and `completed` is that reply without its answers, so the union of
the events is the whole reply. Runs on the event loop. Knows nothing of how a decision is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.events import Accepted, Answered, Completed, Event, Failed, PrefixProgress, WasSkipped
from ..method import jev
from ..method.answers import Answer, Skipped, in_request_order
from ..method.request import DecisionRequest
from .http_door import unless_gone
from .http_errors import http_refusal_of, json_bytes

MEDIA_TYPE = "text/event-stream"


class EventStream(Response):
    """The reply that streams; `first` was waited for, so that what is refused at once still has a status."""

    media_type = MEDIA_TYPE

    def __init__(self, request: DecisionRequest, first: Event, rest: AsyncGenerator[Event, None]) -> None:
        # A proxy that gathered the events would keep them from the caller.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends each event as it comes; stops the decision when the caller goes away."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await unless_gone(receive, self._told(send))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _told(self, send: Send) -> None:
        outcomes: list[Answer | Skipped] = []
        try:
            async with aclosing(self._rest):
                await _tell(send, _message(self._request, outcomes, self._first))
                async for event in self._rest:
                    await _tell(send, _message(self._request, outcomes, event))
        except Exception as error:  # the status has been sent: only an event can still tell
            await _tell(send, _written("error", http_refusal_of(error).body))


async def _tell(send: Send, message: bytes) -> None:
    await send({"type": "http.response.body", "body": message, "more_body": True})


def _message(request: DecisionRequest, outcomes: list[Answer | Skipped], event: Event) -> bytes:
    """One event; outcomes are gathered in `outcomes` for the last one."""
    match event:
        case Accepted():
            return _written("accepted", dataclasses.asdict(event))
        case PrefixProgress():
            return _written("prefix", dataclasses.asdict(event))
        case Answered(answer):
            outcomes.append(answer)
            told = {"id": answer.id, "answer": jev.answer_json(answer), "letter_mass": answer.letter_mass}
            return _written("answer", told)
        case WasSkipped(skipped):
            outcomes.append(skipped)
            return _written("skipped", jev.skipped_json(skipped))
        case Completed():
            reply = decision_json(request, outcomes, event)
            del reply["answers"]
            return _written("completed", reply)
        case Failed():
            raise AssertionError("a failure is raised, not sent as an event")


def decision_json(request: DecisionRequest, outcomes: list[Answer | Skipped], completed: Completed) -> dict[str, Any]:
    """A whole Jev reply; answers and skips go in the request's order, whatever order they were read in."""
    answers, _ = in_request_order(request, outcomes)
    return jev.reply(completed.model, answers, dataclasses.asdict(completed.diagnostics))


def _written(name: str, data: dict[str, Any]) -> bytes:
    """JSON on one line never holds the line breaks that end an event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), json_bytes(data))
