"""The `typesafe-sdk` package as its users have it, only the base URL changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import typesafe_sdk as sdk
from typesafe_sdk import Choice, Noul, RetryPolicy, Score, TypeSafeClient

from letterwise_service import errors

from .conftest import Served

NEVER = RetryPolicy(max_retries=0)
# Every published form of a question: objects and dictionaries, with and without what may be left out.
QUESTIONS: dict[str, Any] = {
    "billing": Noul(instructions="Is this about billing?"),
    "described": Noul(
        instructions={"ask": ["Is it", "angry?"]}, criteria={"true": "The text is angry.", "false": {"calm": True}}
    ),
    "half": Noul(instructions=["Is it long?"], criteria={"true": None, "false": "Short."}),
    "tone": Choice(instructions="What is the tone?", criteria={"calm": None, "angry": None}),
    "team with space": Choice(
        instructions="Which team?", criteria={"billing": "money", "shipping": {"days": 3}, "other": ["the", "rest"]}
    ),
    "one": Choice(instructions="Is there one?", criteria={"only": None}),
    "many": Choice(instructions="Which room?", criteria={str(room): None for room in range(120)}),
    "urgency": Score(instructions="How urgent?", criteria=["can wait", "today", "now"]),
    "same": Score(instructions="How same?", criteria=["same", "same", {"a": ["list"]}, ["list", 1]]),
    "raw:noul": {"type": "noul", "instructions": "Is it raw?"},
    "raw choice": {"type": "choice", "instructions": "Which?", "criteria": {"日本": "x", "🎫": None}},
    "raw score": {"type": "score", "instructions": "How raw?", "criteria": ["rare", "done"]},
}
STATES: list[Any] = [
    "I was charged twice. Please help.",
    {"message": "charged", "lines": [1, 2.5]},
    ["a", {"b": 1}],
    "",
]


@pytest.fixture
def client(served: Served) -> Iterator[TypeSafeClient]:
    with TypeSafeClient(api_key="local", base_url=served.url) as client:
        yield client


def check(result: sdk.SystemOneResponse) -> None:
    """Every question is answered in its type, with probabilities that are whole."""
    assert set(result.answers) == set(QUESTIONS)
    assert result.model == "scripted"
    assert result.usage.input_tokens
    assert result.usage.output_tokens == 0
    assert result.request_id
    assert {*result.nouls, *result.choices, *result.scores} == set(QUESTIONS)
    for choice in result.choices.values():
        assert choice.choice in choice.probabilities
        assert sum(choice.probabilities.values()) == pytest.approx(1)
        assert 0 <= choice.confidence <= 1
    assert list(result.choices["many"].probabilities) == [str(room) for room in range(120)]
    assert result.choices["one"].confidence == 1
    for score in result.scores.values():
        assert list(score.legend) == list(score.probabilities) == list(range(len(score.legend)))
    assert result.scores["same"].legend == {0: "same", 1: "same", 2: {"a": ["list"]}, 3: ["list", 1]}


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_question_shape_round_trips(client: TypeSafeClient, state: Any) -> None:
    """All published shapes in one request, on every kind of state."""
    check(client.system_one(state=state, questions=QUESTIONS))


async def test_asynchronous_client_gives_the_same_answers(served: Served, client: TypeSafeClient) -> None:
    """Answer by answer, and the models."""
    async with sdk.AsyncTypeSafeClient(api_key="local", base_url=served.url) as aio:
        result = await aio.system_one(state=STATES[0], questions=QUESTIONS)
        models = await aio.models.list()
    check(result)
    assert result.answers == client.system_one(state=STATES[0], questions=QUESTIONS).answers
    assert [model.name for model in models.models] == ["scripted"]


def test_quick_start_answers(client: TypeSafeClient) -> None:
    """As the package's own documentation has it."""
    result = client.system_one(
        state="I was charged twice. Please help.",
        questions={
            "billing": Noul(instructions="Is this about billing?"),
            "tone": Choice(instructions="What is the tone?", criteria={"calm": None, "angry": None}),
        },
    )
    assert 0 <= result.nouls["billing"].noul <= 1
    assert result.choices["tone"].choice in {"calm", "angry"}


def test_extra_body_reaches_the_decision(client: TypeSafeClient) -> None:
    """`samples` moves the numbers, `ask` and `ask_if` leave questions out of the answers, the rest is named."""
    ask = {"tone": QUESTIONS["tone"], "billing": QUESTIONS["billing"]}
    once = client.system_one(state="s", questions=ask)
    averaged = client.system_one(state="s", questions=ask, extra_body={"samples": 3, "ask": ["tone"], "think": True})
    assert list(averaged.answers) == ["tone"]
    assert averaged.choices["tone"] != once.choices["tone"]
    told = averaged.raw_http_response.json()["diagnostics"]
    assert (told["orderings"], told["ignored"]) == (3, ["think"])
    waits = {"type": "noul", "instructions": "?", "ask_if": {"tone": [_other(once.choices["tone"].choice)]}}
    skipped = client.system_one(state="s", questions={"tone": QUESTIONS["tone"], "waits": waits})  # type: ignore[dict-item]
    assert list(skipped.answers) == ["tone"]
    assert [skip["id"] for skip in skipped.raw_http_response.json()["diagnostics"]["skipped"]] == ["waits"]


