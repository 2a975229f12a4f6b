"""Hostile HTTP requests, each made of a number, as the bytes that go on the wire.

Most begin as a sound request and are changed in its method, path, headers, encoding and framing; what a body holds is
`mutant_bodies.py`'s. Pure; the same draws make the same request. Knows nothing of what a server says to it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

from .mutant_bodies import MOST_BODY_BYTES, json_body, packed

ROUTES = ("/v1/systemone", "/systemone", "/v1/decisions", "/v1/prewarm", "/prewarm")
WATCHES = ("/v1/models", "/healthz", "/readyz", "/metrics")
_PATHS = (
    *("/", "*", "//v1/systemone", "/v1/systemone/", "/V1/SystemOne", "/v1/systemone?x=%00&y", "/v1/../metrics"),
    *("http://elsewhere/v1/systemone", "/%ff%fe%00", "/v1/systemone%2f"),
    *("/" + "a" * 4000, "/v1/models?" + "q=1&" * 200),
)
_METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "post", "BREW", "M-SEARCH")
_HEADERS = (
    b"Content-Type: text/plain",
    b"Content-Type: multipart/form-data; boundary=x",
    b"Content-Type: application/json; charset=utf-16",
    b"Content-Type: ;;;",
    b"Accept: text/event-stream",
    b"Accept: text/event-stream;q=0, */*",
    b"Accept: text/event-stream;q=nan",
    b"Accept: " + b"a/b," * 500,
    b"Accept-Encoding: gzip",
    b"Authorization: Bearer ",
    b"Authorization: Basic \xff\xfe",
    b"X-Request-Id: " + b"x" * 3000,
    b'X-Request-Id: \xe6\x97\xa5 \\ " = %00',
    b"traceparent: 00-zz-00-01",
    b"traceparent: 00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-ff",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"X-HTTP-Method-Override: DELETE",
    b"Cookie: " + b"a=b; " * 300,
    b"Range: bytes=0-0,-1",
    b"Expect: 100-continue",
)
_ENCODINGS = (b"br", b"deflate", b"identity", b"GZIP", b"gzip, zstd", b"zstd;q=1", b"", b"\xff")
# Heads and framings that no parser may take; the connection ends with them.
_BROKEN = (
    b"POST /v1/systemone HTTP/1.1\r\n\r\n",
    b"POST /v1/systemone HTTP/9.9\r\nHost: x\r\n\r\n",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n{}\r\n",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nX: \x00\r\n\r\n",
    b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
    b"POST /v1/system one HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 40_000,
    b"GET /healthz\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\r\n\r\n\r\n\r\n",
)


@dataclass(frozen=True)
class HttpCase:
    """The bytes of one request. `whole`: its framing is sound, so that one reply must come and the connection stays."""

    method: str
    data: bytes
    whole: bool = True


def http_case(draw: Random) -> HttpCase:
    """One request, of every kind."""
    kind = draw.random()
    if kind < 0.04:
        return HttpCase("", draw.choice(_BROKEN), whole=False)
    if kind < 0.06:
        return HttpCase("", draw.randbytes(draw.randrange(1, 400)), whole=False)
    path = draw.choice(ROUTES) if draw.random() < 0.93 else draw.choice((*_PATHS, *WATCHES))
    method = "POST" if draw.random() < 0.94 else draw.choice(_METHODS)
    body, encoding = _encoded(draw, json_body(draw, path))
    body = body[:MOST_BODY_BYTES]
    headers = [b"Host: x", *draw.sample(_HEADERS, draw.choice((0, 0, 0, 1, 2)))]
    if encoding is not None:
        headers.append(b"Content-Encoding: " + encoding)
    return _framed(draw, method, path, headers, body)


def _encoded(draw: Random, body: bytes) -> tuple[bytes, bytes | None]:
    """The body in a `Content-Encoding`, which is sometimes not the one that is named."""
    if draw.random() < 0.75:
        return body, None
    name = draw.choice(("gzip", "zstd"))
    named = name.encode() if draw.random() < 0.85 else draw.choice(_ENCODINGS)
    if draw.random() < 0.1:
        return body, named
    bomb = b"\x00" * draw.choice((300_000, 4_000_000))
    return packed(draw, bomb if draw.random() < 0.05 else body, name), named


def _framed(draw: Random, method: str, path: str, headers: list[bytes], body: bytes) -> HttpCase:
    """The request on the wire: with a length, in chunks, or torn off."""
    kind = draw.random()
    if kind < 0.1:
        headers.append(b"Transfer-Encoding: chunked")
        cuts = sorted({0, len(body), *(draw.randrange(len(body) + 1) for _ in range(3))})
        pieces = [body[start:end] for start, end in itertools.pairwise(cuts)]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        length = len(body) + (draw.randrange(1, 2000) if kind < 0.12 else 0)
        headers.append(b"Content-Length: %d" % length)
        sent = body
    version = b"HTTP/1.0" if draw.random() < 0.02 and kind >= 0.1 else b"HTTP/1.1"
    head = b" ".join((method.encode(), path.encode("latin-1"), version))
    data = b"\r\n".join((head, *headers, b"", b"")) + sent
    if 0.12 <= kind < 0.13:
        return HttpCase(method, data * 3, whole=False)  # all at once, and then an end
    return HttpCase(method, data, whole=not 0.1 <= kind < 0.12)
