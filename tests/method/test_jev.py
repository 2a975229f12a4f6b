"""The Jev body and reply: strict reading, named fields, the shapes that the public client needs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from letterwise_service.errors import InvalidRequest, MalformedBody, Unsupported
from letterwise_service.method.answers import ChoiceAnswer, NoulAnswer, ScoreAnswer, Skipped
from letterwise_service.method.jev import parse_body, parse_prewarm, reply
from letterwise_service.method.request import (
    BATCH,
    INTERACTIVE,
    Adapter,
    Choice,
    DecisionRequest,
    Noul,
    Option,
    Score,
)
from letterwise_service.method.validation import Limits

NOUL = {"type": "noul", "instructions": "Is it?"}
GOOD = {"state": "s", "questions": {"n": NOUL}}


def _body(**more: Any) -> str:
    return json.dumps({**GOOD, **more})


def _asking(**question: Any) -> str:
    return json.dumps({"state": "s", "questions": {"n": NOUL, "q": {"instructions": "?", **question}}})


def test_body_becomes_the_domain_request() -> None:
    """Every field, with orders kept; a bare answer in ask_if is a list of one."""
    body = {
        "model": "jev-latest",
        "state": {"b": 1, "a": "é"},
        "questions": {
            "": {"type": "noul", "instructions": ["x"], "criteria": {"true": "t", "false": None}},
            "a: b": {"type": "choice", "instructions": "?", "criteria": {"z": None, "a": {"k": 1}}},
            "s": {"type": "score", "instructions": "?", "criteria": ["l", ["m"]], "ask_if": {"": "yes", "a: b": ["z"]}},
        },
        "samples": 4,
        "ask": ["", "a: b", "s"],
    }
    read = parse_body(json.dumps(body).encode())
    assert read.model == "jev-latest"
    assert read.request == DecisionRequest(
        {"b": 1, "a": "é"},
        (
            Noul("", ["x"], "t", None),
            Choice("a: b", "?", (Option("z"), Option("a", {"k": 1}))),
            Score("s", "?", ("l", ["m"]), {"": ("yes",), "a: b": ("z",)}),
        ),
        samples=4,
        ask=("", "a: b", "s"),
    )
    assert list(read.request.state) == ["b", "a"]


@pytest.mark.parametrize(("samples", "read"), [(None, 1), ("auto", 1), (1, 1), (8, 8), (33, 32), (10**30, 32)])
def test_samples_are_read_and_lowered(samples: Any, read: int) -> None:
    """Auto and nothing are one order; more than the limit are the limit."""
    assert parse_body(_body(samples=samples)).request.samples == read


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ("tone", Adapter("tone")),
        ({"name": "tone"}, Adapter("tone")),
        ({"name": "tone", "scale": None}, Adapter("tone")),
        ({"name": "tone", "scale": -2}, Adapter("tone", -2.0)),
        ({"name": "tone", "scale": 0.5, "rank": 8}, Adapter("tone", 0.5)),
    ],
)
def test_adapter_is_a_name_or_a_name_and_a_scale(given: Any, read: Adapter | None) -> None:
    """Without a scale it is all of the adapter; what an adapter does not have is reported."""
    request = parse_body(_body(adapter=given)).request
    assert request.adapter == read
    assert request.ignored == (("adapter.rank",) if "rank" in (given or ()) else ())


@pytest.mark.parametrize(("given", "read"), [(None, INTERACTIVE), ("interactive", INTERACTIVE), ("batch", BATCH)])
def test_service_class_is_read(given: Any, read: str) -> None:
    """Nothing is interactive."""
    assert parse_body(_body(service_class=given)).request.service_class == read


def test_family_fields_are_accepted_and_named() -> None:
    """Fields of the wider family, and unknown ones, are read over and reported by name."""
    top = {"instructions": "x", "steps": 4, "think": True, "seed": 7, "sequential": None, "novel": [1]}
    question = {**NOUL, "depends_on": ["x"], "alone": True, "criteria": {"maybe": "?"}}
    request = parse_body(_body(**top, questions={"q": question})).request
    nested = ["questions.q.depends_on", "questions.q.alone", "questions.q.criteria.maybe"]
    assert list(request.ignored) == [*top, *nested]
    assert request.questions == (Noul("q", "Is it?"),)


def test_ignored_names_are_bounded() -> None:
    """A body of a thousand unknown fields does not echo them all."""
    ignored = parse_body(_body(**{f"{i}" * 100: i for i in range(1000)})).request.ignored
    assert len(ignored) == 64
    assert max(map(len, ignored)) == 60


def test_misspelt_fields_are_named_where_the_body_is_refused() -> None:
    """All that is missing at once, and the keys that may be meant for it; a sound body's unused keys are no errors."""
    told = violations('{"stat": "s", "question": {}, "colour": 1, "' + "s" * 100 + '": 1}')
    assert told == {
        "state": "expected a state: text, or any JSON value but null",
        "questions": "expected an object of questions by id",
        "stat": "no such field; perhaps state",
        "question": "no such field; perhaps questions",
    }
    told = violations(_body(questions={"q": {"type": "noul", "instruction": "Late?"}}))
    assert told["questions.q.instruction"] == "no such field; perhaps instructions"
    assert parse_body(_body(stat="s")).request.ignored == ("stat",)
    with pytest.raises(InvalidRequest, match="stat: no such field; perhaps state"):
        parse_prewarm('{"stat": "s"}')


