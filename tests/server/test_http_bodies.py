"""Unpacking alone: what it stops at, and what it costs to be refused."""

from __future__ import annotations

import gzip
import time
import zlib

import pytest
from backports import zstd
from starlette.exceptions import HTTPException

from letterwise_service.errors import MalformedBody
from letterwise_service.server.http_bodies import unpack


def test_unpacking_stops_at_the_limit_exactly() -> None:
    """A body of the limit passes; one byte more does not; and many members are not read one by one."""
    for name, pack in (("zstd", zstd.compress), ("gzip", gzip.compress)):
        assert unpack(pack(b"x" * 1000), name, 1000) == b"x" * 1000
        with pytest.raises(HTTPException) as caught:
            unpack(pack(b"x" * 1001), name, 1000)
        assert caught.value.status_code == 413
        began = time.process_time()
        with pytest.raises(MalformedBody, match="members"):
            unpack(pack(b"") * 100_000, name, 2**24)
        assert time.process_time() - began < 0.5
    with pytest.raises(MalformedBody):
        unpack(zlib.compress(b"x"), "gzip", 1000)


def test_zstd_window_is_bounded_by_what_may_be_there() -> None:
    """A frame that wants a window of 128 MiB is refused before one is made; one of the limit's size is read."""
    wide = zstd.compress(b"x" * 2**25, options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(MalformedBody):
        unpack(wide, "zstd", 2**20)
    assert len(unpack(wide, "zstd", 2**27)) == 2**25
