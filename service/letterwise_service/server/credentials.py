"""The bearer tokens that callers must show, and the one check of both front ends.

Owns the tokens: read from a file, reread when it changes. Only their SHA-256 is kept, and a caller's is compared with
every one in constant time. Runs on the event loop. Knows nothing of gRPC or HTTP, nor of who may do what: a caller
with a known token may do everything.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .. import metrics
from ..config_file import ConfigError
from ..errors import Unauthenticated
from . import logs
from .watching import Watch

_log = logging.getLogger(__name__)

# The characters of RFC 6750; none of them is the colon that ends a name.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADER = re.compile(r"bearer +([^\s]+) *", re.IGNORECASE)
# One sentence for a header that is missing, malformed or unknown: a caller who guesses learns nothing.
_REFUSAL = "a known bearer token is needed: authorization: Bearer TOKEN"


class Credentials:
    """The known tokens, by digest, each with its name. Without a file any caller is taken, with a token or without."""

    def __init__(self, path: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError for a file that cannot be read, holds no token, or a line that is none."""
        self._path = path
        self._watch = Watch([path] if path else [], clock)
        self._tokens: Mapping[bytes, str] = _read(path) if path else {}

    @property
    def required(self) -> bool:
        """Whether callers must show a token."""
        return self._path is not None

    def check(self, header: str | None) -> None:
        """Takes the `authorization` of a call, None when it has none or several. Raises Unauthenticated.

        The name of the token that was shown goes into every later log line of the call.
        """
        if not self.required:
            return
        if self._watch.changed():
            self.reload()
        name = self._named(header)
        if name is None:
            metrics.unauthenticated()
            raise Unauthenticated(_REFUSAL)
        logs.caller.set(name)

    def reload(self) -> None:
        """Reads the file again; tokens that cannot be had leave the old ones in force, and an error in the log."""
        if self._path is None:
            return
        self._watch.moved()
        try:
            self._tokens = _read(self._path)
        except ConfigError as error:
            metrics.reloaded("tokens", kept=True)
            _log.error("the old tokens stay in force", extra={"reason": str(error)})
        else:
            metrics.reloaded("tokens", kept=False)
            _log.info("tokens read", extra={"tokens": len(self._tokens)})

    def _named(self, header: str | None) -> str | None:
        shown = _HEADER.fullmatch(header or "")
        digest = _digest(shown[1] if shown else "")
        found = None
        for known, name in self._tokens.items():
            # No early end: the time says nothing of which token is near, or where it stands.
            if hmac.compare_digest(digest, known):
                found = name
        return found if shown else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _read(path: str) -> dict[bytes, str]:
    """The digests of a file's tokens. A message names the line, never what it holds."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"token_file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"token_file: {path} is not UTF-8 text") from None
    tokens: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (entry := line.strip()) and not entry.startswith("#"):
            name, token = _entry(entry, f"token_file: line {number} of {path}", len(tokens) + 1)
            tokens[_digest(token)] = name
    if not tokens:
        raise ConfigError(f"token_file: {path} holds no token")
    return tokens


def _entry(entry: str, place: str, number: int) -> tuple[str, str]:
    name, colon, token = (part.strip() for part in entry.rpartition(":"))
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{place} is no token: expected letters, digits and . _ ~ + / -, after name: or alone")
    if colon and not _NAME.fullmatch(name):
        raise ConfigError(f"{place} has no name before its colon: expected up to 64 letters, digits and . _ -")
    return (name if colon else f"token-{number}"), token
