"""A decision's outcome as plain lines for a reader: one per question, the most probable first.

Pure; knows nothing of terminals. Rounding is for the eye alone: `--json` prints every digit.
"""

from __future__ import annotations

from collections.abc import Iterator

from .method.answers import Answer, ChoiceAnswer, NoulAnswer, Skipped
from .method.dependencies import answer_names
from .method.paths import shown
from .method.request import DecisionRequest, Question
from .offline import Decided

_SHOWN_OPTIONS = 5


def lines(request: DecisionRequest, decided: Decided) -> Iterator[str]:
    """A line per question in the request's order, then one about the run."""
    questions = {question.id: question for question in request.questions}
    for outcome in decided.outcomes:
        if isinstance(outcome, Skipped):
            yield f"{shown(outcome.id)}: {_skipped(outcome)}"
        else:
            answer = _answer(questions[outcome.id], outcome)
            yield f"{shown(outcome.id)}: {answer}  [letter mass {outcome.letter_mass:.3f}]"
    ran = decided.diagnostics
    yield (
        f"{decided.model}: {ran.passes} passes, {ran.forwards} forwards, {ran.computed_tokens} of "
        f"{ran.prompt_tokens} tokens computed, {ran.total_seconds:.2f} s"
    )


def _answer(question: Question, answer: Answer) -> str:
    if isinstance(answer, NoulAnswer):
        word = "yes" if answer.probability >= 0.5 else "no"
        return f"{word}  (yes {answer.probability:.4f})"
    listed = _listed(answer_names(question), answer.probabilities)
    if isinstance(answer, ChoiceAnswer):
        return f"{shown(answer.choice)}  ({listed}; confidence {answer.confidence:.4f})"
    return f"{answer.score:.4f} of {len(answer.legend) - 1}  ({listed}; confidence {answer.confidence:.4f})"


def _listed(names: tuple[str, ...], probabilities: tuple[float, ...]) -> str:
    ranked = sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1])
    parts = [f"{shown(name)} {probability:.4f}" for name, probability in ranked[:_SHOWN_OPTIONS]]
    if more := len(ranked) - len(parts):
        parts.append(f"{more} more")
    return ", ".join(parts)


def _skipped(skipped: Skipped) -> str:
    because = shown(skipped.because)
    if skipped.was is None:
        return f"skipped  ({because} was skipped too)"
    wanted = " or ".join(shown(name) for name in skipped.wanted)
    return f"skipped  ({because} was {shown(skipped.was)}, not {wanted})"