def violations(body: str) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body)
    return {each.field: each.description for each in caught.value.violations}


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[1,]",
        "{'state': 1}",
        "nul",
        "[]",
        '"text"',
        "7",
        "null",
        b"\xff\xfe{}",
        b'{"state": "\xc3"}',
        '\ufeff{"state": 1}',
        '{"state": "a\nb"}',
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_body_that_is_no_json_object_is_malformed(body: str | bytes) -> None:
    """Syntax, encoding, another value than an object: the body cannot be read at all."""
    with pytest.raises(MalformedBody, match="expected") as caught:
        parse_body(body)
    assert len(str(caught.value)) < 120


BAD: list[tuple[str, str, str]] = [
    ('{"questions": {"n": {"type": "noul", "instructions": "?"}}}', "state", "expected a state"),
    (_body(state=None), "state", "expected a state"),
    (_body(state=float("nan")), "state", "finite"),
    (_body(state=[float("-inf")]), "state", "finite"),
    (_body().replace('"s"', "1e400"), "state", "finite"),
    (_body().replace('"s"', "[" + "9" * 5000 + "]"), "state", "4300 digits"),
    (_body().replace('"s"', "-" + "9" * 5000), "state", "4300 digits"),
    (_body(state="\ud83d"), "state", "surrogate"),
    (_body().replace('"s"', '{"a": {"k": 1, "k": 2}}'), "state", "keys differ"),
    (_body().replace('"s"', "[" * 101 + "]" * 101), "state", "100 deep"),
    ('{"state": "s", "state": "t", "questions": {"n": {"type": "noul", "instructions": "?"}}}', "state", "once"),
    ('{"state": "s"}', "questions", "object of questions"),
    (_body(questions=[NOUL]), "questions", "object of questions"),
    (_body(questions={}), "questions", "at least one"),
    (_body(questions={"q": "Is it?"}), "questions.q", "a question"),
    ('{"state": 1, "questions": {"q": %s, "q": %s}}' % ((json.dumps(NOUL),) * 2), "questions.q", "once"),
    (_body(adapter=7), "adapter", "name of an adapter"),
    (_body(adapter=""), "adapter.name", "name of an adapter"),
    (_body(adapter="\ud800"), "adapter.name", "name of an adapter"),
    (_body(adapter={"scale": 1}), "adapter.name", "as text"),
    (_body(adapter={"name": "a", "scale": True}), "adapter.scale", "-100 to 100"),
    (_body(adapter={"name": "a", "scale": 10**400}), "adapter.scale", "-100 to 100"),
    (_body(adapter={"name": "a"}).replace('"name"', '"name": "b", "name"'), "adapter.name", "once"),
    (_body(service_class="slow"), "service_class", "interactive or batch"),
    (_asking(), "questions.q.type", "noul, choice or score"),
    (_asking(type="box"), "questions.q.type", "noul, choice or score"),
    (_asking(type=["noul"]), "questions.q.type", "noul, choice or score"),
    (_body(questions={"q": {"type": "noul"}}), "questions.q.instructions", "instructions"),
    (_asking(type="noul", instructions=None), "questions.q.instructions", "instructions"),
    (_asking(type="noul", criteria=["a", "b"]), "questions.q.criteria", "true and false"),
    (_asking(type="choice"), "questions.q.criteria", "object of option"),
    (_asking(type="choice", criteria=["a", "b"]), "questions.q.criteria", "object of option"),
    (_asking(type="choice", criteria={}), "questions.q.criteria", "at least one option"),
    (_asking(type="choice", criteria={"a": 1, " ": 2}), "questions.q.criteria. ", "blank"),
    (_asking(type="choice", criteria={"a\rb": 1}), r"questions.q.criteria.a\rb", "line breaks"),
    (
        _asking(type="choice", criteria={"billing": 1}).replace('"billing": 1', '"a": 1, "a": 2'),
        "questions.q.criteria.a",
        "once",
    ),
    (_asking(type="score"), "questions.q.criteria", "list of levels"),
    (_asking(type="score", criteria={"0": "a"}), "questions.q.criteria", "list of levels"),
    (_asking(type="score", criteria=[]), "questions.q.criteria", "at least one level"),
    (_asking(type="score", criteria=["a", float("inf")]), "questions.q.criteria[1]", "finite"),
    (_asking(type="noul", ask_if=["n"]), "questions.q.ask_if", "object of wanted"),
    (_asking(type="noul", ask_if={"n": True}), "questions.q.ask_if.n", "list of answers"),
    (_asking(type="noul", ask_if={"n": ["yes", 1]}), "questions.q.ask_if.n", "list of answers"),
    (_asking(type="noul", ask_if={"n": []}), "questions.q.ask_if.n", "at least one answer"),
    (_asking(type="noul", ask_if={"n": "true"}), "questions.q.ask_if.n[0]", "'true'"),
    (_asking(type="noul", ask_if={"gone": "yes"}), "questions.q.ask_if.gone", "'gone'"),
    (_asking(type="noul", ask_if={"q": "yes"}), "questions.q.ask_if.q", "itself"),
    (_body(samples=0), "samples", "at least 1"),
    (_body(samples=-3), "samples", "at least 1"),
    (_body(samples=True), "samples", "at least 1"),
    (_body(samples=2.0), "samples", "at least 1"),
    (_body(samples="many"), "samples", "auto"),
    (_body(ask="n"), "ask", "list of question ids"),
    (_body(ask=[1]), "ask", "list of question ids"),
    (_body(ask=[]), "ask", "at least one"),
    (_body(ask=["n", "gone"]), "ask[1]", "'gone'"),
    (_body(model=7), "model", "as text"),
    (_body(novel=[float("nan")]), "novel", "finite"),
    (_body(**{"\ud800": 1}), r"\ud800", "surrogate"),
    (_body(questions={"q": {**NOUL, "alone": "\ud800"}}), "questions.q.alone", "surrogate"),
]


