"""A job's steps on a real tiny model, taken one at a time: its events, its answers and its account."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.events import Accepted, Answered, Completed, PrefixProgress, WasSkipped
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.steps import Served
from letterwise_service.method.answers import ChoiceAnswer, Skipped
from letterwise_service.method.calibration import calibrated_yes, letter_probabilities
from letterwise_service.method.decision import Decision
from letterwise_service.method.request import Choice, DecisionRequest, Option, Question
from tests.engine.decisions import BAD, LATE, LONG_STATE, TOKENS, WHICH, decide, finish, make, service, unpinned
from tests.tiny import full_scores


def plain_answers(served: Served, *questions: Question, state: Any = LONG_STATE) -> dict[str, tuple[float, ...]]:
    """Probabilities from one plain forward for each pass of questions that need one each."""
    found: dict[str, tuple[float, ...]] = {}
    with kernels.stock():
        for one in Decision(DecisionRequest(state, questions), style="plain").ready():
            ids = list(TOKENS.messages([one.text])[0].ids)
            scores = full_scores(served.reader.model, ids, TOKENS.letter_ids)
            found[one.question_id] = letter_probabilities(scores[: one.letters])
    return found


def test_events_come_in_order(served: Served) -> None:
    """Accepted, the prefix growing to its whole, an answer for each question, completed; nothing after."""
    job, heard = make(LATE, WHICH, BAD)
    finish(job, served)
    kinds = [type(event) for event in heard.events]
    progress = [event for event in heard.events if isinstance(event, PrefixProgress)]
    assert kinds == [Accepted, *[PrefixProgress] * len(progress), *[Answered] * 3, Completed]
    assert heard.events[0] == Accepted(3, job.permit.prompt_tokens)
    assert [event.done_tokens for event in progress] == [0, 256, len(job.permit.prefix)]
    assert {event.total_tokens for event in progress} == {len(job.permit.prefix)}
    assert set(heard.outcomes()) == {"late", "which", "bad"}


def test_answers_are_those_of_plain_forwards(served: Served) -> None:
    """The whole path gives the probabilities of running each prompt in one forward."""
    answers = decide(served, LATE, WHICH, BAD)
    plain = plain_answers(served, LATE, WHICH, BAD)
    assert answers["late"].probability == pytest.approx(calibrated_yes(plain["late"][0]), abs=1e-5)  # type: ignore[union-attr]
    for id in ("which", "bad"):
        assert answers[id].probabilities == pytest.approx(plain[id], abs=1e-5)  # type: ignore[union-attr]
        assert 0.0 < answers[id].letter_mass < 1.0  # type: ignore[union-attr]


def test_diagnostics_account_for_what_was_run(served: Served, forwards: list[int]) -> None:
    """Passes, tokens and forwards are those of the run; a kept prefix is reused and not counted as computed."""
    job, heard = make(LATE, WHICH)
    finish(job, served)
    told = heard.completed().diagnostics
    prefix, tails = len(job.permit.prefix), sum(map(len, job.permit.tails.values()))
    assert (told.passes, told.stages, told.orderings, told.readout, told.path) == (2, 1, 1, "letters", "rows")
    assert told.prompt_tokens == job.permit.prompt_tokens == 2 * prefix + tails
    assert told.computed_tokens == prefix + tails
    assert told.forwards == len(forwards)
    assert told.computed_tokens + told.padded_tokens == sum(forwards)
    assert (told.prefix.tokens, told.prefix.reused_tokens, told.prefix.stored) == (prefix, 0, True)
    assert told.total_seconds >= told.prefix_seconds + told.tails_seconds > 0
    again, heard = make(LATE, WHICH)
    finish(again, served)
    told = heard.completed().diagnostics
    assert (told.prefix.reused_tokens, told.computed_tokens) == (prefix, tails)


def test_kept_prefix_gives_the_bits_of_a_computed_one(served: Served) -> None:
    """Cold, kept, and without a store: the same answers, bit for bit."""
    cold = decide(served, LATE, WHICH, BAD)
    assert decide(served, LATE, WHICH, BAD) == cold
    assert served.store.describe().hits == 1
    assert decide(service(served.reader, tier="off"), LATE, WHICH, BAD) == cold


def test_answers_do_not_depend_on_the_other_questions(served: Served) -> None:
    """Each question alone has the answer that it has in any company and order."""
    together = decide(served, LATE, WHICH, BAD)
    assert decide(served, BAD, WHICH, LATE) == together
    for question in (LATE, WHICH, BAD):
        assert decide(served, question) == {question.id: together[question.id]}


def test_prewarm_reads_the_state_alone(served: Served) -> None:
    """A prewarm keeps the prefix, and the decision after it computes only its tails."""
    job, heard = make()
    finish(job, served)
    told = heard.completed().diagnostics
    assert (told.passes, told.stages, told.computed_tokens) == (0, 0, len(job.permit.prefix))
    assert told.prefix.stored
    cold = decide(service(served.reader), LATE)
    job, heard = make(LATE)
    finish(job, served)
    assert heard.completed().diagnostics.prefix.reused_tokens == len(job.permit.prefix)
    assert heard.outcomes() == cold


def test_two_jobs_on_one_cold_state_compute_it_once(served: Served) -> None:
    """The second waits for the first's prefix and reads over it; their answers are equal."""
    (first, one), (second, two) = make(LATE, WHICH), make(WHICH, LATE)
    first.start(served)
    second.start(served)
    running = [first, second]
    while running:
        running = [job for job in running if not job.advance()]
    assert one.outcomes() == two.outcomes()
    prefix = first.permit.prefix
    assert served.store.describe().records == -(-len(prefix) // FORWARD_TOKENS)
    told = two.completed().diagnostics
    assert told.prefix.stored
    assert told.prefix.reused_tokens == len(prefix)
    assert told.computed_tokens == sum(map(len, second.permit.tails.values()))
    assert unpinned(served)


def test_questions_are_asked_in_stages_and_skipped(served: Served) -> None:
    """A question whose condition holds is read in a second stage; one whose does not is skipped, with the reason."""
    first = decide(served, WHICH)["which"]
    assert isinstance(first, ChoiceAnswer)
    other = next(name for name in first.names if name != first.choice)
    asked = replace(LATE, ask_if={"which": (first.choice,)})
    skipped = replace(BAD, ask_if={"which": (other,)})
    job, heard = make(asked, skipped, WHICH)
    finish(job, served)
    outcomes, told = heard.outcomes(), heard.completed().diagnostics
    assert outcomes["late"] == decide(served, LATE)["late"]
    assert outcomes["bad"] == Skipped("bad", "which", first.choice, (other,))
    assert (told.stages, told.passes, told.skipped) == (2, 2, (outcomes["bad"],))
    assert [type(e) for e in heard.events].count(WasSkipped) == 1


def test_three_hundred_options_are_answered(served: Served) -> None:
    """Six chunks and their winners: a distribution over all options that sums to one, the same again."""
    many = Choice("many", "Which?", tuple(Option(f"option {i}") for i in range(300)))
    job, heard = make(many)
    finish(job, served)
    answer = heard.outcomes()["many"]
    assert isinstance(answer, ChoiceAnswer)
    assert len(answer.probabilities) == 300
    assert sum(answer.probabilities) == pytest.approx(1.0, abs=1e-12)
    assert heard.completed().diagnostics.passes == 7
    assert decide(served, many)["many"] == answer


def test_four_samples_average_four_orders(served: Served) -> None:
    """Every order is read once, and the average is by option."""
    job, heard = make(WHICH, LATE, samples=4)
    finish(job, served)
    told = heard.completed().diagnostics
    assert (told.passes, told.orderings) == (8, 4)
    assert told.prompt_tokens == job.permit.prompt_tokens
    single = decide(served, WHICH)["which"]
    assert heard.outcomes()["which"] != single
