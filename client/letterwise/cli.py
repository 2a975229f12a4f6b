"""The `letterwise` command: asks a running server from the command line.

Owns arguments, files and exit codes: 0 when all went well, 1 when the service failed, 2 for a wrong argument or request
file. A request file is a Jev JSON body. How a chat is held is `conversation.py`'s.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from . import __version__, conversation, jev
from .channel import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS, Tls, address, deadline
from .client import Client
from .conversation import Conversation, Page
from .display import decision_events, failure_sentence, open_display, shown
from .errors import InvalidRequest, LetterwiseError, Unauthenticated
from .events import Event, gather

TOKEN_VARIABLE = "LETTERWISE_TOKEN"

OK, SERVICE_FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

# what a line on standard error calls a file that was read from standard input
STANDARD_INPUT = "standard input"
FILE_HELP = "a Jev JSON body (state, questions, …), or - for standard input"
EXAMPLE = """\
a request file:
  {"state": "I was charged twice and nobody answers!",
   "questions": {
     "angry": {"type": "noul", "instructions": "Is the customer angry?"},
     "team": {"type": "choice", "instructions": "Which team should answer?",
              "criteria": {"billing": "charges and refunds", "shipping": "delivery"}},
     "urgency": {"type": "score", "instructions": "How urgent is this?",
                 "criteria": ["can wait", "today", "now"], "ask_if": {"angry": ["yes"]}}}}

A bearer token is taken from LETTERWISE_TOKEN.

exit status: 0 done, 1 the service failed, 2 a wrong argument or request file
"""


Result = TypeVar("Result")


class UsageError(Exception):
    """A wrong argument or request file."""


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose list of commands stands under its title, without a line for the placeholder."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        return text.partition("\n")[2] if action.nargs == argparse.PARSER else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = build_parser().parse_args(arguments)
    if sys.stdout is None:
        return _fail("standard output: is closed", SERVICE_FAILED)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
        sys.stdout.flush()
        return OK
    except UsageError as problem:
        return _fail(str(problem), BAD_USAGE)
    except LetterwiseError as problem:
        token = f"; {TOKEN_VARIABLE} holds the token" if isinstance(problem, Unauthenticated) else ""
        return _fail(failure_sentence(problem) + token, SERVICE_FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone: nothing more can be said
        _give_up_output()
        return SERVICE_FAILED
    except OSError as problem:  # a file's faults are told with its name, so this is the output's
        _give_up_output()
        return _fail(f"standard output: {problem.strerror or problem}", SERVICE_FAILED)


def build_parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="letterwise",
        description="Ask a Letterwise server typed questions about a state, or chat with its model.",
        epilog=EXAMPLE,
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"letterwise {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_command(commands, "decide", decide, "answer the questions of a request file")
    _add_command(commands, "stream", stream, "the same, showing each answer the moment it is read")
    _add_command(commands, "prewarm", prewarm, "read the state of a request file before its questions are asked")
    talking = _add_command(
        commands,
        "chat",
        chat,
        "answer one question, or hold a conversation",
        takes_file=False,
        timeout_seconds=conversation.TIMEOUT_SECONDS,
    )
    conversation.add_arguments(talking)
    _add_command(commands, "info", info, "show the served model, its limits and versions", takes_file=False)
    return parser


def decide(options: argparse.Namespace) -> None:
    """Prints all answers together."""
    body = _body(options)
    with _client(options) as client:
        decision = _asked(options, body, lambda: client.decide(**_request(body)))
    if options.json:
        _print_json(jev.reply(decision, body.ignored))
    else:
        _show(decision_events(decision))


def stream(options: argparse.Namespace) -> None:
    """Prints each answer as it comes, or with --json the whole reply at the end."""
    body = _body(options)
    with _client(options) as client:
        if options.json:
            events = _asked(options, body, lambda: list(client.decide_stream(**_request(body))))
            _print_json(jev.reply(gather(events, list(body.questions)), body.ignored))
        else:
            count = len(body.questions if body.ask is None else set(body.ask))
            _asked(options, body, lambda: _show(client.decide_stream(**_request(body)), count))


def prewarm(options: argparse.Namespace) -> None:
    """Prints what was read and whether it is kept."""
    keywords = _readable(options, lambda: jev.read_prewarm(_file(options)))
    with _client(options) as client:
        try:
            read = client.prewarm(**keywords)
        except InvalidRequest as refused:
            raise _wrong_file(options, str(refused)) from None
    if options.json:
        _print_json(asdict(read))
        return
    kept = "kept" if read.stored else "not kept"
    print(f"{shown(read.model)}: {read.prompt_tokens} tokens, {read.reused_tokens} reused, {kept} (tier {read.tier})")


def chat(options: argparse.Namespace) -> None:
    """Prints the reply to one question as it comes, or holds a conversation in a terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end a reply
    question = _question(options)
    with _client(options) as client:
        talk = Conversation(client, conversation.settings_of(options), options.system)
        try:
            if question is None:
                conversation.talk(client, talk, Page(sys.stdout))
            elif options.json:
                _print_json(conversation.reply_document(talk.reply(question, lambda piece: None)))
            else:
                Page(sys.stdout).answer(talk, question)
        except InvalidRequest as refused:
            raise UsageError(shown(conversation.in_flags(refused))) from None