@pytest.mark.parametrize(("body", "path", "words"), BAD)
def test_bad_body_names_its_field(body: str, path: str, words: str) -> None:
    """Exactly one violation, by the body's own path, with what was expected."""
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body)
    [broken] = caught.value.violations
    assert broken.field == path
    assert words in broken.description
    str(caught.value).encode()


def test_cycle_in_a_body_is_named() -> None:
    """Two questions that wait for each other."""
    body = _body(questions={"a": {**NOUL, "ask_if": {"b": "yes"}}, "b": {**NOUL, "ask_if": {"a": "no"}}})
    with pytest.raises(InvalidRequest, match=r"no cycle of questions, not '[ab]' → '[ab]' → '[ab]'"):
        parse_body(body)


def test_limits_of_the_door_hold() -> None:
    """The configured numbers of questions and options."""
    limits = Limits(max_questions=1, max_options=2)
    with pytest.raises(InvalidRequest, match="questions: expected at most 1"):
        parse_body(_asking(type="noul"), limits)
    three = _body(questions={"q": {"type": "score", "instructions": "?", "criteria": [1, 2, 3]}})
    with pytest.raises(InvalidRequest, match=r"questions\.q\.criteria: expected at most 2 levels"):
        parse_body(three, limits)


@pytest.mark.parametrize("name", ["images", "assets"])
def test_images_beside_the_state_are_unsupported(name: str) -> None:
    """An image list is refused; an empty one holds nothing and is read over."""
    with pytest.raises(Unsupported, match=name):
        parse_body(_body(**{name: ["data:image/png;base64,AA=="]}))
    assert parse_body(_body(**{name: []})).request.ignored == (name,)


