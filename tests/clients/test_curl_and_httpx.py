"""`curl` and `httpx`: the routes from a shell, and over one kept connection."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.server.test_gateway_streams import parsed
from tests.server.web import TICKET

from .conftest import Served

curl_only = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")


def curl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["curl", "-sS", *arguments], capture_output=True, text=True, timeout=20, check=True)


@curl_only
def test_curl_asks_with_a_plain_and_a_packed_file(served: Served, tmp_path: Path) -> None:
    """`--data` with its own content type, and gzip; an error ends `curl --fail` with its code."""
    plain, packed = tmp_path / "ticket.json", tmp_path / "ticket.json.gz"
    plain.write_text(json.dumps(TICKET))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    route = f"{served.url}/v1/systemone"
    first = json.loads(curl("--fail", "--data", f"@{plain}", route).stdout)
    second = curl("--fail", "--data-binary", f"@{packed}", "-H", "Content-Encoding: gzip", route).stdout
    assert json.loads(second)["answers"] == first["answers"] != {}
    refused = curl("-w", "%{http_code}", "--data", "{}", route).stdout
    assert refused.endswith("422")


@curl_only
def test_curl_reads_the_events(served: Served) -> None:
    """Unbuffered, by their names."""
    told = curl("-N", "-H", "Accept: text/event-stream", "--data", json.dumps(TICKET), f"{served.url}/systemone").stdout
    events = parsed(told)
    assert [events[0][0], events[-1][0]] == ["accepted", "completed"]


@curl_only
def test_curl_waits_to_be_asked_for_a_large_body(served: Served, tmp_path: Path) -> None:
    """`Expect: 100-continue`, which it sends of itself with a large file: one that fits goes on, another is refused."""
    for size, status in ((2 * 2**20, "422"), (17 * 2**20, "413")):
        large = tmp_path / "large.json"
        large.write_text(json.dumps({"state": "x" * size}))
        route = f"{served.url}/v1/systemone"
        expecting = ("-H", "Expect: 100-continue")
        assert curl("-w", "%{http_code}", *expecting, "--data-binary", f"@{large}", route).stdout.endswith(status)


def test_httpx_asks_many_times_on_one_connection(served: Served) -> None:
    """Answers, refusals and probes in turn; the connection is kept."""
    ports = set()
    with httpx.Client(base_url=served.url) as client:
        for _ in range(3):
            reply = client.post("/v1/systemone", json=TICKET)
            assert reply.json()["answers"]
            ports.add(reply.extensions["network_stream"].get_extra_info("client_addr"))
            assert client.post("/v1/systemone", json={}).status_code == 422
            assert client.get("/readyz").status_code == 200
    assert len(ports) == 1


def test_httpx_reads_events_line_by_line(served: Served) -> None:
    """As a program does that shows each answer when it comes."""
    with httpx.stream(
        "POST", f"{served.url}/v1/systemone", json=TICKET, headers={"accept": "text/event-stream"}
    ) as reply:
        names = [line.removeprefix("event: ") for line in reply.iter_lines() if line.startswith("event: ")]
    assert names[0] == "accepted"
    assert names[-1] == "completed"
    assert names.count("answer") + names.count("skipped") == len(TICKET["questions"])
