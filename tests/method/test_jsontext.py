"""Reading JSON text: what it costs those who have nothing to do with it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from letterwise_service.errors import MalformedBody
from letterwise_service.method import jsontext


class Finalized:
    """Garbage that the collector alone finds, and whose finalizer takes a few frames."""

    ended = 0

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self._end()

    @classmethod
    def _end(cls) -> None:
        cls.ended += 1


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector, with nothing of other tests to look at, put back as it was."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_text_costs_no_finalizer(opening: str, collector: None) -> None:
    """Wherever in the text the collector runs, what it finalizes has the frames that it needs."""
    made, before = 0, Finalized.ended
    for allocations in range(850, 1050, 2):
        gc.collect()
        gc.disable()
        made += len([Finalized() for _ in range(3)])
        gc.set_threshold(gc.get_count()[0] + allocations)
        gc.enable()
        with pytest.raises(MalformedBody, match="nested at most 100 deep"):
            jsontext.parse(opening * 20_000)
    gc.collect()
    assert Finalized.ended - before == made


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 401 + "]" * 401, "nested at most 100 deep"),
        ('{"a\\"[":' * 401, "nested at most 100 deep"),
        ("[" * 401, "nested at most 100 deep"),
        ('"' + "[" * 500, "Unterminated string"),
        ('["\\' + "{" * 500, "Invalid"),
        ("[" * 400, "expected JSON: Expecting value"),
    ],
)
def test_text_that_cannot_be_read_says_why(text: str, sentence: str) -> None:
    with pytest.raises(MalformedBody, match=sentence):
        jsontext.parse(text)


@pytest.mark.parametrize(
    "text", ["[" * 400 + "]" * 400, '["' + "[{" * 999 + '"]', "[" + "[]," * 999 + "{}]", '"\\"[["']
)
def test_brackets_that_do_not_nest_are_read(text: str) -> None:
    """Those in strings, beside each other, and up to the bound."""
    assert jsontext.parse(text)
