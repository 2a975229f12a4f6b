"""Bodies by HTTP: packed ones, large ones, slow ones, and text that is no sound JSON. Never a 500."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable

import pytest
from backports import zstd

from letterwise_service.server import http_bodies

from .web import TICKET, Web, told

LIMIT = 2**20  # of the servers of these tests
PLAIN = json.dumps(TICKET).encode()


pytestmark = pytest.mark.asyncio(loop_scope="module")


PACKED: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("zstd", zstd.compress),
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP", gzip.compress),
    ("identity", bytes),
    ("zstd", lambda body: zstd.compress(body[:99]) + zstd.compress(body[99:])),
    ("gzip", lambda body: gzip.compress(body[:99]) + gzip.compress(body[99:])),
]


@pytest.mark.parametrize(("encoding", "pack"), PACKED)
async def test_packed_body_is_the_plain_one(web: Web, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """Whatever it is packed with, in one member or two."""
    plain = await web.post(PLAIN)
    packed = await web.post(pack(PLAIN), headers={"content-encoding": encoding})
    assert packed.status_code == 200
    assert packed.json()["answers"] == plain.json()["answers"]


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd, gzip", "none"])
async def test_unknown_encoding_is_415(web: Web, encoding: str) -> None:
    """And says which there are."""
    reply = await web.post(PLAIN, headers={"content-encoding": encoding})
    assert "gzip, zstd" in told(reply, 415)["message"]
    assert reply.headers["accept-encoding"] == "gzip, zstd"


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("spoil", [lambda body: body[:-5], lambda body: b"no " + body, lambda body: body + b"rest"])
async def test_spoiled_packing_is_400(web: Web, encoding: str, spoil: Callable[[bytes], bytes]) -> None:
    """Cut short, not packed at all, or with something after its end."""
    pack = gzip.compress if encoding == "gzip" else zstd.compress
    told(await web.post(spoil(pack(PLAIN)), headers={"content-encoding": encoding}), 400)


async def test_bomb_is_refused_unpacked_no_further_than_the_limit(web: Web) -> None:
    """Sixty-four megabytes in a small body cost the limit and no more, whichever packing."""
    for encoding, pack in (("zstd", zstd.compress), ("gzip", gzip.compress)):
        bomb = pack(b" " * (64 * 2**20))
        assert len(bomb) < LIMIT
        began = time.process_time()
        told(await web.post(bomb, headers={"content-encoding": encoding}), 413)
        assert time.process_time() - began < 0.2
    assert (await web.post(TICKET)).status_code == 200


@pytest.mark.parametrize("size", [LIMIT + 1, 6 * LIMIT])
async def test_large_body_is_413(web: Web, size: int) -> None:
    """With a declared length or in chunks, the caller hears of it, and the connection ends with it."""
    body = b" " * size
    reply = await web.post(body)
    assert str(LIMIT) in told(reply, 413)["message"]
    assert reply.headers["connection"] == "close"

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, size, 2**16):
            yield body[start : start + 2**16]

    if size < 2 * LIMIT:  # past what is read of it, a caller that is still sending may see the end first
        told(await web.client.post("/v1/systemone", content=chunks()), 413)
    assert (await web.post(TICKET)).status_code == 200


async def test_large_body_that_waits_to_be_asked_for_is_refused_unread(web: Web) -> None:
    """`Expect: 100-continue` gets the refusal in place of the word to go on."""
    head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: {9 * LIMIT}\r\nExpect: 100-continue\r\n\r\n"
    reader, _ = await web.raw(head.encode())
    reply = await asyncio.wait_for(reader.read(), 30)
    assert reply.startswith(b"HTTP/1.1 413 ")


async def test_slow_body_is_408(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who stops sending is not waited for; the connection is free again."""
    monkeypatch.setattr(http_bodies, "BODY_SECONDS", 0.2)
    reader, _ = await web.raw(b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    reply = await asyncio.wait_for(reader.read(), 30)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b'"code":408' in reply


DEEP = "[" * 102 + "]" * 102
MALFORMED: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "expected JSON"),
    ("no JSON", b"state: s", "expected JSON"),
    ("cut", b'{"state": "s', "expected JSON"),
    ("more", b"{} {}", "expected JSON"),
    ("a list", b"[]", "object"),
    ("null", b"null", "object"),
    ("no UTF-8", b'{"state": "\xff"}', "UTF-8"),
    ("UTF-16", '{"state": "s"}'.encode("utf-16"), "UTF-8"),
    ("a BOM", b"\xef\xbb\xbf{}", "expected JSON"),
    ("far too deep", b'{"state": ' + b"[" * 200_000, "deep"),
]
# What is in the state, or stands in its place.
INVALID: list[tuple[str, str, str]] = [
    ("too deep", DEEP, "deep"),
    ("NaN", "[NaN]", "finite"),
    ("1e400", '[{"n": -1e400}]', "finite"),
    ("a long integer", f"[{'9' * 5000}]", "digits"),
    ("half a pair", '"\\ud800"', "surrogate"),
    ("half a pair as a key", '"s", "\\ud800": 1', "surrogate"),
    ("a key twice in it", '[{"a": 1, "a": 2}]', "keys differ"),
    ("twice", '"s", "STATE": "t"', "once"),
]
ROUTES = {
    "/v1/systemone": '{"state": STATE, "questions": {"q": {"type": "noul", "instructions": "?"}}}',
    "/v1/prewarm": '{"state": STATE}',
    "/v1/decisions": '{"input": STATE, "questions": [{"type": "predicate", "instructions": "?"}]}',
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("body", "words"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
async def test_malformed_body_is_400(web: Web, path: str, body: bytes, words: str) -> None:
    """On every route, with where the text stops being JSON; it is never quoted."""
    assert words in told(await web.post(body, path), 400)["message"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("state", "words"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
async def test_invalid_body_is_422(web: Web, path: str, state: str, words: str) -> None:
    """What JSON's text allows and a request does not, on every route, with the field."""
    field = "input" if path == "/v1/decisions" else "state"
    body = ROUTES[path].replace("STATE", state.replace("STATE", field), 1)
    error = told(await web.post(body.encode(), path), 422)
    assert any(words in violation["description"] for violation in error["field_violations"])
    assert all(violation["field"] for violation in error["field_violations"])


async def test_repeated_questions_and_none_are_422(web: Web) -> None:
    """A question given twice is named; a body without any is refused."""
    twice = told(await web.post(b'{"state": "s", "questions": {"q": {}, "q": {}}}'), 422)
    assert twice["field_violations"][0] == {
        "field": "questions.q",
        "description": "expected this key once, not repeated",
    }
    assert "at least one question" in told(await web.post({"state": "s", "questions": {}}), 422)["message"]


async def test_body_of_several_parts_says_that_images_are_not_read(web: Web) -> None:
    """The form in which images travel."""
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert "images" in told(await web.post(b"--x--", headers=headers), 400)["message"]


async def test_content_type_is_not_asked_for(web: Web) -> None:
    """What a plain `curl --data` says of its body is not believed."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert (await web.post(TICKET, headers=headers)).status_code == 200
