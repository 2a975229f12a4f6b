"""`letterwise chat`: one question answered, or a conversation in a terminal.

Owns what was said, what a typed line means, and how a reply is shown while it comes. Nothing of a conversation is kept
on the server: each request carries all of it. Knows nothing of exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

from .chat import ChatMessage, ChatReply
from .client import Client
from .display import failure_sentence, shown
from .errors import AccessError, InvalidRequest, LetterwiseError, Unsupported
from .serving import Adapter

PROMPT = "> "
HELP = "/reset starts over, /exit or Ctrl-D ends, Ctrl-C stops a reply"
# a reply may take long on a slow machine, and whoever reads it stops it by hand
TIMEOUT_SECONDS = 600.0

# what a conversation cannot go on after: every further request would end the same way
_ENDS = (InvalidRequest, Unsupported, AccessError)
_SETTINGS = ("max_tokens", "temperature", "top_p", "seed", "stop", "adapter")
_COMMAND = re.compile(r"/[a-z]*")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The arguments of the command, the question among them."""
    command.add_argument(
        "question", nargs="?", metavar="TEXT", help="one question to answer; without it, a conversation"
    )
    command.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    command.add_argument(
        "--max-tokens", type=int, metavar="N", help="the most tokens of a reply (the server's default)"
    )
    command.add_argument("--temperature", type=float, metavar="T", help="0, the default, takes the likeliest token")
    command.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens of this probability")
    command.add_argument("--seed", type=int, metavar="N", help="draw the same way again")
    command.add_argument("--stop", action="append", default=[], metavar="TEXT", help="a text that ends a reply")
    command.add_argument(
        "--adapter", type=_adapter, metavar="NAME[=SCALE]", help="an adapter of the server, and how much of it"
    )


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments as the keywords of `Client.chat`."""
    return {name: getattr(options, name) for name in _SETTINGS}


def in_flags(refused: InvalidRequest) -> str:
    """A refusal in the words of the command: `--top-p` for `top_p`."""
    return "; ".join(f"{_flag(each.field)}: {each.description}" for each in refused.violations) or str(refused)


class Conversation:
    """What was said between the user and the model, and the settings of the replies."""

    def __init__(self, client: Client, settings: dict[str, Any], system: str | None = None) -> None:
        self._client = client
        self._settings = settings
        self._opening = [] if system is None else [ChatMessage("system", system)]
        self._said: list[ChatMessage] = []

    def reset(self) -> None:
        """Forgets what was said; the system message stays."""
        self._said.clear()

    def reply(self, text: str, show: Callable[[str], None]) -> ChatReply:
        """The model's reply to `text`; `show` is given each piece as it comes.

        However it ends, what has come is kept in the conversation; a question to which nothing came is not.
        """
        asked = [*self._said, ChatMessage("user", text)]
        with self._client.chat([*self._opening, *asked], **self._settings) as stream:
            try:
                for piece in stream.texts():
                    show(piece)
                return stream.finish()
            finally:
                if stream.text:
                    self._said = [*asked, ChatMessage("assistant", stream.text)]


def reply_document(reply: ChatReply) -> dict[str, Any]:
    """A reply as JSON has it; its tokens are left out."""
    return {name: value for name, value in asdict(reply).items() if name != "tokens"}


class Page:
    """Where replies are shown, piece by piece."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._line_is_open = False

    def write(self, piece: str) -> None:
        """Adds to the text; a terminal is given nothing that could drive it."""
        print(_harmless(piece) if self._out.isatty() else piece, end="", file=self._out, flush=True)
        self._line_is_open = not piece.endswith("\n")

    def say(self, *lines: str) -> None:
        """Ends the line that is open, if one is; then one line each."""
        for line in ([""] if self._line_is_open else []) + list(lines):
            print(line, file=self._out, flush=True)
        self._line_is_open = False

    def answer(self, conversation: Conversation, question: str) -> None:
        """Shows the reply to one question as it comes; however it ends, the line ends too."""
        try:
            reply = conversation.reply(question, self.write)
        except BaseException:
            self.say()
            raise
        cut = reply.finish_reason == "length" and self._out.isatty()
        self.say(*[f"(cut off after {reply.usage.output_tokens} tokens; --max-tokens N allows more)"] * cut)


def talk(client: Client, conversation: Conversation, page: Page) -> None:
    """Holds the conversation with whoever sits at the terminal, until the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` its editing and its history
    page.say(f"{shown(client.info().model.name)}: {HELP}")
    while (line := _line(page)) is not None:
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
            page.say("started over")
        elif _COMMAND.fullmatch(line):
            page.say(HELP)
        elif line:
            _turn(conversation, line, page)


def _turn(conversation: Conversation, line: str, page: Page) -> None:
    """One question and its reply; a reply that fails or is stopped leaves the conversation open."""
    try:
        page.answer(conversation, line)
    except KeyboardInterrupt:
        page.say("(stopped)")
    except _ENDS:
        raise
    except LetterwiseError as problem:
        print(f"letterwise: {failure_sentence(problem)}", file=sys.stderr)


def _line(page: Page) -> str | None:
    """What is typed next; None at the end of the input."""
    while True:
        try:
            # bytes that are no UTF-8 come as lone surrogates, which no request can hold
            return input(PROMPT).strip().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except KeyboardInterrupt:
            page.say("")
        except EOFError:
            page.say("")
            return None


def _harmless(text: str) -> str:
    """Text with nothing in it that could drive a terminal, its line breaks and tabs kept."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else f"\\x{ord(c):02x}" for c in text)


def _adapter(text: str) -> Adapter:
    name, given, scale = text.partition("=")
    try:
        return Adapter(name, float(scale)) if given else Adapter(name)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME or NAME=SCALE, such as tone=0.5") from None


def _flag(field: str) -> str:
    name = re.split(r"[.\[]", field)[0]
    return f"--{name.replace('_', '-')}" if name in _SETTINGS else field
