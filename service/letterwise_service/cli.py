"""`letterwise-service`: serve a model, decide without a server, fetch the embedded model, replay reference vectors.

Owns the commands, their words and their exit codes: 0 done, 1 failed (one sentence on stderr), 2 wrong usage. What
computes is imported by the command that needs it, so `--help` and `vectors` start at once and work without MLX.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from . import config, effective, fetching, offline, report
from .config import EngineConfig, ServerConfig
from .config_file import ConfigError
from .errors import LetterwiseError
from .method.request import DecisionRequest

Command: TypeAlias = Callable[[argparse.Namespace], int]

PROGRAM = "letterwise-service"
_EPILOG = (
    "Every setting can also be given in the environment, under the name in brackets, or in the --config file under the "
    "flag's name with underscores. A flag wins over the environment, which wins over the file."
)
# Of the engine's settings, those that mean nothing to one decision alone: taken, and not shown in its help.
_SERVING_ONLY = (
    "chat_cache_bytes",
    "chat_max_tokens",
    "chat_queue",
    "chat_rows",
    "check_store_when_idle",
    "prefix_store",
    "prefix_store_bytes",
    "prefix_store_records",
    "queue_jobs",
    "queue_tokens",
)


class CommandFailed(Exception):
    """A command that cannot do its work; one sentence says why."""


class Help(argparse.HelpFormatter):
    """Help whose list of commands stands under its title, without a line for the placeholder."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        return text.partition("\n")[2] if action.nargs == argparse.PARSER else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the process's exit code. Without `arguments` it is the program, and may end the process."""
    _print_anything()
    flags = _parser().parse_args(arguments)
    code = _run(flags)
    if arguments is None and "mlx.core" in sys.modules:
        # The engine's system thread is still letting go of MLX for a moment after it was joined. MLX's own end,
        # which an ordinary exit runs, would meet it there and abort the process.
        _leave_now(code)
    return code


def _run(flags: argparse.Namespace) -> int:
    run: Command = flags.run
    try:
        return run(flags)
    except ConfigError as error:
        return _complain(error, 2)
    except (LetterwiseError, CommandFailed) as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130


def _complain(error: Exception, code: int) -> int:
    print(f"{PROGRAM}: {error}", file=sys.stderr)
    return code


def _print_anything() -> None:
    # A terminal that cannot show a character must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Typed questions about a state, answered with a language model's letter scores.",
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    serve = _command(commands, "serve", _serve, "serve a model over gRPC and HTTP until SIGTERM", _EPILOG)
    config.add_flags(serve, ServerConfig)
    config.add_flags(serve, EngineConfig)
    decide = _command(commands, "decide", _decide, "answer one request file here, without a server", _EPILOG)
    decide.add_argument("file", metavar="FILE", help="a Jev JSON body (state, questions, …); - reads standard input")
    decide.add_argument("--json", action="store_true", help="print the Jev reply instead of lines")
    config.add_flags(decide, EngineConfig)
    for action in decide._actions:  # argparse has no public way to a flag that is there already
        if action.dest in _SERVING_ONLY:
            action.help = argparse.SUPPRESS
    _add_config(commands)
    _command(commands, "fetch", _fetch, "fetch the embedded model that --model demo serves")
    vectors = _command(commands, "vectors", _vectors, "replay a file of reference vectors against the method")
    vectors.add_argument("file", metavar="FILE", help="a vectors file; - reads standard input")
    return parser


def _command(
    commands: Any, name: str, run: Command, summary: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", epilog=epilog
    )
    parser.set_defaults(run=run)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("letterwise")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _add_config(commands: Any) -> None:
    about = commands.add_parser("config", help="look at the settings", description="Look at the settings.")
    actions = about.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = _command(
        actions, "check", _check_config, "print the effective settings and where each is from; exit 2 on any fault"
    )
    check.add_argument("file", metavar="FILE", nargs="?", help="the settings file; the one of --config when left out")
    config.add_flags(check, ServerConfig)
    config.add_flags(check, EngineConfig)


