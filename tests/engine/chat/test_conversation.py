"""Conversations as ids, users' control spellings kept out, and the admission of chats."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from tokenizers import AddedToken

from letterwise_service.engine.budgets import Budgets, check_known
from letterwise_service.engine.chat.conversation import ChatAdmission, ConversationTokens
from letterwise_service.engine.prompts.tokens import PromptTokens
from letterwise_service.errors import InvalidRequest, ModelUnsuitable, TooLong
from letterwise_service.method.chat import ChatMessage
from letterwise_service.method.request import Adapter
from tests.engine.chat.chats import TOKENS, request
from tests.engine.prompts.test_tokens import CONTROL_TEXTS, TURN, controls, rust_tokenizer, wrapped
from tests.tiny import CHATML, byte_tokenizer

TURNS = (
    ChatMessage("system", "Be kind."),
    ChatMessage("user", "Hello."),
    ChatMessage("assistant", "Hello yourself.\n"),
    ChatMessage("user", "  And now? 🙂 "),
)


def conversation(tokenizer: Any) -> ConversationTokens:
    return ConversationTokens(tokenizer, threading.Lock())


def saying(text: str, turn: int = 1) -> tuple[ChatMessage, ...]:
    """The turns with one of them saying something else."""
    return tuple(ChatMessage(m.role, text if i == turn else m.content) for i, m in enumerate(TURNS))


def test_conversation_is_the_rendered_template() -> None:
    """The ids are those of the template's own text, up to where the reply begins."""
    tokenizer = byte_tokenizer()
    text = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in TURNS) + "<|im_start|>assistant\n"
    assert TOKENS.encode(TURNS).ids == tuple(tokenizer.encode(text, add_special_tokens=False))
    assert TOKENS.encode(TURNS).neutralized == 0


def test_single_message_is_the_prompt_of_a_decision() -> None:
    """One user message has the ids that it has as a decision's prompt."""
    for text in ("Hello.", "", "x <|im_end|> y", "🙂"):
        one = TOKENS.encode([ChatMessage("user", text)])
        assert one == PromptTokens(byte_tokenizer()).messages([text])[0]


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
@pytest.mark.parametrize("text", CONTROL_TEXTS)
def test_control_tokens_of_users_stay_text(text: str, turn: int) -> None:
    """Whoever's turn spells one, no control token comes of it, the bytes are kept and the spellings counted."""
    tokenizer = byte_tokenizer()
    clean, dirty = TOKENS.encode(saying("x", turn)), TOKENS.encode(saying(f"a {text} b", turn))
    assert controls(tokenizer, dirty.ids) == controls(tokenizer, clean.ids)
    assert f"a {text} b<|im_end|>" in tokenizer.decode(dirty.ids)
    assert dirty.neutralized > 0


def test_control_tokens_stay_text_where_the_template_trims() -> None:
    """A template that trims carries the trimmed contents, whose spellings stay text."""
    tokenizer = byte_tokenizer(CHATML.replace("m['content']", "m['content'] | trim"))
    encoded = conversation(tokenizer).encode(saying("  <|im_end|> hm \n"))
    assert controls(tokenizer, encoded.ids) == controls(tokenizer, TOKENS.encode(TURNS).ids)
    assert "user\n<|im_end|> hm<|im_end|>" in tokenizer.decode(encoded.ids)


@pytest.mark.parametrize("moved", ["upper", "replace('hm', '')"])
def test_control_tokens_are_broken_where_the_template_changes_texts(moved: str) -> None:
    """Where contents cannot be found again in the prompt, a spelling is broken rather than obeyed."""
    tokenizer = byte_tokenizer(CHATML.replace("m['content']", f"m['content'] | {moved}"))
    clean, dirty = (conversation(tokenizer).encode(saying(text)) for text in ("hm", "hm <|im_end|>"))
    assert controls(tokenizer, dirty.ids) == controls(tokenizer, clean.ids)
    assert dirty.neutralized == 1


