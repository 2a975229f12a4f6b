"""OpenAI's decisions body: how it becomes the domain's request, and what is said of one that cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from letterwise_service.errors import InvalidRequest, MalformedBody, Unsupported
from letterwise_service.method.openai import parse_body
from letterwise_service.method.request import Adapter, Choice, Noul, Option, Score
from letterwise_service.method.validation import Limits

PREDICATE: dict[str, Any] = {"type": "predicate", "instructions": "It is late."}


def body(**fields: Any) -> str:
    return json.dumps({"model": "m", "input": "s", "questions": [PREDICATE], **fields})


def state(given: Any) -> Any:
    return parse_body(body(input=given)).request.state


def test_questions_map_onto_their_kinds() -> None:
    """Instructions as text, values as names, labels with their descriptions as levels; ids are places."""
    parts = [{"type": "input_text", "text": "Which"}, {"type": "input_json", "data": {"é": [1]}}]
    choices = [{"value": "a", "description": "first"}, {"value": "b"}]
    levels = [{"label": "low"}, {"label": "high", "description": "now"}]
    read = parse_body(
        body(
            questions=[
                PREDICATE,
                {"type": "choice", "name": "which", "instructions": parts, "choices": choices},
                {"type": "score", "name": "which", "instructions": "How?", "levels": levels},
            ]
        )
    )
    assert read.request.questions == (
        Noul("0", "It is late."),
        Choice("1", 'Which\n{"é": [1]}', (Option("a", "first"), Option("b"))),
        Score("2", "How?", ("low", "high: now")),
    )
    assert [(asked.name, asked.values) for asked in read.asked] == [
        (None, ()),
        ("which", ("a", "b")),
        ("which", ("low", "high")),
    ]


def test_booleans_are_distinct_from_the_texts_that_spell_them() -> None:
    """Each value keeps its own name, whatever the others are."""
    values = [True, "true", False, "true (boolean)"]
    question = {"type": "choice", "instructions": "?", "choices": [{"value": value} for value in values]}
    read = parse_body(body(questions=[question]))
    [choice] = read.request.questions
    assert isinstance(choice, Choice)
    assert [option.name for option in choice.options] == ["true (boolean) (boolean)", "true", "false", "true (boolean)"]
    assert read.asked[0].values == tuple(values)


def test_text_and_a_lone_user_message_are_that_text() -> None:
    """The same state in each of the ways to write it."""
    ways: list[Any] = [
        "Hello.\nYou.",
        [{"role": "user", "content": "Hello.\nYou."}],
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": t} for t in ("Hello.", "You.")],
            }
        ],
    ]
    assert [state(way) for way in ways] == ["Hello.\nYou."] * 3


def test_conversation_is_the_list_of_its_items() -> None:
    """In order, each content as one text, calls with their outputs; a lone message of another role is a list, too."""
    assert state([{"role": "system", "content": "s"}]) == [{"role": "system", "content": "s"}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}
    assert state([said, call, output]) == [
        {"role": "assistant", "content": "a\nb"},
        call,
        {**output, "output": "done"},
    ]


def test_settings_of_ours_are_read() -> None:
    """As in a Jev body, `samples` lowered to the limit."""
    extra = {"samples": 9, "adapter": {"name": "tone", "scale": 0.5}, "service_class": "batch"}
    request = parse_body(body(**extra), Limits(max_samples=4)).request
    assert (request.samples, request.adapter, request.service_class) == (4, Adapter("tone", 0.5), "batch")


def test_fields_without_use_are_named_by_their_paths() -> None:
    """At the top, in items, parts, questions, choices and levels."""
    question = {"type": "choice", "instructions": "?", "levels": [], "choices": [{"value": "a", "weight": 1}]}
    item = {"role": "user", "id": "i", "content": [{"type": "input_text", "text": "t", "cache": 1}]}
    read = parse_body(body(input=[item], questions=[question], user="u"))
    assert read.request.ignored == (
        "user",
        "input[0].id",
        "input[0].content[0].cache",
        "questions[0].levels",
        "questions[0].choices[0].weight",
    )


CHOICE = {"type": "choice", "instructions": "?"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": 7}, "input"),
    ({"input": []}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"type": "reasoning"}]}, "input[0].type"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_json", "data": "x"}]}]}, "input[0].content[0].data"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"role": "user", "content": "\ud800"}]}, "input[0]"),
    ({"input": "\ud800"}, "input"),
    ({"questions": None}, "questions"),
    ({"questions": {}}, "questions"),
    ({"questions": []}, "questions"),
    ({"questions": [7]}, "questions[0]"),
    ({"questions": [{"type": ["choice"]}]}, "questions[0]"),
    ({"questions": [PREDICATE, {"type": "predicate"}]}, "questions[1].instructions"),
    ({"questions": [{**PREDICATE, "name": 7}]}, "questions[0].name"),
    ({"questions": [{**PREDICATE, "name": float("inf")}]}, "questions[0]"),
    ({"questions": [{**CHOICE, "choices": None}]}, "questions[0].choices"),
    ({"questions": [{**CHOICE, "choices": []}]}, "questions[0].choices"),
    ({"questions": [{**CHOICE, "choices": ["a"]}]}, "questions[0].choices[0]"),
    ({"questions": [{**CHOICE, "choices": [{"value": 1}]}]}, "questions[0].choices[0].value"),
    ({"questions": [{**CHOICE, "choices": [{"value": " "}]}]}, "questions[0].choices[0].value"),
    ({"questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]}, "questions[0].choices[1].value"),
    (
        {"questions": [{**CHOICE, "choices": [{"value": "a", "description": {}}]}]},
        "questions[0].choices[0].description",
    ),
    ({"questions": [{"type": "score", "instructions": "?", "levels": [{"label": 1}]}]}, "questions[0].levels[0].label"),
    ({"questions": [{"type": "score", "instructions": "?", "levels": []}]}, "questions[0].levels"),
    ({"model": 7}, "model"),
    ({"samples": 0}, "samples"),
]


@pytest.mark.parametrize(("fields", "path"), BAD)
def test_bad_body_names_its_field(fields: dict[str, Any], path: str) -> None:
    """Exactly one violation, by the body's own path, with what was expected."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body(**fields))
    [broken] = caught.value.violations
    assert broken.field == path
    assert broken.description.startswith("expected ")


def test_key_given_twice_is_named() -> None:
    """At the top by its name, inside by the object's path."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body()[:-1] + ', "input": "t"}')
    assert caught.value.violations[0].field == "input"
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body().replace('"type": "predicate"', '"type": "predicate", "type": "score"'))
    assert caught.value.violations[0].field == "questions[0]"


@pytest.mark.parametrize("place", ["input", "output", "instructions"])
def test_image_is_unsupported_wherever_it_stands(place: str) -> None:
    """In a message, a tool's output, a question."""
    image = [{"type": "input_image", "image_url": "https://example.com/a.png"}]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    fields: dict[str, Any] = {
        "input": {"input": [{"role": "user", "content": image}]},
        "output": {"input": [call, {"type": "function_call_output", "call_id": "c", "output": image}]},
        "instructions": {"questions": [{"type": "predicate", "instructions": image}]},
    }[place]
    with pytest.raises(Unsupported, match="images are not read"):
        parse_body(body(**fields))


def test_body_that_is_no_object_is_malformed() -> None:
    """Before anything else is said of it."""
    for text in ("[]", "7", "{"):
        with pytest.raises(MalformedBody):
            parse_body(text)