def _check_config(flags: argparse.Namespace) -> int:
    if flags.file is not None:
        flags.config = flags.file
    found, faults = effective.found(flags, os.environ)
    for fault in faults:
        _complain(fault, 2)
    if faults:
        return 2
    print("\n".join(effective.lines(found)))
    for name in effective.unread(os.environ):
        print(f"note: {name} is in the environment and is no setting", file=sys.stderr)
    return 0


def _serve(flags: argparse.Namespace) -> int:
    engine_config = config.read(EngineConfig, flags, os.environ)
    server_config = config.read(ServerConfig, flags, os.environ)
    # Read when gRPC is imported: else every stranger's failed handshake is a line of its own form in the log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from .engine.thread import Engine
    from .server import app, listening, logs, tracing

    logs.configure(server_config.log_level, form=server_config.log_format)
    traced = tracing.tracing(server_config.tracing, os.environ)
    if sys.stderr.isatty():
        # Without a reader the engine fetches, so that health answers meanwhile; a reader is shown a bar.
        _have(engine_config.model)
    engine = Engine(engine_config)
    try:
        code = app.serve(engine, engine_config, server_config, traced)
    except listening.PortUnavailable as error:
        raise CommandFailed(str(error)) from None
    if engine.alive:  # inside a load or a forward, which nothing can interrupt
        _leave_now(code)
    return code


def _leave_now(code: int) -> NoReturn:
    """Ends the process here, even under an engine thread that is inside a load or a forward."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _decide(flags: argparse.Namespace) -> int:
    # One decision has nothing to keep a prefix for, and no conversation beside it.
    engine_config = config.read(EngineConfig, flags, os.environ, prefix_store=False, chat_rows=0)
    from .calibration_file import Calibrated
    from .method import jev, validation

    limits = validation.Limits(engine_config.max_questions, engine_config.max_options, engine_config.max_samples)
    body = _read(flags.file)
    try:
        request = jev.parse_body(body, limits).request
    except LetterwiseError as refused:
        raise CommandFailed(f"{'standard input' if flags.file == '-' else flags.file}: {refused}") from None
    if request.ignored:
        print(f"ignored: {', '.join(request.ignored)}", file=sys.stderr)
    if not flags.json:
        print(f"loading {engine_config.model} …", file=sys.stderr, flush=True)
    request = Calibrated(engine_config.calibration_file).applied(request)
    decided = _decided(engine_config, request)
    if flags.json:
        print(json.dumps(decided.jev_reply(), ensure_ascii=False, allow_nan=False, indent=2))
    else:
        print("\n".join(report.lines(decided)))
    return 0


def _decided(engine_config: EngineConfig, request: DecisionRequest) -> offline.Decided:
    from .engine.thread import Engine
    from .server import logs

    logs.configure("warning")
    _have(engine_config.model)
    engine = Engine(engine_config)
    engine.start()
    try:
        engine.wait_ready()
        return offline.decide(engine, request)
    except KeyboardInterrupt:
        _leave_now(130)
    finally:
        engine.close()


def _fetch(flags: argparse.Namespace) -> int:
    print(_have("demo"))
    return 0


def _have(model: str) -> Path | None:
    """Fetches the embedded model when that is what is served and it is not here yet, with a bar on a terminal."""
    if model != "demo":
        return None
    from .engine.models import embedded

    with fetching.bar() as progress:
        return embedded.fetch(progress)


def _vectors(flags: argparse.Namespace) -> int:
    from .method import vectors

    try:
        document = json.loads(_read(flags.file))
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{flags.file} is not JSON: {error}") from None
    results = vectors.replay(document)
    failures = [result for result in results if not result.passed]
    for failure in failures:
        print(f"{failure.name}: {failure.reason}")
    print(f"{len(results) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def _read(file: str) -> bytes:
    try:
        if file != "-":
            return Path(file).read_bytes()
        if sys.stdin is None:
            raise CommandFailed("standard input is closed")
        return sys.stdin.buffer.read()
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from None
