"""One HTTP connection that sends any bytes and reads whole replies: what a client library would not send.

On an event loop. Opened when it is first used, and again after the server has closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass


class TornOff(Exception):
    """The connection ended before a reply was whole."""


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection to a port of this machine, kept as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, data: bytes, *, last: bool = False) -> Reply:
        """Sends the bytes, and an end after the `last`, and reads one reply. Raises TornOff."""
        reader = await self._sent(data)
        if last:
            self._end()
        try:
            reply = await _reply(reader, method)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            raise TornOff from None
        if reply.headers.get("connection") == "close":
            self.close()
        return reply

    async def leave(self, data: bytes, after_seconds: float) -> None:
        """Sends the bytes and hangs up without reading."""
        await self._sent(data)
        await asyncio.sleep(after_seconds)
        self.close()

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _end(self) -> None:
        assert self._open is not None
        with contextlib.suppress(OSError):  # the server was first
            self._open[1].write_eof()

    async def _sent(self, data: bytes) -> asyncio.StreamReader:
        if self._open is None or self._open[0].at_eof():
            self.close()
            self._open = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        reader, writer = self._open
        with contextlib.suppress(ConnectionError):  # a refusal may have come before all was sent
            writer.write(data)
            await writer.drain()
        return reader


async def _reply(reader: asyncio.StreamReader, method: str) -> Reply:
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        if status >= 200:  # not a word on the way
            break
    headers = dict(_field(line) for line in lines[1:] if line)
    if method == "HEAD" or status in (204, 304):
        return Reply(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        return Reply(status, headers, await _chunks(reader))
    if "content-length" in headers:
        return Reply(status, headers, await reader.readexactly(int(headers["content-length"])))
    return Reply(status, {**headers, "connection": "close"}, await reader.read())


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
