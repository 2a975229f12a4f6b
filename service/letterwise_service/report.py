"""A decision's outcome as plain lines for a reader, the same lines that `letterwise decide` prints of a server's reply.

Pure; knows nothing of terminals. The two packages may not import each other, so a test holds the two layouts together.
Rounding is for the eye alone: `--json` prints every digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from .method.answers import Answer, ChoiceAnswer, NoulAnswer, Skipped
from .method.request import Json
from .offline import Decided


def lines(decided: Decided) -> Iterator[str]:
    """A line per answer and one for each of its options, then a line per skip and one about the run."""
    skipped = [outcome for outcome in decided.outcomes if isinstance(outcome, Skipped)]
    for answer in decided.outcomes:
        if not isinstance(answer, Skipped):
            yield f"{_shown(answer.id)}: {_headline(answer)}, letter mass {answer.letter_mass:.3f}"
            yield from (f"  {probability:.6f} {name}" for name, probability in _options(answer))
    yield from (f"{_shown(skip.id)}: {_reason(skip)}" for skip in skipped)
    yield f"{_shown(decided.model)}: {_summary(decided)}"


def _headline(answer: Answer) -> str:
    if isinstance(answer, NoulAnswer):
        return "yes" if answer.probability >= 0.5 else "no"
    if isinstance(answer, ChoiceAnswer):
        return f"{_shown(answer.choice)}, confidence {answer.confidence:.3f}"
    return f"{answer.score:.3f} from 0 to {len(answer.legend) - 1}, confidence {answer.confidence:.3f}"


def _options(answer: Answer) -> list[tuple[str, float]]:
    if isinstance(answer, NoulAnswer):
        return [("yes", answer.probability), ("no", 1 - answer.probability)]
    if isinstance(answer, ChoiceAnswer):
        names = [_shown(name) for name in answer.names]
    else:
        names = [f"{index} {_shown(level)}" for index, level in enumerate(answer.legend)]
    return list(zip(names, answer.probabilities, strict=True))


def _reason(skipped: Skipped) -> str:
    was = "was skipped" if skipped.was is None else f"answered {_shown(skipped.was)}"
    return f"skipped, because {_shown(skipped.because)} {was} (asked only for {_listed(skipped.wanted)})"


def _summary(decided: Decided) -> str:
    ran = decided.diagnostics
    tokens = f"{ran.prompt_tokens} prompt tokens, {ran.prefix.reused_tokens} reused, {ran.computed_tokens} computed"
    orders = f" in {ran.orderings} option orders" if ran.orderings > 1 else ""
    return f"{ran.passes} passes{orders}, {ran.forwards} forwards, {tokens}, {ran.total_seconds:.2f} s"


def _listed(names: Sequence[str]) -> str:
    words = [_shown(name) for name in names]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
