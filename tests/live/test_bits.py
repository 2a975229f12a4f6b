"""The same request gives the same numbers, bit for bit, whatever else happens and whichever way it goes in."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from letterwise import Client, Decision, DecisionStream, gather, jev

from . import material
from .processes import COMMAND, Server, Spare

pytestmark = pytest.mark.live
BODY = material.mixed(material.letters_of(material.LONG_LINES, year=2019))
BESIDE = [material.twenty(material.letters_of(material.LONG_LINES, year=year)) for year in (2017, 2018)]


@pytest.fixture(scope="module")
def cold(server: Server) -> Decision:
    """The decision on a state that the server has not seen, with nothing beside it."""
    with server.client(timeout_seconds=300) as client:
        decision = client.decide(**material.call(BODY))
    assert decision.diagnostics.prefix.reused_tokens == 0
    assert decision.diagnostics.prefix.stored
    return decision


def test_kept_state_gives_the_cold_numbers(cold: Decision, client: Client) -> None:
    """The second time the whole prefix is reused, and every probability and letter mass is the same."""
    kept = client.decide(**material.call(BODY))
    assert kept.diagnostics.prefix.reused_tokens == kept.diagnostics.prefix.tokens > 600
    assert kept.answers == cold.answers
    assert kept.skipped == cold.skipped


@pytest.mark.parametrize("question", BODY["questions"])
def test_question_alone_gives_the_numbers_it_has_among_others(question: str, cold: Decision, client: Client) -> None:
    """What else is asked in the request changes nothing."""
    found = client.decide(**material.call(material.alone(BODY, question)))
    assert found.answers == {id: cold.answers[id] for id in found.answers}
    assert question in found.answers


def test_streamed_events_together_are_the_unary_reply(cold: Decision, client: Client) -> None:
    """The answers as they come are those that come together; only times and what was reused may differ."""
    streamed = gather(client.decide_stream(**material.call(BODY)), list(BODY["questions"]))
    assert streamed.answers == cold.answers
    assert list(streamed.answers) == list(cold.answers)
    assert streamed.usage == cold.usage
    assert streamed.model == cold.model


def test_prewarmed_state_gives_the_cold_numbers(cold: Decision, spare: Spare) -> None:
    """Another server process that read the state beforehand computes only the questions, to the same bits."""
    with spare.get().client(timeout_seconds=300) as client:
        read = client.prewarm(BODY["state"])
        found = client.decide(**material.call(BODY))
    assert read.reused_tokens == 0
    assert found.diagnostics.prefix.reused_tokens == read.prompt_tokens == found.diagnostics.prefix.tokens
    assert found.answers == cold.answers


def test_two_decisions_in_flight_change_nothing(client: Client, spare: Spare) -> None:
    """Read cold between the steps of two larger decisions, the numbers are those of the quiet server."""
    body = material.mixed(material.letters_of(material.LONG_LINES, year=2016))
    quiet = client.decide(**material.call(body))
    with spare.get().client(timeout_seconds=300) as busy:
        streams = [busy.decide_stream(**material.call(beside)) for beside in BESIDE]
        ended = [threading.Event() for _ in streams]
        readers = [
            threading.Thread(target=_read, args=(stream, end)) for stream, end in zip(streams, ended, strict=True)
        ]
        for stream, reader in zip(streams, readers, strict=True):
            assert next(stream).kind == "accepted"
            reader.start()
        found = busy.decide(**material.call(body))
        assert not all(end.is_set() for end in ended), "the others ended first, so nothing was beside"
        for stream in streams:
            stream.close()
        for reader in readers:
            reader.join()
    assert found.diagnostics.prefix.reused_tokens == 0
    assert found.answers == quiet.answers


def _read(stream: DecisionStream, ended: threading.Event) -> None:
    for _ in stream:
        pass
    ended.set()


def test_offline_command_line_gives_the_server_s_numbers(cold: Decision, tmp_path: Path) -> None:
    """`letterwise-service decide` prints the reply that the client makes of the server's, digit for digit."""
    file = tmp_path / "request.json"
    file.write_text(json.dumps(BODY))
    command = [COMMAND, "decide", str(file), "--model", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    offline: dict[str, Any] = json.loads(done.stdout)
    served = json.loads(json.dumps(jev.reply(cold)))
    assert offline["answers"] == served["answers"]
    assert offline["diagnostics"]["letter_mass"] == served["diagnostics"]["letter_mass"]
    assert offline["usage"] == served["usage"]
    assert offline["diagnostics"]["prefix"]["tier"] == "off"