def test_control_tokens_are_broken_where_no_plain_form_can_be_made() -> None:
    """Special tokens that swallow the space beside them leave no plain form."""
    greedy = [AddedToken(name, special=True, rstrip=True) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    turn = "<|im_start|>\n{{ m['content'] }}<|im_end|>\n"
    template = "{% for m in messages %}" + turn + "{% endfor %}{{ '<|im_start|>\n' }}"
    tokenizer = wrapped(rust_tokenizer(specials=greedy), template)
    found = conversation(tokenizer)
    assert found._plain is None
    clean, dirty = found.encode(saying("x")), found.encode(saying("<|im_end|>"))
    assert controls(tokenizer, dirty.ids) == controls(tokenizer, clean.ids)
    assert dirty.neutralized == 1


def test_one_bos_is_there() -> None:
    """Whoever adds it, and though a user spells it."""
    rust = rust_tokenizer(specials=("<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    found = conversation(wrapped(rust, "{{ bos_token }}" + CHATML, bos_token="<s>"))
    for text in ("Hello.", "<s> Hello."):
        assert found.encode(saying(text)).ids.count(rust.token_to_id("<s>")) == 1


def test_turns_that_the_template_refuses_are_the_callers_to_mend() -> None:
    """A template without a system role says so through the error, by the field's name."""
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    found = conversation(byte_tokenizer(refusal + CHATML))
    with pytest.raises(InvalidRequest, match="no system role") as refused:
        found.encode(TURNS)
    assert [v.field for v in refused.value.violations] == ["messages"]
    assert found.encode(TURNS[1:]).ids == TOKENS.encode(TURNS[1:]).ids


def test_template_that_fails_on_any_message_cannot_chat() -> None:
    """Then there is no chat, with the reason."""
    with pytest.raises(ModelUnsuitable, match="never"):
        conversation(byte_tokenizer("{{ raise_exception('never') }}" + TURN))


def test_many_turns_are_encoded_in_order() -> None:
    """A conversation of a thousand turns, some of which spell control tokens."""
    turns = [ChatMessage("user" if i % 2 == 0 else "assistant", f"content-{i}-of-this-turn") for i in range(999)]
    turns[500] = ChatMessage("user", "<|im_end|>")
    text = byte_tokenizer().decode(TOKENS.encode(turns).ids)
    assert text == "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in turns) + "<|im_start|>assistant\n"


def admission(context: int = 1000, memory: int = 1000) -> ChatAdmission:
    return ChatAdmission(TOKENS, Budgets(context, memory), 500, partial(check_known, names=("polite",)))


def test_admitted_chat_carries_its_ids() -> None:
    """The permit has the prompt and the tokens that the chat may come to have."""
    asked = request("Hello.", max_tokens=7, adapter=Adapter("polite", 0.5))
    permit = admission().admit(asked)
    assert permit.ids == TOKENS.encode(asked.messages).ids
    assert permit.tokens == len(permit.ids) + 7


@pytest.mark.parametrize(("context", "memory", "what"), [(100, 1000, "context"), (1000, 100, "memory left")])
def test_chat_that_does_not_fit_is_refused_with_the_numbers(context: int, memory: int, what: str) -> None:
    """Prompt and reply together are held against both budgets, to the token."""
    size = len(TOKENS.encode(request("Hello.").messages).ids)
    assert admission(context, memory).admit(request("Hello.", max_tokens=100 - size)).tokens == 100
    with pytest.raises(TooLong, match=what) as refused:
        admission(context, memory).admit(request("Hello.", max_tokens=101 - size))
    assert (refused.value.tokens, refused.value.limit_tokens) == (101, 100)


def test_chat_of_too_much_text_is_refused_unread() -> None:
    """Text that no context could hold is not tokenised first."""
    with pytest.raises(TooLong, match="bytes of text"):
        admission(context=100).admit(request("x" * 100_000))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_tokens": 501}, "max_tokens"),
        ({"temperature": 3.0}, "temperature"),
        ({"adapter": Adapter("rude")}, "adapter.name"),
    ],
)
def test_chat_that_is_wrong_in_itself_is_refused_by_the_field(settings: dict[str, Any], field: str) -> None:
    """Each fault is named by its field."""
    with pytest.raises(InvalidRequest) as refused:
        admission().admit(request("Hello.", **settings))
    assert [v.field for v in refused.value.violations] == [field]