def _other(choice: str) -> str:
    return "angry" if choice == "calm" else "calm"


def test_models_are_listed(client: TypeSafeClient) -> None:
    """With what the package's type asks for."""
    [model] = client.models.list().models
    assert model.name == "scripted"
    assert model.description
    assert model.release_date


def test_bodies_are_packed_with_zstd(served: Served) -> None:
    """Those of 1,024 bytes and more, by its own default where the `zstd` extra is there; the answers are the same."""
    seen: list[tuple[str | None, int]] = []

    def watch(request: httpx2.Request) -> None:
        seen.append((request.headers.get("content-encoding"), len(request.content)))

    results = []
    for compression in (None, False):
        http = httpx2.Client(event_hooks={"request": [watch]})
        with TypeSafeClient(api_key="k", base_url=served.url, http_client=http, compression=compression) as client:
            results.append(client.system_one(state="long " * 600, questions={"billing": QUESTIONS["billing"]}))
    assert [encoding for encoding, _ in seen] == ["zstd", None]
    assert seen[0][1] < seen[1][1] / 10
    assert results[0].answers == results[1].answers


REFUSED = sdk.TypeSafeUnprocessableEntityError
FAILURES: list[tuple[Callable[[Served], None], dict[str, Any], type[sdk.TypeSafeAPIError], str]] = [
    (lambda served: None, {"questions": {"q": {"type": "maybe"}}}, REFUSED, "q.type"),
    (lambda served: None, {"questions": {"q": Noul(criteria={"true": "It is."})}}, REFUSED, "q.instructions"),
    (lambda served: None, {"questions": {"q": sdk.Box(instructions="The dog")}}, REFUSED, "q.type"),
    (lambda served: None, {"extra_body": {"images": ["x"]}}, sdk.TypeSafeBadRequestError, "images"),
    (
        lambda served: _fail(served, errors.Unauthenticated("a known token is needed")),
        {},
        sdk.TypeSafeAuthenticationError,
        "token",
    ),
    (
        lambda served: _fail(served, errors.QueueFull("the queue is full", retry_after_seconds=2)),
        {},
        sdk.TypeSafeInternalServerError,
        "the queue is full",
    ),
    (
        lambda served: _fail(served, errors.DeadlineExceeded("the deadline has passed")),
        {},
        sdk.TypeSafeInternalServerError,
        "deadline",
    ),
    (lambda served: _fail(served, RuntimeError("secret")), {}, sdk.TypeSafeInternalServerError, "internal error"),
]


def _fail(served: Served, error: Exception) -> None:
    served.engine.admit_error = error


@pytest.mark.parametrize(("arrange", "settings", "expected", "words"), FAILURES)
def test_each_failure_is_the_packages_own_error(
    served: Served,
    client: TypeSafeClient,
    arrange: Callable[[Served], None],
    settings: dict[str, Any],
    expected: type[sdk.TypeSafeAPIError],
    words: str,
) -> None:
    """Of the class of its status, with our message and the request's id in its words."""
    arrange(served)
    asked: dict[str, Any] = {"state": "s", "questions": {"q": QUESTIONS["billing"]}, "retry": NEVER, **settings}
    with pytest.raises(expected) as caught:
        client.system_one(**asked)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.request_id
    assert caught.value.request_id in str(caught.value)


def test_wrong_base_url_is_its_not_found_error(served: Served) -> None:
    """A path that is not ours."""
    with TypeSafeClient(api_key="k", base_url=f"{served.url}/v7") as client, pytest.raises(sdk.TypeSafeNotFoundError):
        client.models.list()


def test_image_is_refused_with_the_reason(client: TypeSafeClient) -> None:
    """The package sends it as a part of its own."""
    with pytest.raises(sdk.TypeSafeBadRequestError, match="images are not read"):
        client.system_one(state=sdk.Image(b"\x89PNG\r\n\x1a\n"), questions={"q": QUESTIONS["billing"]}, retry=NEVER)


def test_retry_after_a_503_waits_as_told_and_succeeds(served: Served, client: TypeSafeClient) -> None:
    """The default policy comes back after the time that the refusal names, and gets its answer."""
    _fail(served, errors.QueueFull("the queue is full", retry_after_seconds=0.1))
    threading.Timer(0.3, lambda: setattr(served.engine, "admit_error", None)).start()
    began = time.monotonic()
    result = client.system_one(state="s", questions={"q": QUESTIONS["billing"]})
    assert set(result.answers) == {"q"}
    assert 0.9 < time.monotonic() - began < 20  # told one second, the shortest that we say


def test_time_out_of_the_package_stops_the_job(served: Served, client: TypeSafeClient) -> None:
    """The job of a caller who no longer waits does not run on beside its next try."""
    served.engine.hold()
    before = len(served.engine.jobs)
    with pytest.raises(sdk.TypeSafeAPITimeoutError):
        client.system_one(state="s", questions={"q": QUESTIONS["billing"]}, timeout=0.2, retry=NEVER)
    assert served.engine.jobs[before].stopping.wait(30)
