"""A request's body: read within its limit and its time, and unpacked within the same limit.

Owns what `Content-Encoding` may be and how much is read of what is refused. A small body that would unpack to a huge
one is stopped at the limit, so it costs no more than an honest one. Runs on the event loop; unpacking on any thread.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from backports import zstd
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..errors import MalformedBody

# Sixteen megabytes come in this time at two megabits a second.
BODY_SECONDS = 60.0
# Of what is too large, so much is read and dropped: a caller that is still sending does not see the refusal.
_DROPPED_TIMES = 4
# What every decoder must be able to hold of a frame, 8 MiB (RFC 8878, section 3.1.1.1.2); a larger body may need more.
_ZSTD_WINDOW_LOG = 23
_GZIP_WBITS = 16 + zlib.MAX_WBITS
# Each member is read from a copy of what is left, so that many small ones would cost more than they hold.
_MOST_MEMBERS = 64
ENCODINGS = ("gzip", "zstd")
# What is left of the body would be taken for the next request.
_CLOSE = {"connection": "close"}


class _Unpacker(Protocol):
    """One member of a packed body. At its end `unused_data` is what comes after."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The body as it was sent, still packed.

    Raises HTTPException: 413 when it is larger than the limit, 408 when it takes too long to come; and
    starlette's ClientDisconnect.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read(request, limit_bytes)
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_SECONDS:g} s", _CLOSE) from None


def unpack(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """The body without its `Content-Encoding`.

    Raises HTTPException: 415 for an encoding that is not known, or several, 413 for a body that is larger than the
    limit; and MalformedBody for one that is not what its header says.
    """
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            return _unpacked(body, lambda: zlib.decompressobj(_GZIP_WBITS), limit_bytes)
        case "zstd":
            window_log = max(_ZSTD_WINDOW_LOG, (limit_bytes - 1).bit_length())
            options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
            return _unpacked(body, lambda: zstd.ZstdDecompressor(options=options), limit_bytes)
    known = ", ".join(ENCODINGS)
    raise HTTPException(415, f"expected a Content-Encoding of {known} or none", {"accept-encoding": known})


async def _read(request: Request, limit_bytes: int) -> bytes:
    declared = _declared_bytes(request)
    if declared > limit_bytes and "expect" in request.headers:
        raise _too_large(limit_bytes)  # it waits to be told, and has sent nothing
    chunks: list[bytes] = []
    size, most = 0, _DROPPED_TIMES * limit_bytes
    async with aclosing(request.stream()) as stream:
        async for chunk in stream:
            size += len(chunk)
            if size > most:
                break
            if size <= limit_bytes >= declared:
                chunks.append(chunk)
    if max(size, declared) > limit_bytes:
        raise _too_large(limit_bytes)
    return b"".join(chunks)


def _declared_bytes(request: Request) -> int:
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _too_large(limit_bytes: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit_bytes} bytes, unpacked or not", _CLOSE)


def _unpacked(body: bytes, unpacker: Callable[[], _Unpacker], limit_bytes: int) -> bytes:
    """Every member of the body, one after another, until the body or the room ends."""
    parts: list[bytes] = []
    room = limit_bytes + 1  # one byte more than may be there tells that there is more
    for _ in range(_MOST_MEMBERS + 1):
        if not body:
            return b"".join(parts)
        member = unpacker()
        try:
            parts.append(member.decompress(body, room))
        except (zlib.error, zstd.ZstdError):
            raise MalformedBody("the body is not packed as its Content-Encoding says") from None
        room -= len(parts[-1])
        if room <= 0:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise MalformedBody("the packed body ends too early")
        body = member.unused_data
    raise MalformedBody("the packed body has too many members")
