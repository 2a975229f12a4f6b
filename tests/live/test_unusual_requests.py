"""Large and odd requests: each is answered over gRPC, and its answers are those of plain forwards of the same ids."""

from __future__ import annotations

import math
from typing import Any

import pytest

import letterwise
from letterwise_service.engine.models.gguf import GgufFile
from letterwise_service.engine.models.gguf_tokenizer import tokenizer_of
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.method import answers
from letterwise_service.method.decision import Decision

from . import material
from .judging import STYLE, Judge
from .processes import Server

# waits for the judge, which computes what it can while other tests run
pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
# Two scores may be 2e-4 off each, and the readout divides by 0.85; a composed answer multiplies three reads.
ONE_PASS, COMPOSED = 5e-4, 1.5e-3


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def distance(found: Any, expected: Any) -> float:
    """The largest difference between two answers, in log-probability, the letter mass included."""
    mass = abs(math.log(found.letter_mass / expected.letter_mass))
    if isinstance(found, letterwise.NoulAnswer):
        assert isinstance(expected, answers.NoulAnswer)
        return max(mass, abs(logit(found.probability) - logit(expected.probability)))
    assert isinstance(found, letterwise.ChoiceAnswer)
    assert isinstance(expected, answers.ChoiceAnswer)
    assert tuple(found.probabilities) == expected.names
    pairs = zip(found.probabilities.values(), expected.probabilities, strict=True)
    return max(mass, *(abs(math.log(ours / plain)) for ours, plain in pairs))


@pytest.fixture(scope="module")
def decisions(server: Server) -> dict[str, letterwise.Decision]:
    """What the server replies to each."""
    with server.client(timeout_seconds=800) as client:
        return {name: client.decide(**material.call(body)) for name, body in material.UNUSUAL.items()}


@pytest.mark.parametrize("name", material.UNUSUAL)
def test_unusual_request_is_answered_as_plain_forwards_answer_it(
    name: str, decisions: dict[str, letterwise.Decision], judge: Judge
) -> None:
    """Every question has its answer, and it is the judge's."""
    body, decision = material.UNUSUAL[name], decisions[name]
    expected = judge.decide(material.domain(body))
    assert list(decision.answers) == list(body["questions"]) == list(expected)
    tolerance = COMPOSED if decision.diagnostics.passes > len(body["questions"]) else ONE_PASS
    assert max(distance(found, expected[id]) for id, found in decision.answers.items()) <= tolerance


def test_composed_choice_reads_every_chunk_and_the_winners(decisions: dict[str, letterwise.Decision]) -> None:
    """300 options are six prompts of fifty and one of six, and their probabilities sum to 1."""
    decision = decisions["300 options"]
    assert decision.diagnostics.passes == 7
    answer = decision["room"]
    assert isinstance(answer, letterwise.ChoiceAnswer)
    assert len(answer.probabilities) == 300
    assert math.fsum(answer.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert answer.choice == max(answer.probabilities, key=answer.probabilities.__getitem__)


def test_spelled_control_token_stays_text_and_is_judged_by_its_ids(
    client: letterwise.Client, judge: Judge, model_path: Any
) -> None:
    """A state and an option that spell `<|im_end|>` end no turn; the answers are those of the ids as text."""
    tokenizer = tokenizer_of(GgufFile(model_path))
    tokens = PromptTokens(tokenizer)
    request = material.domain(material.SPELLED)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    decision = Decision(request, style=STYLE)
    passes = decision.ready()
    encoded = tokens.messages([one.text for one in passes])
    expected = {}
    for one, prompt in zip(passes, encoded, strict=True):
        assert prompt.ids.count(end) == tokens.messages(["Hello."])[0].ids.count(end)
        assert one.text in tokenizer.decode(prompt.ids)
        for outcome in decision.take(one, judge.ids(prompt.ids).result().reading(one.letters)):
            expected[outcome.id] = outcome
    found = client.decide(**material.call(material.SPELLED))
    assert found.diagnostics.neutralized_tokens == 4
    assert max(distance(answer, expected[id]) for id, answer in found.answers.items()) <= ONE_PASS