def info(options: argparse.Namespace) -> None:
    """Prints the server's description."""
    with _client(options) as client:
        found = asdict(client.info())
    if options.json:
        _print_json(found)
        return
    for part, fields in found.items():
        print(part.replace("_", " "))
        for name, value in fields.items():
            print(f"  {name.replace('_', ' '):<24} {_told(value)}")


def _told(value: object) -> object:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else value


def _question(options: argparse.Namespace) -> str | None:
    """The one question to answer; None for a conversation, which needs a terminal on both sides."""
    question: str | None = options.question
    if question is None and sys.stdin is not None and sys.stdin.isatty():
        if options.json or not sys.stdout.isatty():
            raise UsageError("a conversation is held in a terminal, without --json: give a question")
        return None
    if question in (None, "-"):
        try:
            question = _standard_input().decode().rstrip("\n")
        except UnicodeDecodeError:
            raise UsageError(f"{STANDARD_INPUT}: expected UTF-8 text") from None
    if not question.strip():
        raise UsageError("expected a question")
    return question


def _add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    *,
    takes_file: bool = True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    if takes_file:
        command.add_argument("file", metavar="FILE", help=FILE_HELP)
    command.add_argument(
        "--server", type=_address, default=DEFAULT_TARGET, metavar="ADDR", help="host:port (default: %(default)s)"
    )
    command.add_argument("--json", action="store_true", help="print JSON; for a decision, the Jev reply")
    command.add_argument(
        "--timeout",
        type=_seconds,
        default=timeout_seconds,
        metavar="SECONDS",
        help="deadline of the call (default: %(default)g)",
    )
    command.add_argument("--tls", action="store_true", help="TLS to the server; each of the next three turns it on too")
    command.add_argument("--tls-ca", metavar="FILE", help="the authority of the server's certificate, PEM")
    command.add_argument("--tls-certificate", metavar="FILE", help="this side's certificate, PEM, for mutual TLS")
    command.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")
    command.set_defaults(run=run)
    return command


def _seconds(text: str) -> float:
    try:
        return deadline(float(text))
    except (ValueError, InvalidRequest):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of seconds above 0") from None


def _address(text: str) -> str:
    try:
        return address(text)
    except InvalidRequest:
        raise argparse.ArgumentTypeError(f"{text!r}: expected host:port, such as {DEFAULT_TARGET}") from None


def _client(options: argparse.Namespace) -> Client:
    tls = Tls(options.tls_ca, options.tls_certificate, options.tls_key)
    secure = options.tls or tls != Tls()
    token = os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Client(options.server, timeout_seconds=options.timeout, token=token, tls=tls if secure else None)
    except InvalidRequest as refused:
        raise UsageError(shown(_in_flags(refused))) from None


def _in_flags(refused: InvalidRequest) -> str:
    """A refusal of the connection's arguments, told with their names on the command line."""
    names = {"token": TOKEN_VARIABLE, "tls": "--tls-certificate, --tls-key"}
    names |= {f"tls.{part}": f"--tls-{part}" for part in ("ca", "certificate", "key")}
    return "; ".join(f"{names.get(each.field, each.field)}: {each.description}" for each in refused.violations)


def _file(options: argparse.Namespace) -> dict[str, Any]:
    try:
        return jev.parse(_standard_input() if options.file == "-" else Path(options.file).read_bytes())
    except OSError as problem:
        raise UsageError(f"{options.file}: {problem.strerror}") from None


def _standard_input() -> bytes:
    """All of it."""
    if sys.stdin is None:
        raise UsageError(f"{STANDARD_INPUT}: is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as problem:
        raise UsageError(f"{STANDARD_INPUT}: {problem.strerror}") from None


def _body(options: argparse.Namespace) -> jev.Body:
    """The request, with a line about its fields that nothing reads."""
    body = _readable(options, lambda: jev.read_body(_file(options)))
    if body.ignored:
        print(f"ignored: {', '.join(shown(name) for name in body.ignored)}", file=sys.stderr)
    return body


def _readable(options: argparse.Namespace, read: Callable[[], Result]) -> Result:
    try:
        return read()
    except jev.BodyError as problem:
        raise _wrong_file(options, str(problem)) from None


def _wrong_file(options: argparse.Namespace, problem: str) -> UsageError:
    return UsageError(shown(f"{STANDARD_INPUT if options.file == '-' else options.file}: {problem}"))


def _request(body: jev.Body) -> dict[str, Any]:
    """A body as the keywords of `Client.decide`."""
    return {
        "state": body.state,
        # as a list, so that a refusal names them by place, for `_asked` to tell where the file has them
        "questions": list(body.questions.values()),
        "samples": body.samples,
        "ask": body.ask,
        "adapter": body.adapter,
        "service_class": body.service_class,
        "model": body.model,
    }


def _asked(options: argparse.Namespace, body: jev.Body, ask: Callable[[], Result]) -> Result:
    """What `ask` gives; a request that is refused is the file's fault, told in the file's own paths."""
    try:
        return ask()
    except InvalidRequest as refused:
        named = [f"{jev.field_path(each.field, body)}: {each.description}" for each in refused.violations]
        raise _wrong_file(options, "; ".join(named) or str(refused)) from None


def _show(events: Iterable[Event], questions: int | None = None) -> None:
    display = open_display(sys.stdout, questions)
    try:
        for event in events:
            display.show(event)
    finally:
        display.close()


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2))


def _give_up_output() -> None:
    """Nothing more can be written, and the flush at exit must not complain of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, code: int) -> int:
    print(f"letterwise: {sentence}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
