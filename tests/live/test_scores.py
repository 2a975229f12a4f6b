"""The real model's letter scores against one plain forward of mlx-lm over each whole prompt."""

from __future__ import annotations

import pytest
from letterwise_service.engine.reader import TailScores
from letterwise_service.method.decision import Decision

from . import material
from .judging import STYLE, Judge, Judged
from .reading import Engine

pytestmark = pytest.mark.live
TOLERANCE = 2e-4


def furthest(scores: TailScores, judged: Judged) -> float:
    """The largest difference in any letter, or in the sum that the letter mass is taken from."""
    pairs = [*zip(scores.letters, judged.letters, strict=True), (scores.log_total, judged.log_total)]
    return max(abs(ours - plain) for ours, plain in pairs)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_letter_scores_equal_a_plain_forward(count: int, engine: Engine, judge: Judge) -> None:
    """Prefix in chunks, tails in groups on two lanes, letter rows: within 2e-4 of the whole prompt read at once."""
    body = material.twenty(material.SCORED["state"], count)
    scores = engine.scores(material.domain(body))
    assert len(scores) == count
    far = {text: furthest(found, judge.message(text).result()) for text, found in scores.items()}
    assert max(far.values()) <= TOLERANCE


def test_prompt_ids_are_those_of_mlx_lm(engine: Engine, judge: Judge) -> None:
    """Where a user spells no control token, the ids are what mlx-lm's own chat template gives, default system turn
    and all."""
    bodies = [material.SCORED, material.UNUSUAL["Japanese, an emoji at the end"], material.UNUSUAL["300 options"]]
    texts = [one.text for body in bodies for one in Decision(material.domain(body), style=STYLE).ready()]
    assert [judge.message(text).result().ids for text in texts] == engine.prompts(texts)


def test_scores_do_not_depend_on_the_number_of_questions(engine: Engine) -> None:
    """The first question's scores are the same bits alone, among five and among twenty."""
    requests = [material.domain(material.twenty(material.letters_of(3), count)) for count in (1, 5, 20)]
    first = Decision(requests[0], style=STYLE).ready()[0].text
    found = [engine.scores(request)[first] for request in requests]
    assert {one.letters for one in found} == {found[0].letters}
    assert {one.log_total for one in found} == {found[0].log_total}
