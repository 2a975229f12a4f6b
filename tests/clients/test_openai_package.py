"""The `openai` package's decisions resource as its users have it, only the base URL changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from letterwise_service import errors

from .conftest import Served

QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "refund", "instructions": "A refund is asked for."},
    {
        "type": "predicate",
        "instructions": [{"type": "input_text", "text": "It is"}, {"type": "input_json", "data": {}}],
    },
    {
        "type": "choice",
        "name": "team",
        "instructions": "Which team?",
        "choices": [{"value": "billing", "description": "charges"}, {"value": "other"}],
    },
    {"type": "choice", "name": "bool", "instructions": "Is it?", "choices": [{"value": True}, {"value": False}]},
    {
        "type": "score",
        "name": "urgency",
        "instructions": "How urgent?",
        "levels": [{"label": "low"}, {"label": "high", "description": "now"}],
    },
]
CONVERSATION: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "type": "message", "content": [{"type": "input_text", "text": "Be kind."}]},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "I was charged twice.", "prompt_cache_breakpoint": {"mode": "explicit"}},
            {"type": "input_json", "data": [{"order": 48213, "é": None}]},
        ],
    },
    {"role": "assistant", "phase": "commentary", "content": [{"type": "output_text", "text": "Let me look."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"order": 48213}', "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "two charges"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "sql", "input": "select"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "none"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
]


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(api_key="local", base_url=f"{served.url}/v1", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("given", ["I was charged twice.", CONVERSATION], ids=["text", "conversation"])
def test_every_question_kind_is_answered_in_its_type(client: OpenAI, given: Any) -> None:
    """In order, with its name or none, values typed as they were given."""
    decision = client.decisions.create(input=given, model="gpt-6-luna", questions=QUESTIONS)
    refund, unnamed, team, boolean, urgency = decision.answers
    assert (refund.type, refund.name, unnamed.name) == ("predicate", "refund", None)
    assert refund.type == unnamed.type == "predicate"
    assert 0 <= refund.probability <= 1
    assert team.type == boolean.type == "choice"
    assert [one.value for one in team.probabilities] == ["billing", "other"]
    assert [one.value for one in boolean.probabilities] == [True, False]
    assert isinstance(boolean.choice, bool)
    assert sum(one.probability for one in boolean.probabilities) == pytest.approx(1)
    assert urgency.type == "score"
    assert [(one.label, one.value) for one in urgency.probabilities] == [("low", 0), ("high", 1)]
    assert 0 <= urgency.score <= 1
    assert decision.model == "scripted"
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0
    assert decision.usage.output_tokens == decision.usage.output_tokens_details.reasoning_tokens == 0
    assert decision.usage.input_tokens_details.cached_tokens == 0


def test_lone_user_message_is_its_text(client: OpenAI) -> None:
    """The two ways to say the same have the same numbers, and an item more has others."""
    ways: list[Any] = ["Hello.", [{"role": "user", "content": "Hello."}], [{"role": "user", "content": "Hello."}] * 2]
    answers = [client.decisions.create(input=way, model="m", questions=QUESTIONS[:1]).answers for way in ways]
    assert answers[0] == answers[1] != answers[2]


def test_fields_without_a_counterpart_are_named(client: OpenAI) -> None:
    """In the reply's diagnostics, which the package carries as an extra field."""
    decision = client.decisions.create(
        input=CONVERSATION,
        model="m",
        questions=QUESTIONS[:1],
        prompt_cache_key="k",
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
        safety_identifier="u",
        extra_body={"samples": 2},
    )
    told = decision.model_dump()["diagnostics"]
    assert told["orderings"] == 2
    assert told["ignored"] == [
        "prompt_cache_key",
        "prompt_cache_options",
        "safety_identifier",
        "input[2].content[0].prompt_cache_breakpoint",
        "input[3].phase",
        "input[4].status",
    ]


async def test_asynchronous_client_gives_the_same_answers(served: Served, client: OpenAI) -> None:
    """Answer by answer, and the models."""
    async with AsyncOpenAI(api_key="local", base_url=f"{served.url}/v1") as aio:
        decision = await aio.decisions.create(input=CONVERSATION, model="m", questions=QUESTIONS)
        models = [model.id async for model in aio.models.list()]
    assert decision.answers == client.decisions.create(input=CONVERSATION, model="m", questions=QUESTIONS).answers
    assert models == [model.id for model in client.models.list()] == ["scripted"]


IMAGE: list[Any] = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}]
ORPHAN: list[Any] = [{"type": "function_call_output", "call_id": "c9", "output": "x"}]
TWICE: list[Any] = [{"type": "choice", "instructions": "?", "choices": [{"value": True}, {"value": True}]}]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"questions": []}, openai.UnprocessableEntityError, "at least one question"),
        ({"questions": [{"type": "rank"}]}, openai.UnprocessableEntityError, r"questions\[0\]"),
        ({"questions": TWICE}, openai.UnprocessableEntityError, r"questions\[0\].choices\[1\].value"),
        ({"input": ORPHAN}, openai.UnprocessableEntityError, r"input\[0\].call_id"),
        ({"input": []}, openai.UnprocessableEntityError, "input"),
        ({"input": IMAGE}, openai.BadRequestError, "images are not read"),
    ],
)
def test_bad_request_is_the_packages_own_error(
    client: OpenAI, settings: dict[str, Any], error: type[openai.APIStatusError], words: str
) -> None:
    """Of the class of its status, with the path in the caller's own shape, and the request's id."""
    asked: dict[str, Any] = {"input": "s", "model": "m", "questions": QUESTIONS[:1], **settings}
    with pytest.raises(error, match=words) as caught:
        client.decisions.create(**asked)
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (errors.Unauthenticated("a known token is needed"), openai.AuthenticationError),
        (errors.QueueFull("the queue is full", retry_after_seconds=1), openai.InternalServerError),
        (errors.DeadlineExceeded("the deadline has passed"), openai.InternalServerError),
    ],
)
def test_failure_is_the_packages_own_error(
    served: Served, client: OpenAI, failure: Exception, error: type[openai.APIStatusError]
) -> None:
    """With our words in its message."""
    served.engine.admit_error = failure
    with pytest.raises(error, match=str(failure)):
        client.decisions.create(input="s", model="m", questions=QUESTIONS[:1])


def test_deadline_is_not_tried_again(served: Served) -> None:
    """The package would send a 504 three times, onto a server that is busy; it is told not to."""
    served.engine.admit_error = errors.DeadlineExceeded("the deadline has passed")
    seen = []
    with OpenAI(api_key="k", base_url=f"{served.url}/v1", max_retries=2) as client:
        client._client.event_hooks = {"response": [lambda response: seen.append(response.status_code)], "request": []}
        with pytest.raises(openai.InternalServerError):
            client.decisions.create(input="s", model="m", questions=QUESTIONS[:1])
    assert seen == [504]
