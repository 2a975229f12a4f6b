"""The text of a reply: whole characters, stop texts wherever the tokens' borders lie."""

from __future__ import annotations

import pytest

from letterwise_service.engine.chat.replying import ReplyText
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()  # one token per byte


def shown(text: str, *stops: str) -> tuple[list[str], ReplyText]:
    """What each byte of `text` lets be shown, and then the end, if no stop text came."""
    reply = ReplyText(TOKENIZER.detokenizer, stops)
    found = []
    for token in TOKENIZER.encode(text, add_special_tokens=False):
        found.append(reply.add(token))
        if reply.stopped:
            return found, reply
    return [*found, reply.end()], reply


def test_reply_without_stops_is_the_text() -> None:
    """Every character comes with its last byte, and none before."""
    found, reply = shown("é 🙂 word\n")
    assert "".join(found) == "é 🙂 word\n"
    assert found[:2] == ["", "é"]
    assert "\ufffd" not in "".join(found)
    assert not reply.stopped


@pytest.mark.parametrize(
    ("text", "stops", "kept"),
    [
        ("one STOP two", ("STOP",), "one "),
        ("one STOP", ("STOP",), "one "),
        ("STOP", ("STOP",), ""),
        ("one SSTOP two", ("STOP",), "one S"),
        ("one STSTOP two", ("STOP",), "one ST"),
        ("aaab", ("aab",), "a"),
        ("one END two STOP", ("STOP", "END"), "one "),
        ("xabcd", ("abcd", "bc"), "xa"),
        ("eins 🙂 zwei", ("🙂",), "eins "),
        ("x\n\ny", ("\n\n",), "x"),
    ],
)
def test_stop_text_ends_the_reply(text: str, stops: tuple[str, ...], kept: str) -> None:
    """Nothing of a stop text is ever shown, whole or begun, and all before it is."""
    found, reply = shown(text, *stops)
    assert reply.stopped
    assert "".join(found) == kept


def test_text_that_only_begins_a_stop_is_shown_in_the_end() -> None:
    """What was held back comes as soon as it can be no stop text any more, or when nothing follows."""
    found, reply = shown("a STOMP ST", "STOP")
    assert not reply.stopped
    assert found[:6] == ["a", " ", "", "", "", "STOM"]
    assert found[-1] == "ST"
    assert "".join(found) == "a STOMP ST"


def test_half_a_character_at_the_end_is_marked() -> None:
    """A reply that is cut inside a character shows that there was one."""
    reply = ReplyText(TOKENIZER.detokenizer, ())
    first = TOKENIZER.encode("é", add_special_tokens=False)[0]
    assert reply.add(first) == ""
    assert reply.end() == "\ufffd"
