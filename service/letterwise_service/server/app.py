"""The running server: wiring, health, signals, drain.

The port is bound before the model is loaded, so health can say NOT_SERVING meanwhile. Runs on the event loop of the
main thread; the engine has its own. Knows nothing of what the RPCs do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from letterwise.v1 import chat_pb2, chat_pb2_grpc, decision_pb2, decision_pb2_grpc

from .. import metrics
from ..calibration_file import Calibrated
from ..config import EngineConfig, ServerConfig
from ..engine.events import ModelInfo
from ..errors import LoadFailed
from . import logs
from .bridge import Bridge, Engine, tell
from .calls import Calls
from .chat import ChatServicer
from .credentials import Credentials
from .gateway import Gateway
from .http_door import HttpDoor
from .http_server import HttpServer
from .interceptors import RpcInterceptor
from .listening import PortUnavailable, address, bind, is_loopback, options
from .replies import version_of
from .scrape import Scrape
from .servicer import DecisionServicer
from .tracing import Tracing
from .transport import certificates

_log = logging.getLogger(__name__)
T = TypeVar("T")

SERVICE = decision_pb2.DESCRIPTOR.services_by_name["DecisionService"].full_name
CHAT_SERVICE = chat_pb2.DESCRIPTOR.services_by_name["ChatService"].full_name
# How long callers who have not heard of the drain yet are still answered, with its refusal.
_NEWS_SECONDS = 0.25
# Long enough for a refusal that has been written to leave the socket.
_LAST_WORDS_SECONDS = 0.1
# How long the open calls of a dead engine may take to end with UNAVAILABLE.
_REFUSALS_SECONDS = 1.0
# An engine thread that is inside a long load or forward cannot be waited for; the process ends without it.
_CLOSE_SECONDS = 2.0
# The engine thread holds the GIL in long stretches; a short interval halves the tail latency of the loop.
_SWITCH_SECONDS = 5e-4


class App:
    """One server in front of one engine. Make it, and call it, on a running event loop."""

    def __init__(
        self, engine: Engine, engine_config: EngineConfig, server_config: ServerConfig, tracing: Tracing | None = None
    ) -> None:
        """Raises ConfigError for tokens, certificates or a calibration that cannot be used."""
        logs.quiet_departures()
        self._engine = engine
        self._config = server_config
        self._bridge = Bridge(engine)
        self._calls = Calls()
        self._credentials = Credentials(server_config.token_file)
        self._certificates = certificates(server_config)
        self._calibrated = Calibrated(engine_config.calibration_file)
        self._tracing = tracing or Tracing()
        self._servicer = DecisionServicer(
            engine,
            self._bridge,
            self._calls,
            calibrated=self._calibrated,
            engine_config=engine_config,
            server_config=server_config,
        )
        self._chat_servicer = ChatServicer(engine, self._bridge, self._calls, engine_config)
        self._health = health.aio.HealthServicer()
        interceptor = RpcInterceptor(self._credentials, self._tracing)
        self._server = grpc.aio.server(interceptors=[interceptor], options=options(server_config))
        gateway = Gateway(
            engine,
            self._bridge,
            self._calls,
            calibrated=self._calibrated,
            engine_config=engine_config,
            server_config=server_config,
        )
        door = HttpDoor(gateway, gateway.routes, self._calls, self._credentials, self._tracing)
        tls = self._certificates.ssl_context() if self._certificates else None
        self._http = HttpServer(door, server_config.host, server_config.http_port, tls)
        self._scrape = Scrape(server_config.host, server_config.metrics_port)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._died = asyncio.Event()
        self.port = 0

    @property
    def http_port(self) -> int:
        """The port of the HTTP routes; 0 for none."""
        return self._http.port

    async def start(self) -> None:
        """Binds the port and answers at once: health NOT_SERVING, our own calls UNAVAILABLE. Raises PortUnavailable."""
        decision_pb2_grpc.add_DecisionServiceServicer_to_server(self._servicer, self._server)
        chat_pb2_grpc.add_ChatServiceServicer_to_server(self._chat_servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, CHAT_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.port = bind(self._server, self._config.host, self._config.port, self._certificates)
        self._warn_of_an_open_door()
        try:
            self._scrape.open()
            await self._http.open()
        except PortUnavailable:
            await _in_thread(self._scrape.close)
            raise
        await self._server.start()

    async def run(self, announce: Callable[[ModelInfo], None]) -> int:
        """Loads, calls `announce` when warm, serves until a stop or the engine's death; the process's exit code.

        Raises LoadFailed when the model cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        self._engine.on_death(lambda: tell(loop, self._on_death))
        self._engine.start()
        try:
            if model := await self._loaded():
                await self._open(model)
                announce(model)
                await _any_of(self._stop, self._died)
            return await (self._fall() if self._died.is_set() else self._drain())
        except LoadFailed:
            await self._hang_up()
            raise
        finally:
            ends = [_in_thread(self._engine.close), _in_thread(self._scrape.close), _in_thread(self._tracing.close)]
            await asyncio.wait(ends, timeout=_CLOSE_SECONDS)

    def stop(self) -> None:
        """Asks for a drain; asked again, the drain is cut short."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    def reload(self) -> None:
        """Reads tokens, certificates and calibration again; what cannot be used leaves the old in force."""
        _log.info("reading tokens, certificates and calibration again")
        self._credentials.reload()
        if self._certificates:
            self._certificates.reload()
        self._calibrated.reload()

    def _warn_of_an_open_door(self) -> None:
        mutual = self._certificates is not None and self._certificates.mutual
        if not (is_loopback(self._config.host) or self._credentials.required or mutual):
            _log.warning(
                "anyone who reaches this address may use the service; set token_file or tls_client_ca",
                extra={"host": self._config.host},
            )

    async def _loaded(self) -> ModelInfo | None:
        """The warm model, or None when a stop comes first. Raises LoadFailed."""
        ready = _in_thread(self._engine.wait_ready)
        stopped = asyncio.create_task(self._stop.wait())
        ends: list[asyncio.Future[Any]] = [ready, stopped]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self._stop.is_set():
            return ready.result()
        ready.cancel()
        return None

    async def _open(self, model: ModelInfo) -> None:
        if model.problem:
            _log.warning("the model cannot answer decisions", extra={"model": model.model, "problem": model.problem})
        self._calls.open(model)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        metrics.model_loaded(
            model=model.model,
            device=model.device,
            blas=model.blas,
            gflops=model.blas_gflops,
            version=version_of("letterwise"),
        )
        metrics.serving(True)
        _log.info(
            "serving",
            extra={"model": model.model, "port": self.port, "http_port": self.http_port, "readout": model.path},
        )

    async def _drain(self) -> int:
        """Health first, so that balancers turn away; then what was admitted ends; then the connections."""
        _log.info("draining")
        metrics.serving(False)
        self._calls.close()
        self._engine.drain()
        await self._health.enter_graceful_shutdown()
        # Calls that crossed the news are refused by name; once the transport stops, it may cut them off as CANCELLED.
        await asyncio.sleep(_NEWS_SECONDS)
        # `stop` alone would wait the whole grace for an open health watch, and balancers keep one open.
        # It gets longer than the calls, which are to hear from us and not from it why they end.
        stopping = asyncio.create_task(self._server.stop(self._config.drain_seconds + _REFUSALS_SECONDS))
        finished = await self._idle(self._config.drain_seconds)
        if not finished:
            self._bridge.fail_all("the server is shutting down; this was not finished")
            await self._ended()
        await self._hang_up()
        await stopping
        _log.info("stopped", extra={"all_answered": finished})
        return 1 if self._died.is_set() else 0

    async def _idle(self, limit_seconds: float) -> bool:
        """Waits for the jobs and then for their readers; False when the time is up or a second stop has come."""
        cut = asyncio.create_task(_any_of(self._hurry, self._died))
        idle = asyncio.create_task(self._all_answered())
        done, pending = await asyncio.wait([cut, idle], timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return idle in done

    async def _all_answered(self) -> None:
        while not await asyncio.to_thread(self._engine.wait_idle, 0.1):
            pass
        await self._calls.wait_idle()

    async def _fall(self) -> int:
        """The engine has died: nobody else is to be sent here, and the process must be replaced."""
        _log.error("the engine has died; the server stops")
        metrics.serving(False)
        self._calls.close()
        await self._health.enter_graceful_shutdown()
        await self._ended()
        await self._hang_up()
        return 1

    async def _ended(self) -> None:
        """Waits a moment for calls whose end has been told."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._calls.wait_idle(), _REFUSALS_SECONDS)

    async def _hang_up(self) -> None:
        """Ends both transports, and what still runs on them."""
        await asyncio.gather(self._server.stop(_LAST_WORDS_SECONDS), self._http.close(_LAST_WORDS_SECONDS))

    def _on_death(self) -> None:
        self._died.set()
        self._bridge.fail_all("the engine has stopped; send the request to another server")

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE, CHAT_SERVICE):
            await self._health.set(name, status)


