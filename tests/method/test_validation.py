"""The rules of every door: each kind of bad input is named by its field, in that door's words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.errors import InvalidRequest, Unsupported
from letterwise_service.method.jsontext import parse
from letterwise_service.method.paths import GrpcPaths, JevPaths, shown
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Score
from letterwise_service.method.validation import MAX_VIOLATIONS, Limits, check, check_state, violations

GRPC, JEV = GrpcPaths(), JevPaths()
NOUL = Noul("n", "Is it?")
CHOICE = Choice("c", "Which?", (Option("red", "r"), Option("blue")))
SCORE = Score("s", "How much?", ("low", "same", "same"))
GOOD = DecisionRequest("state", (NOUL, CHOICE, SCORE))
LIMITS = Limits(max_questions=4, max_options=5)


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def _with(*questions: Any, **more: Any) -> DecisionRequest:
    return replace(GOOD, questions=(NOUL, CHOICE, SCORE, *questions), **more)


def _options(*names: str) -> DecisionRequest:
    return replace(GOOD, questions=(replace(CHOICE, options=tuple(Option(name) for name in names)),))


BAD: list[tuple[str, DecisionRequest, str, str, str]] = [
    ("no questions", replace(GOOD, questions=()), "questions", "questions", "at least one"),
    ("many questions", _with(Noul("x", "?"), Noul("y", "?")), "questions", "questions", "at most 4"),
    ("no state", replace(GOOD, state=None), "state", "state", "expected a state"),
    ("state NaN", replace(GOOD, state={"a": [math.nan]}), "state", "state", "finite"),
    ("state infinite", replace(GOOD, state=-math.inf), "state", "state", "finite"),
    ("state too deep", replace(GOOD, state=_deep(101)), "state", "state", "100 deep"),
    ("state surrogate", replace(GOOD, state="a\ud800"), "state", "state", "surrogate"),
    ("state surrogate key", replace(GOOD, state={"\udfff": 1}), "state", "state", "surrogate"),
    ("state long integer", replace(GOOD, state=[10**4300]), "state", "state", "4300 digits"),
    ("state read long integer", replace(GOOD, state=parse("9" * 5000)), "state", "state", "4300 digits"),
    ("state repeated key", replace(GOOD, state=parse('{"a":1,"a":2}')), "state", "state", "keys differ"),
    ("state not JSON", replace(GOOD, state={"a": {1, 2}}), "state", "state", "JSON value"),
    ("samples 0", replace(GOOD, samples=0), "samples", "samples", "at least 1"),
    ("samples bool", replace(GOOD, samples=True), "samples", "samples", "at least 1"),
    ("samples float", replace(GOOD, samples=2.0), "samples", "samples", "at least 1"),  # type: ignore[arg-type]
    ("id repeated", _with(NOUL), "questions[3].id", "questions.n", "no other question"),
    ("id long", _with(Noul("i" * 257, "?")), "questions[3].id", f"questions.{'i' * 59}…", "256"),
    ("id surrogate", _with(Noul("i\ud800", "?")), "questions[3].id", r"questions.i\ud800", "surrogate"),
    ("no instructions", _with(Noul("x", None)), "questions[3].instructions", "questions.x.instructions", "instruct"),
    ("bad instructions", _with(Noul("x", [math.inf])), "questions[3].instructions", "questions.x.instructions", "fin"),
    ("bad yes", _with(Noul("x", "?", yes="\ud800")), "questions[3].yes", "questions.x.criteria.true", "surrogate"),
    ("bad no", _with(Noul("x", "?", no=math.nan)), "questions[3].no", "questions.x.criteria.false", "finite"),
    ("no options", _options(), "questions[0].options", "questions.c.criteria", "at least one option"),
    ("many options", _options(*"abcdef"), "questions[0].options", "questions.c.criteria", "at most 5 options"),
    ("blank name", _options("a", " \t"), "questions[0].options[1].name", r"questions.c.criteria. \t", "blank"),
    ("empty name", _options(""), "questions[0].options[0].name", "questions.c.criteria.", "blank"),
    ("name line break", _options("a\nb"), "questions[0].options[0].name", r"questions.c.criteria.a\nb", "line breaks"),
    ("name separator", _options("a\u2028b"), "questions[0].options[0].name", r"questions.c.criteria.a\u2028b", "line"),
    ("name control", _options("a\x07"), "questions[0].options[0].name", r"questions.c.criteria.a\x07", "control"),
    ("name surrogate", _options("\ud83d"), "questions[0].options[0].name", r"questions.c.criteria.\ud83d", "surrog"),
    ("name repeated", _options("a", "b", "a"), "questions[0].options[2].name", "questions.c.criteria.a", "no other"),
    (
        "bad option description",
        replace(GOOD, questions=(replace(CHOICE, options=(Option("a", {"k": math.nan}),)),)),
        "questions[0].options[0].description",
        "questions.c.criteria.a",
        "finite",
    ),
    ("no levels", _with(Score("x", "?", ())), "questions[3].levels", "questions.x.criteria", "at least one level"),
    ("many levels", _with(Score("x", "?", tuple("abcdef"))), "questions[3].levels", "questions.x.criteria", "at most"),
    (
        "bad level",
        _with(Score("x", "?", ("a", _deep(200)))),
        "questions[3].levels[1]",
        "questions.x.criteria[1]",
        "dee",
    ),
    (
        "ask_if itself",
        _with(Noul("x", "?", ask_if={"x": ("yes",)})),
        "questions[3].ask_if[0]",
        "questions.x.ask_if.x",
        "itself",
    ),
    (
        "ask_if unknown id",
        _with(Noul("x", "?", ask_if={"n": ("yes",), "z": ("yes",)})),
        "questions[3].ask_if[1]",
        "questions.x.ask_if.z",
        "'z'",
    ),
    (
        "ask_if no answers",
        _with(Noul("x", "?", ask_if={"n": ()})),
        "questions[3].ask_if[0]",
        "questions.x.ask_if.n",
        "at least one answer",
    ),
    (
        "ask_if unknown answer",
        _with(Noul("x", "?", ask_if={"n": ("yes", "maybe")})),
        "questions[3].ask_if[0].answers[1]",
        "questions.x.ask_if.n[1]",
        "'maybe'",
    ),
    (
        "ask_if unknown option",
        _with(Noul("x", "?", ask_if={"c": ("green",)})),
        "questions[3].ask_if[0].answers[0]",
        "questions.x.ask_if.c[0]",
        "'green'",
    ),
    (
        "ask_if shared level",
        _with(Noul("x", "?", ask_if={"s": ("1", "same")})),
        "questions[3].ask_if[0].answers[1]",
        "questions.x.ask_if.s[1]",
        "'same'",
    ),
    ("ask empty", replace(GOOD, ask=()), "ask", "ask", "at least one"),
    ("ask unknown", replace(GOOD, ask=("n", "z")), "ask[1]", "ask[1]", "'z'"),
    ("ask repeated", replace(GOOD, ask=("n", "c", "n")), "ask[2]", "ask[2]", "once"),
    ("ask without dependency", _with(Noul("x", "?", ask_if={"n": ("yes",)}), ask=("x",)), "ask", "ask", "'n' too"),
]


@pytest.mark.parametrize(("name", "request_", "grpc", "jev", "words"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_names_its_field(name: str, request_: DecisionRequest, grpc: str, jev: str, words: str) -> None:
    """One violation, with the path of the door and words that say what was expected."""
    for paths, field in ((GRPC, grpc), (JEV, jev)):
        [broken] = violations(request_, paths, LIMITS)
        assert broken.field == field
        assert words in broken.description
        assert broken.description.startswith("expected")
        (broken.field + broken.description).encode()
        with pytest.raises(InvalidRequest) as caught:
            check(request_, paths, LIMITS)
        assert caught.value.violations == (broken,)


def test_sound_requests_pass_every_rule() -> None:
    """What is allowed: repeated levels, odd ids, an empty state, conditions of every kind, one option, depth 100."""
    odd = Noul(" a:b\n", "", ask_if={"n": ("no", "yes"), "c": ("blue",), "s": ("low", "1", "2")})
    states: list[Any] = ["", [], {}, False, 0, _deep(100), {"image": "a caption", "screenshot": "none"}, 10**4299]
    for state in states:
        request = DecisionRequest(state, (NOUL, CHOICE, SCORE, odd), samples=40, ask=("n", "c", "s", " a:b\n"))
        assert violations(request, GRPC) == violations(request, JEV) == []
    assert violations(_options("one"), GRPC) == []


def test_empty_ids_are_a_matter_of_the_door() -> None:
    """Jev takes the id of no characters, gRPC does not."""
    request = replace(GOOD, questions=(Noul("", "?"),))
    assert violations(request, JEV) == []
    [broken] = violations(request, GRPC)
    assert broken.field == "questions[0].id"


def test_cycle_is_named_in_full() -> None:
    """The whole cycle stands in the words, at the first of its questions."""
    a = Noul("a", "?", ask_if={"b": ("yes",)})
    b = Noul("b", "?", ask_if={"c": ("yes",)})
    c = Noul("c", "?", ask_if={"a": ("yes",)})
    [broken] = violations(DecisionRequest("s", (NOUL, a, b, c)), GRPC)
    assert broken.field == "questions[1].ask_if"
    ids = broken.description.removeprefix("expected no cycle of questions, not ").split(" → ")
    assert ids[0] == ids[-1]
    assert "'a' → 'b' → 'c'" in " → ".join(ids[:-1] + ids[:-1])
    assert violations(DecisionRequest("s", (NOUL, a, b, c)), JEV)[0].field == "questions.a.ask_if"


def test_long_chain_is_no_cycle() -> None:
    """A chain of a thousand questions is read without deep recursion."""
    chain = [Noul(str(i), "?", ask_if={str(i + 1): ("yes",)} if i < 999 else {}) for i in range(1000)]
    assert violations(DecisionRequest("s", tuple(chain)), JEV, Limits(max_questions=1000)) == []


def test_violations_are_at_most_ten() -> None:
    """An error travels in headers: a request wrong all over names its first fields."""
    broken = violations(_options(*[""] * 50), GRPC)
    assert [one.field for one in broken] == [f"questions[0].options[{i}].name" for i in range(MAX_VIOLATIONS)]


def test_several_wrong_fields_are_all_named() -> None:
    """In the order of the request."""
    request = DecisionRequest(None, (Noul("a", None), Score("b", "?", ())), samples=-1)
    fields = [broken.field for broken in violations(request, GRPC)]
    assert fields == ["state", "samples", "questions[0].instructions", "questions[1].levels"]


def test_errors_quote_no_state() -> None:
    """Neither a state nor a long name stands in an error."""
    secret = "patient-4711"
    request = DecisionRequest({secret: math.nan, "b": secret}, (replace(NOUL, instructions=[secret, "\ud800"]),))
    with pytest.raises(InvalidRequest) as caught:
        check(request, GRPC)
    assert secret not in str(caught.value)
    assert len(shown("x" * 500)) == 60


URI = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    "state",
    [
        {"image": URI},
        {"text": "look", "screenshot": URI.upper().replace("BASE64", "base64")},
        {"image": [URI]},
        {"image": {"type": "image", "id": 3}},
        {"screenshot": {"type": "image_url", "image_url": {"url": "http://x/y.png"}}},
        {"image": {"url": URI}},
        {"type": "image_url", "image_url": {"url": URI}},
        [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": URI}}],
    ],
)
def test_image_in_the_state_is_unsupported(state: Any) -> None:
    """An image's own data, or a part in the form that chat interfaces send."""
    with pytest.raises(Unsupported, match="state: images"):
        check(replace(GOOD, state=state), GRPC)
    with pytest.raises(Unsupported):
        check_state(state)


@pytest.mark.parametrize(
    "state",
    [{"image": "a caption"}, {"image": None}, {"image": {"alt": "a cat"}}, [{"type": "image", "alt": "logo"}], URI],
)
def test_words_about_an_image_are_a_state(state: Any) -> None:
    """A caption, a page's list of elements, and plain text are read as text."""
    check(replace(GOOD, state=state), GRPC)
    check_state(state)


def test_state_alone_is_held_to_the_same_rules() -> None:
    """A prewarm's state is checked without questions."""
    with pytest.raises(InvalidRequest, match="state: expected a state"):
        check_state(None)


def test_limits_lower_samples() -> None:
    """More orders than the limit are lowered to it; fewer stay."""
    assert (LIMITS.samples(100), LIMITS.samples(3)) == (32, 3)


def test_options_never_pass_what_two_rounds_hold() -> None:
    """A higher setting does not lift the bound of 52 chunks of 52."""
    [broken] = violations(_options(*map(str, range(2705))), GRPC, Limits(max_options=10_000))
    assert "2704" in broken.description
