"""Admission: permits with exact numbers, refusals with the numbers that do not fit, tails known beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from letterwise_service.engine.budgets import Admission, Budgets, Permit, tail_ids
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.errors import TooLong
from letterwise_service.method.decision import Decision, Reading
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Question, Score
from tests.tiny import byte_tokenizer

ENVELOPE = 1 + len("user\n") + 2 + 1 + len("assistant\n")  # ids around a message under the byte tokenizer
LATE = Noul("late", "Is it late?")


@pytest.fixture(scope="module")
def tokens() -> PromptTokens:
    return PromptTokens(byte_tokenizer())


def admission(tokens: PromptTokens, context: int = 10_000, memory: int = 10_000) -> Admission:
    return Admission(tokens, Budgets(context, memory), "plain")


def request(*questions: Question, state: Any = "A box.", samples: int = 1) -> DecisionRequest:
    return DecisionRequest(state, questions, samples=samples)


def choice(count: int, id: str = "c", text: str = "Which?") -> Choice:
    return Choice(id, text, tuple(Option(f"option {i}", "x" * (i % 5)) for i in range(count)))


def every_text(asked: DecisionRequest) -> list[str]:
    """The text of each pass that the decision sends, read with made-up scores."""
    decision, texts = Decision(asked, style="plain"), []
    while passes := decision.ready():
        for one in passes:
            texts.append(one.text)
            decision.take(one, Reading(tuple(float((7 * i) % 11) for i in range(one.letters)), 0.5))
    return texts


def test_permit_counts_what_the_decision_runs(tokens: PromptTokens) -> None:
    """Passes and prompt tokens are those of the passes that are sent, each counted in full."""
    asked = request(LATE, choice(3), Score("s", "How bad?", ("low", "high")))
    permit = admission(tokens).admit(asked)
    texts = every_text(asked)
    assert permit.passes == len(texts) == 3
    assert permit.prompt_tokens == sum(len(text.encode()) + ENVELOPE for text in texts)
    assert permit.neutralized == 0


def test_prefix_and_tail_make_the_prompt(tokens: PromptTokens) -> None:
    """The prefix ends with the state, and with each tail it is that pass's whole prompt."""
    asked = request(LATE, choice(3))
    permit = admission(tokens).admit(asked)
    assert permit.prefix == tokens.opening("State:\nA box.").ids
    for text in every_text(asked):
        assert permit.prefix + permit.tails[text] == tokens.messages([text])[0].ids


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("options", [2, 52, 53, 60, 120, 300])
def test_tails_known_beforehand_are_those_tokenised_later(tokens: PromptTokens, options: int, samples: int) -> None:
    """Every pass has the same ids from the permit as from the tokenizer, winners' passes and all orders among them."""
    asked = request(choice(options), LATE, samples=samples)
    permit = admission(tokens).admit(asked)
    bare = Permit(asked, permit.prefix, {}, permit.passes, permit.prompt_tokens, 0)
    texts = every_text(asked)
    assert len(texts) == permit.passes
    for text in texts:
        assert tail_ids(permit, tokens, text) == tail_ids(bare, tokens, text)


@pytest.mark.parametrize("options", [53, 120, 300])
def test_planned_tokens_bound_those_of_the_winners(tokens: PromptTokens, options: int) -> None:
    """A composed question's plan is at least what is run, whichever option wins its chunk."""
    asked = request(choice(options))
    ran = sum(len(tokens.messages([text])[0].ids) for text in every_text(asked))
    assert ran <= admission(tokens).admit(asked).prompt_tokens <= ran * 1.1


@pytest.mark.parametrize("budget", ["context", "memory"])
def test_too_long_a_prompt_is_refused_with_its_numbers(tokens: PromptTokens, budget: str) -> None:
    """The longest prompt must leave one forward's room; the error names tokens, limit and budget."""
    asked = request(LATE, choice(9))
    longest = max(len(text.encode()) + ENVELOPE for text in every_text(asked))
    assert admission(tokens, **{budget: longest + 128}).admit(asked).passes == 2
    with pytest.raises(TooLong, match=budget) as refused:
        admission(tokens, **{budget: longest + 127}).admit(asked)
    assert (refused.value.tokens, refused.value.limit_tokens) == (longest, longest - 1)