def serve(engine: Engine, engine_config: EngineConfig, server_config: ServerConfig, tracing: Tracing) -> int:
    """Serves until SIGTERM or SIGINT; prints one ready line on stdout when warm; the process's exit code.

    SIGHUP has tokens, certificates and calibration read again. Raises ConfigError, PortUnavailable and LoadFailed.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    return asyncio.run(_serve(engine, engine_config, server_config, tracing))


async def _serve(engine: Engine, engine_config: EngineConfig, server_config: ServerConfig, tracing: Tracing) -> int:
    app = App(engine, engine_config, server_config, tracing)
    terminal = sys.stderr.isatty()

    def hang_up() -> None:
        # A terminal that was closed sends the same signal as an operator who wants a reload, and is none any more.
        (app.stop if terminal and not sys.stderr.isatty() else app.reload)()

    for number, act in ((signal.SIGTERM, app.stop), (signal.SIGINT, app.stop), (signal.SIGHUP, hang_up)):
        asyncio.get_running_loop().add_signal_handler(number, act)
    await app.start()
    _log.info("loading", extra={"model": engine_config.model, "port": app.port, "http_port": app.http_port})

    def announce(model: ModelInfo) -> None:
        http = f", HTTP on {address(server_config.host, app.http_port)}" if app.http_port else ""
        where = f"{address(server_config.host, app.port)}{http}"
        print(f"letterwise-service: serving {model.model} on {where}", flush=True)

    return await app.run(announce)


async def _any_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Runs `function` on a daemon thread: unlike the loop's executor, one that nobody waits for at exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only when T allows it

    def work() -> None:
        try:
            result, error = function(), None
        except BaseException as raised:  # whatever it is, the waiting coroutine gets it
            result, error = None, raised
        tell(loop, lambda: settle(result, error))

    threading.Thread(target=work, name="letterwise-wait", daemon=True).start()
    return future
