"""The HTTP front end: the Jev route, OpenAI's decisions, and the routes that watch the server.

Each decision becomes the same domain request as one that came by gRPC, and takes the same way from there. Runs on the
event loop; bodies are unpacked, read and tokenised on a worker thread. A caller who goes away has the job stopped
before its next forward. Knows nothing of how a decision is computed, and of how its failure is told.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from .. import metrics
from ..calibration_file import Calibrated
from ..config import EngineConfig, ServerConfig
from ..errors import Unsupported
from ..method import jev, openai
from ..method.answers import in_request_order
from ..method.request import DecisionRequest
from ..method.validation import Limits
from .bridge import Bridge, Engine, whole
from .calls import Calls
from .http_bodies import read_body, unpack
from .http_door import METRICS, unless_gone
from .http_errors import json_bytes, wait_headers
from .server_sent import MEDIA_TYPE, EventStream, decision_json

_log = logging.getLogger(__name__)


class Gateway:
    """Serves the decisions of one engine over HTTP; an ASGI application."""

    def __init__(
        self,
        engine: Engine,
        bridge: Bridge,
        calls: Calls,
        *,
        calibrated: Calibrated,
        engine_config: EngineConfig,
        server_config: ServerConfig,
    ) -> None:
        self._engine = engine
        self._bridge = bridge
        self._calls = calls
        self._calibrated = calibrated
        self._limits = Limits(engine_config.max_questions, engine_config.max_options, engine_config.max_samples)
        self._body_bytes = server_config.max_message_bytes
        self._started = time.time()
        self._noted: set[str] = set()
        self._router = Router(_routes(self), redirect_slashes=False, default=_no_such_route)

    @property
    def routes(self) -> list[str]:
        return [route.path for route in self._router.routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # With an application in the scope, starlette raises what has no route or another method, for the door to tell.
        await self._router({**scope, "app": self}, receive, send)

    async def decide(self, request: Request) -> Response:
        """One state and its questions, answered together, or as events where the caller accepts them."""
        body = await self._body(request)
        streamed = _accepts_events(request)
        return await unless_gone(request.receive, self._streamed(body) if streamed else self._decided(body))

    async def prewarm(self, request: Request) -> Response:
        """Reads a state before its questions arrive."""
        body = await self._body(request)
        return await unless_gone(request.receive, self._prewarmed(body))

    async def decide_openai(self, request: Request) -> Response:
        """The same decision, asked and answered in OpenAI's shape."""
        body = await self._body(request)
        return await unless_gone(request.receive, self._decided_openai(body))

    async def models(self, request: Request) -> Response:
        """The one model that is served, in the shapes of both packages."""
        model, day = self._calls.warm(), time.strftime("%Y-%m-%d", time.gmtime(self._started))
        described = f"{model.architecture}, {model.parameters} parameters, read by its letters"
        ours = {"id": model.model, "object": "model", "created": int(self._started), "owned_by": "letterwise"}
        theirs = {"name": model.model, "description": described, "release_date": day}
        return _json({"object": "list", "data": [ours], "models": [theirs]})

    async def healthz(self, request: Request) -> Response:
        """The process is alive, whatever else holds."""
        return _json({"status": "ALIVE"})

    async def readyz(self, request: Request) -> Response:
        """Whether health says SERVING."""
        if self._calls.ready:
            return _json({"status": "SERVING"})
        return _json({"status": "NOT_SERVING"}, 503, wait_headers(0))

    async def metrics(self, request: Request) -> Response:
        """What Prometheus scrapes."""
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(await asyncio.to_thread(encode, metrics.REGISTRY), headers={"content-type": media_type})

    async def _body(self, request: Request) -> _Body:
        if request.headers.get("content-type", "").lower().startswith("multipart/"):
            raise Unsupported("a body of several parts: images are not read; give their content as text")
        packed = await read_body(request, self._body_bytes)
        # Only now: a caller that is still sending may not see the refusal of a server that closes connections.
        self._calls.warm()
        return _Body(packed, ", ".join(request.headers.getlist("content-encoding")), self._body_bytes)

    async def _decided(self, body: _Body) -> Response:
        decision, permit = await asyncio.to_thread(self._admitted, body)
        outcomes, completed = await whole(self._bridge.events(permit, None))
        return _json(decision_json(decision, outcomes, completed))

    async def _streamed(self, body: _Body) -> Response:
        decision, permit = await asyncio.to_thread(self._admitted, body)
        events = self._bridge.events(permit, None)
        return EventStream(decision, await anext(events), events)

    async def _decided_openai(self, body: _Body) -> Response:
        asked, decision, permit = await asyncio.to_thread(self._admitted_openai, body)
        outcomes, completed = await whole(self._bridge.events(permit, None))
        answers, _ = in_request_order(decision, outcomes)
        told = decision_json(decision, outcomes, completed)
        return _json(openai.reply(completed.model, asked, answers, told["diagnostics"]))

    async def _prewarmed(self, body: _Body) -> Response:
        prewarm, permit = await asyncio.to_thread(self._admitted_state, body)
        _, completed = await whole(self._bridge.events(permit, None))
        return _json(jev.prewarm_reply(completed.model, dataclasses.asdict(completed.diagnostics), prewarm.ignored))

    def _admitted(self, body: _Body) -> tuple[DecisionRequest, Any]:
        """The decision and its permit; on a worker thread, since a body may be long."""
        decision = self._calibrated.applied(jev.parse_body(body.unpacked(), self._limits).request)
        self._note(decision.ignored)
        return decision, self._engine.admit(decision)

    def _admitted_openai(self, body: _Body) -> tuple[tuple[openai.Asked, ...], DecisionRequest, Any]:
        read = openai.parse_body(body.unpacked(), self._limits)
        decision = self._calibrated.applied(read.request)
        return read.asked, decision, self._engine.admit(decision)

    def _admitted_state(self, body: _Body) -> tuple[jev.Prewarm, Any]:
        prewarm = jev.parse_prewarm(body.unpacked())
        self._note(prewarm.ignored)
        adapter, service_class = prewarm.adapter, prewarm.service_class
        return prewarm, self._engine.admit_state(prewarm.state, adapter=adapter, service_class=service_class)

    def _note(self, ignored: Iterable[str]) -> None:
        """Logs once of each field that the Jev family knows that it is not used; other names are callers' own text."""
        for name in {path.rpartition(".")[2] for path in ignored} & jev.FAMILY_FIELDS - self._noted:
            self._noted.add(name)
            _log.info("requests have a field that is not used", extra={"field": name})