@dataclass(frozen=True)
class _Prefix:
    tokens: int = 9


@dataclass(frozen=True)
class _Diagnostics:
    """Stands where the engine's own diagnostics do."""

    prompt_tokens: int = 120
    skipped: tuple[Skipped, ...] = (Skipped("z", "n", None, ("yes",)),)
    prefix: _Prefix = field(default_factory=_Prefix)
    ignored: tuple[str, ...] = ("seed",)


ANSWERS = (
    NoulAnswer("n", 0.1234567890123456, 0.9),
    ChoiceAnswer("c", "b", ("a", "b"), (0.25, 0.75), 0.5, 0.8),
    ScoreAnswer("s", 0.5, ("same", ["l"], {"k": 1}), (0.5, 0.5, 0.0), 0.25, 0.7),
)


def test_reply_has_the_shapes_of_the_public_client() -> None:
    """Answers by id and kind, string keys of levels, usage, and the letter masses among the diagnostics."""
    whole = reply("demo", ANSWERS, asdict(_Diagnostics()))
    assert whole == {
        "model": "demo",
        "answers": {
            "n": {"type": "noul", "noul": 0.1234567890123456},
            "c": {"type": "choice", "choice": "b", "probabilities": {"a": 0.25, "b": 0.75}, "confidence": 0.5},
            "s": {
                "type": "score",
                "score": 0.5,
                "legend": {"0": "same", "1": ["l"], "2": {"k": 1}},
                "probabilities": {"0": 0.5, "1": 0.5, "2": 0.0},
                "confidence": 0.25,
            },
        },
        "usage": {"input_tokens": 120, "output_tokens": 0},
        "diagnostics": {
            "prompt_tokens": 120,
            "skipped": [{"id": "z", "because": "n", "was": None, "wanted": ["yes"]}],
            "prefix": {"tokens": 9},
            "ignored": ["seed"],
            "letter_mass": {"n": 0.9, "c": 0.8, "s": 0.7},
        },
    }
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_reply_lists_skips_given_beside_the_diagnostics() -> None:
    """A skipped question is absent from the answers and named in the diagnostics."""
    whole = reply("demo", [], {"prompt_tokens": 0}, [Skipped("z", "n", "no", ("yes",))])
    assert whole["answers"] == {}
    assert whole["diagnostics"]["skipped"] == [{"id": "z", "because": "n", "was": "no", "wanted": ["yes"]}]
