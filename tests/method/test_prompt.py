"""The words that the model reads, in both styles."""

from __future__ import annotations

from typing import Any

import pytest

from letterwise_service.method.decision import bound_passes
from letterwise_service.method.prompt import (
    LETTERS,
    PROMPT_FORMAT_VERSION,
    description_text,
    resolve_style,
    state_message,
    state_text,
)
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Score

PLAIN_CHOICE = """State:
A parcel arrived wet.

Question: Who should look?
Options:
A) claims: damage, refunds
B) nobody
C) driver: {"why": "é"}

Answer with the letter of the best option only."""

PLAIN_SCORE = """State:
A parcel arrived wet.

Question: How bad? Rate along the ordered levels below (lowest first).
Options:
A) 0: fine
B) 1
C) 2: [3, null]

Answer with the letter of the best option only."""

PLAIN_NOUL = """State:
A parcel arrived wet.

Question: Angry?
Options:
A) yes: The statement is true.
B) no: calm

Answer with the letter of the best option only."""


def test_letters_are_the_fifty_two() -> None:
    """Upper case first, then lower."""
    assert LETTERS == "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def test_plain_style_is_pinned_byte_for_byte() -> None:
    """The plain prompts of format version 1, for each kind of question."""
    options = (Option("claims", "damage, refunds"), Option("nobody"), Option("driver", {"why": "é"}))
    questions = (
        Choice("c", "Who should look?", options),
        Score("s", "How bad?", ("fine", None, [3, None])),
        Noul("n", "Angry?", yes="", no="calm"),
    )
    passes = bound_passes(DecisionRequest("A parcel arrived wet.", questions), style="plain")
    assert PROMPT_FORMAT_VERSION == 1
    assert [one.text for one in passes] == [PLAIN_CHOICE, PLAIN_SCORE, PLAIN_NOUL]
    assert [one.letters for one in passes] == [3, 3, 2]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", ""),
        ("  as it is\n", "  as it is\n"),
        ({"b": "é", "a": [1, None]}, '{"b": "é", "a": [1, null]}'),
        (["it's", None, True], '["it\'s", None, True]'),
        (3.0, "3.0"),
        (True, "True"),
        (10**30, "1" + "0" * 30),
    ],
)
def test_state_text_is_json_for_objects_and_python_for_the_rest(state: Any, text: str) -> None:
    """An object keeps its key order and characters; other values print as Python prints them."""
    assert state_text(state) == text
    assert state_message(state) == f"State:\n{text}"


def test_every_pass_starts_with_the_state_message() -> None:
    """The shared prefix is one text, whatever the question."""
    state = {"a": "x"}
    request = DecisionRequest(state, (Noul("n", "?"), Score("s", "?", tuple("abc"))))
    assert all(one.text.startswith(state_message(state) + "\n\nQ") for one in bound_passes(request, style="bracket"))


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ("", ""), ("a", "a"), (True, "true"), (1, "1"), ({"ü": [None]}, '{"ü": [null]}')]
)
def test_description_text_is_json_unless_text(value: Any, text: str) -> None:
    """Null is nothing, text is itself, all else its JSON with the characters kept."""
    assert description_text(value) == text


@pytest.mark.parametrize(
    ("setting", "names", "style"),
    [
        ("auto", ["/models/OpenJev-4bit"], "bracket"),
        ("auto", ["some/model", "my-openJEV"], "bracket"),
        ("auto", ["SmolLM2-135M-Instruct"], "plain"),
        ("auto", [], "plain"),
        ("bracket", ["SmolLM2"], "bracket"),
        ("plain", ["openjev"], "plain"),
    ],
)
def test_style_follows_the_models_names_only_when_auto(setting: str, names: list[str], style: str) -> None:
    """A model whose path, id or alias contains openjev in any case gets brackets."""
    assert resolve_style(setting, names) == style


def test_style_refuses_another_word() -> None:
    """A setting that is no style is an error, not the default."""
    with pytest.raises(ValueError, match="auto, bracket or plain"):
        resolve_style("curly", [])
