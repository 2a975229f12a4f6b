"""What is remembered of the texts that were encoded last."""

from __future__ import annotations

from letterwise_service.engine.budgets import Admission, Budgets
from letterwise_service.engine.prompts.recent import Recent
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.method.request import DecisionRequest, Noul
from tests.tiny import byte_tokenizer


def test_recent_forgets_the_least_recently_used_beyond_its_characters() -> None:
    """Characters are the bound; asking for a text makes it recent; what else it depends on is part of the key."""
    recent: Recent[int] = Recent(12)
    for number, text in enumerate(("aaa", "bbb", "ccc", "ddd")):
        recent.put(text, "", number)
    assert recent.get("aaa", "") == 0
    recent.put("eee", "", 4)
    assert [recent.get(text, "") for text in ("aaa", "bbb", "ccc", "ddd", "eee")] == [0, None, 2, 3, 4]
    assert recent.get("aaa", "footer") is None


def test_recent_holds_no_text_that_would_push_out_all_others() -> None:
    """A quarter of the bound is the longest."""
    recent: Recent[int] = Recent(12)
    recent.put("aaa", "", 1)
    recent.put("a" * 100, "", 2)
    recent.put("aaa", "", 3)
    assert len(recent) == 1
    assert recent.get("aaa", "") == 3


def test_admission_of_a_known_state_gives_the_same_permit_and_tokenises_what_is_new() -> None:
    """The second time nothing is encoded; another question on the state encodes its own prompt alone."""
    tokens = PromptTokens(byte_tokenizer())
    encoded: list[str] = []
    plain = tokens._encode_texts

    def counted(texts: list[str]) -> list[list[int]]:
        encoded.extend(texts)
        return plain(texts)

    tokens._encode_texts = counted
    admission = Admission(tokens, Budgets(10_000, 10_000), "plain")
    late = DecisionRequest("A parcel came.", (Noul("late", "Is it late?"),))
    first = admission.admit(late)
    assert len(encoded) == 2
    assert admission.admit(late) == first
    assert len(encoded) == 2
    admission.admit(DecisionRequest("A parcel came.", (Noul("open", "Is it open?"),)))
    assert len(encoded) == 3
