"""The real model's letter scores against plain forwards of mlx-lm: over each whole prompt, of twenty over five."""

from __future__ import annotations

import pytest

from letterwise_service.engine.reading.reader import TailScores
from letterwise_service.method.decision import Decision
from letterwise_service.method.request import DecisionRequest

from . import material
from .judging import STYLE, Judge, Judged
from .reading import Engine

# waits for the judge, which computes what it can while other tests run
pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
TOLERANCE = 2e-4
COUNTS = (1, 5, 20)


def furthest(scores: TailScores, judged: Judged) -> float:
    """The largest difference in any letter, or in the sum that the letter mass is taken from."""
    pairs = [*zip(scores.letters, judged.letters, strict=True), (scores.log_total, judged.log_total)]
    return max(abs(ours - plain) for ours, plain in pairs)


@pytest.fixture(scope="module")
def found(engine: Engine) -> dict[int, dict[str, TailScores]]:
    """The scores of 1, 5 and 20 questions on one state, by how many there are and by the pass's text."""
    return {count: engine.scores(request(count)) for count in COUNTS}


def request(count: int) -> DecisionRequest:
    return material.domain(material.twenty(material.SCORED["state"], count))


@pytest.mark.parametrize("count", COUNTS)
def test_letter_scores_equal_a_plain_forward(count: int, found: dict[int, dict[str, TailScores]], judge: Judge) -> None:
    """Prefix in chunks, tails in groups on two lanes, letter rows: within 2e-4 of the whole prompt read at once, and
    of stock mlx-lm's own prompt cache."""
    scores = found[count]
    assert len(scores) == count
    far = {}
    for index, (text, one) in enumerate(scores.items()):
        judged = judge.message(text, continued=index >= material.JUDGED_WHOLE)
        far[text] = furthest(one, judged.result())
    assert max(far.values()) <= TOLERANCE


def test_scores_do_not_depend_on_the_number_of_questions(found: dict[int, dict[str, TailScores]]) -> None:
    """A question's scores are the same bits alone, among five and among twenty, wherever it stands in a forward."""
    for few, many in ((1, 5), (5, 20)):
        for text, one in found[few].items():
            assert one.letters == found[many][text].letters
            assert one.log_total == found[many][text].log_total


def test_prompt_ids_are_those_of_mlx_lm(engine: Engine, judge: Judge) -> None:
    """Where a user spells no control token, the ids are what mlx-lm's own chat template gives, default system turn
    and all."""
    bodies = [
        material.twenty(material.SCORED["state"], material.JUDGED_WHOLE),
        material.UNUSUAL["Japanese, an emoji at the end"],
        material.UNUSUAL["300 options"],
    ]
    texts = [one.text for body in bodies for one in Decision(material.domain(body), style=STYLE).ready()]
    assert [judge.message(text).result().ids for text in texts] == engine.prompts(texts)