def test_winners_pass_is_bounded_before_it_is_known(tokens: PromptTokens) -> None:
    """Long options, one in each chunk, may meet in the winners' pass: refused at the door, not in the middle."""
    options = tuple(Option(f"o{i}", "y" * (400 if i in (0, 150, 299) else 0)) for i in range(300))
    asked = request(Choice("c", "Which?", options))
    chunks = [len(text.encode()) + ENVELOPE for text in every_text(request(choice(1)))]
    permit = admission(tokens).admit(asked)
    longest = max(len(permit.prefix) + len(tail) for tail in permit.tails.values())
    assert longest > max(chunks)
    with pytest.raises(TooLong):
        admission(tokens, context=longest + 127).admit(asked)


def test_pass_that_comes_out_longer_than_was_admitted_is_refused(tokens: PromptTokens) -> None:
    """What was bounded by its bytes may have more tokens after all: it is not read past the context."""
    permit = admission(tokens, context=1_000).admit(request(LATE))
    assert permit.longest_tokens == 1_000 - FORWARD_TOKENS
    fits, longer = ("State:\nA box." + "x" * count for count in (500, 1_000))
    assert tail_ids(permit, tokens, fits)
    with pytest.raises(TooLong) as refused:
        tail_ids(permit, tokens, longer)
    assert (refused.value.tokens, refused.value.limit_tokens) == (len(longer) + ENVELOPE, permit.longest_tokens)


def test_control_spellings_are_counted_once_for_state_and_question(tokens: PromptTokens) -> None:
    """The state's count once, and each question's own once, whatever the number of orders."""
    spelled = Choice("c", "Which <|im_end|>?", (Option("a <|im_start|>"), Option("b"), Option("c")))
    for samples in (1, 4):
        asked = request(LATE, spelled, state="x <|im_end|> y <|im_end|>", samples=samples)
        assert admission(tokens).admit(asked).neutralized == 4


def test_state_alone_has_the_prefix_of_its_decisions(tokens: PromptTokens) -> None:
    """A prewarmed state is read to exactly where its decisions will want it."""
    for state in ("A box.", "", "x ", "x\n\n", "🙂", "<|im_end|>", {"b": 1, "a": [2]}, ["x", 1], 3.5, True):
        alone = admission(tokens).admit_state(state)
        assert alone.prefix == admission(tokens).admit(request(LATE, state=state)).prefix
        assert (alone.request, alone.passes, dict(alone.tails)) == (None, 0, {})
        assert alone.prompt_tokens == len(alone.prefix)


def test_state_alone_is_refused_when_too_long(tokens: PromptTokens) -> None:
    """A state that no decision could follow is not read."""
    prefix = len(admission(tokens).admit_state("x" * 500).prefix)
    assert admission(tokens, context=prefix + 128).admit_state("x" * 500)
    with pytest.raises(TooLong, match="context"):
        admission(tokens, context=prefix + 127).admit_state("x" * 500)


class CountingTokens:
    """The real tokens, counting the texts that were tokenised."""

    def __init__(self, tokens: Any) -> None:
        self._tokens, self.texts = tokens, 0

    def opening(self, message: str) -> Any:
        self.texts += 1
        return self._tokens.opening(message)

    def messages(self, messages: Any) -> Any:
        self.texts += len(messages)
        return self._tokens.messages(messages)


@pytest.mark.parametrize(
    ("request_", "texts"),
    [
        (DecisionRequest("late " * 100_000, (Noul("q", "Late?"),)), 0),
        (DecisionRequest("late " * 200, (Noul("q", "Late?"),)), 1),
        (DecisionRequest("late", tuple(Noul(f"q{i}", "Late?") for i in range(200)), samples=32), 1),
        (DecisionRequest("late", (Noul("q", "Late? " * 20_000),)), 1),
    ],
    ids=["bytes of the state", "tokens of the state", "passes together", "bytes of a question"],
)
def test_refused_requests_are_refused_before_their_work(request_: DecisionRequest, texts: int) -> None:
    """What is too much is refused with its numbers before the text that makes it too much is tokenised."""
    tokens = CountingTokens(PromptTokens(byte_tokenizer()))
    admission = Admission(tokens, Budgets(900, 900, decision_tokens=100_000), "plain")  # type: ignore[arg-type]
    with pytest.raises(TooLong) as caught:
        admission.admit(request_)
    assert caught.value.tokens > caught.value.limit_tokens
    assert tokens.texts == texts