@dataclasses.dataclass(frozen=True)
class _Body:
    """A body as it came, and how it is packed."""

    packed: bytes
    encoding: str
    limit_bytes: int

    def unpacked(self) -> bytes:
        """Not on the event loop: this is work."""
        return unpack(self.packed, self.encoding, self.limit_bytes)


def _routes(gateway: Gateway) -> list[Route]:
    post: dict[str, Callable[[Request], Any]] = {
        "/v1/systemone": gateway.decide,
        "/systemone": gateway.decide,
        "/v1/prewarm": gateway.prewarm,
        "/prewarm": gateway.prewarm,
        "/v1/decisions": gateway.decide_openai,
    }
    get: dict[str, Callable[[Request], Any]] = {
        "/v1/models": gateway.models,
        "/healthz": gateway.healthz,
        "/readyz": gateway.readyz,
        METRICS: gateway.metrics,
    }
    return [Route(path, answer, methods=["POST"]) for path, answer in post.items()] + [
        Route(path, answer, methods=["GET"]) for path, answer in get.items()
    ]


async def _no_such_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404, "there is no such route here")


def _accepts_events(request: Request) -> bool:
    for accepted in ",".join(request.headers.getlist("accept")).split(","):
        media_type, _, parameters = accepted.partition(";")
        if media_type.strip().lower() == MEDIA_TYPE:
            return parameters.replace(" ", "") not in ("q=0", "q=0.0")
    return False


def _json(value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, media_type="application/json")
