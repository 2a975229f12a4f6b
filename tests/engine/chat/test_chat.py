"""The chat lane on tiny models: mlx-lm's own tokens, draws, ends, kept prompts, adapters row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.events import ChatFinished, ChatStarted, ChatText
from letterwise_service.engine.models.adapters import Adapters
from letterwise_service.method.request import Adapter
from tests.engine.chat.chats import LONG, ChatHeard, lane, permit
from tests.engine.conftest import streams
from tests.engine.models.adapter_files import adapter_folder, matrices, modules
from tests.tiny import tiny_model

KINDS = ("llama", "gemma3_text", "qwen3_5")  # plain attention, windows, recurrent layers
ASKED: list[tuple[str, ...]] = [("Short.",), (LONG,), (LONG[:200], "Yes.", "And then?"), ("x" * 130,)]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 16}


def plain_tokens(model: Any, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
    """What mlx-lm's own loop for one conversation generates."""
    from mlx_lm.generate import generate_step

    steps = generate_step(mx.array(ids), model, stream=streams()[0], max_tokens=count, prefill_step_size=128)
    return [(token, log_probabilities[token].item()) for token, log_probabilities in steps]


def assert_same(heard: ChatHeard, right: list[tuple[int, float]]) -> None:
    """The same tokens, and ln probabilities that differ by rounding at most."""
    assert heard.ids == [token for token, _ in right]
    assert [x for _, x in heard.tokens] == pytest.approx([x for _, x in right], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_chat_is_what_plain_mlx_lm_generates(kind: str) -> None:
    """Token for token the greedy message of mlx-lm's loop, with its ln probabilities, for prompts of all lengths."""
    made = lane(kind)
    for texts in ASKED:
        heard = made.chat(*texts)
        right = plain_tokens(made.lane._served.model, permit(*texts).ids, 8)
        assert_same(heard, right)


@pytest.mark.parametrize("kind", KINDS)
def test_chats_together_say_what_each_says_alone(kind: str) -> None:
    """Rows that join the batch one after another, at every stage of the others."""
    alone = [lane(kind).chat(*texts) for texts in ASKED]
    made, together = lane(kind), []
    for steps, texts in enumerate(ASKED):
        together.append(made.put(permit(*texts))[1])
        made.steps(steps)
    made.run()
    for heard, right in zip(together, alone, strict=True):
        assert_same(heard, right.tokens)


def test_chat_tells_its_life_in_order() -> None:
    """Started, a text for each token, finished; the numbers are those of what was told."""
    heard = lane().chat(LONG, max_tokens=5)
    kinds = [type(event) for event in heard.events]
    assert kinds == [ChatStarted, *[ChatText] * 5, ChatFinished]
    assert heard.started == ChatStarted(len(permit(LONG).ids), 0)
    last = heard.finished()
    assert (last.model, last.reason, last.prompt_tokens, last.output_tokens) == (
        "tiny",
        "length",
        len(permit(LONG).ids),
        5,
    )
    assert 0 <= last.queue_seconds <= last.total_seconds
    assert len(heard.ids) == 5
    assert all(math.isfinite(x) and x <= 0 for _, x in heard.tokens)


def test_end_token_ends_the_message_and_is_not_shown() -> None:
    """The message stops at any of the tokenizer's ends, which counts as a token and is no text."""
    whole = lane().chat()
    end = whole.ids[5]
    assert end not in whole.ids[:5]
    heard = lane(ends=[260, end]).chat()
    assert heard.tokens == whole.tokens[:6]
    assert heard.text == lane().chat(max_tokens=5).text
    assert (heard.finished().reason, heard.finished().output_tokens) == ("stop", 6)


def test_stop_text_ends_the_message_across_tokens() -> None:
    """A text that three tokens spell is cut off with all after it; the row is gone at once, another goes on."""
    made = lane()
    whole = made.chat(max_tokens=30)
    at = next(i for i in range(6, 20) if whole.text[i : i + 3].isascii())
    stop = whole.text[at : at + 3]
    _, other = made.put(permit(LONG, max_tokens=30))
    _, heard = made.put(permit(max_tokens=30, stop=("never said", stop)))
    made.run()
    assert heard.text == whole.text[: whole.text.find(stop)]
    assert heard.finished().reason == "stop"
    assert len(heard.ids) < 30
    assert heard.tokens == whole.tokens[: len(heard.ids)]
    assert len(other.ids) == 30
    assert made.held_bytes == 0


def test_seed_repeats_a_chat_and_another_does_not() -> None:
    """The same seed gives the same tokens, to the bit, whatever the global random state; another one others."""
    made = lane()
    first = made.chat(LONG, seed=5, **SAMPLED)
    mx.random.seed(1)
    assert made.chat(LONG, seed=5, **SAMPLED).tokens == first.tokens
    assert made.chat(LONG, seed=6, **SAMPLED).ids != first.ids
    assert made.chat(LONG, **SAMPLED).ids != made.chat(LONG, **SAMPLED).ids
    assert made.chat(LONG, max_tokens=16).ids != first.ids


def test_seed_repeats_a_chat_beside_others() -> None:
    """A row's draws are its own: rows beside it, greedy and drawing, change none of its tokens."""
    alone = lane().chat(LONG, seed=5, **SAMPLED)
    made = lane()
    beside = [made.put(permit(text, max_tokens=30, temperature=t, seed=9)) for text, t in (("a", 0.0), ("b", 1.2))]
    made.steps(6)
    _, heard = made.put(permit(LONG, seed=5, **SAMPLED))
    made.run()
    assert heard.ids == alone.ids
    assert all(len(one.ids) == 30 for _, one in beside)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_prompt_changes_no_bit(kind: str) -> None:
    """The same prompt, a longer one and the next turn reuse whole chunks, and say what they say from nothing."""
    made = lane(kind)
    first = made.chat(LONG)
    assert first.started.reused_tokens == 0
    size = len(permit(LONG).ids) // 128 * 128
    for texts in ((LONG,), (LONG + "More.",), (LONG, "I see.", "What now? " * 20)):
        again = made.chat(*texts)
        assert again.started.reused_tokens == size
        assert again.tokens == lane(kind).chat(*texts).tokens


@pytest.mark.parametrize(("kind", "reused"), [("llama", 128), ("gemma3_text", 0), ("qwen3_5", 0)])
def test_prompt_that_turns_off_reuses_what_the_layers_can_give(kind: str, reused: int) -> None:
    """A kept prompt is taken back to where another turns off, where layers can go back; the bits are always right."""
    made = lane(kind)
    made.chat(LONG)
    other = LONG[:200] + "!" + LONG[201:]
    heard = made.chat(other)
    assert heard.started.reused_tokens == reused
    assert heard.tokens == lane(kind).chat(other).tokens


def test_kept_prompts_are_bounded_by_bytes() -> None:
    """The oldest goes first; one that is larger than all may be is not kept."""
    made = lane(cache_bytes=400_000)
    for letter in "abc":
        made.chat(letter * 400)
        assert 0 < made.lane._kept.nbytes <= 400_000
    assert made.chat("a" * 400).started.reused_tokens == 0
    assert made.chat("a" * 400).started.reused_tokens == 384
    small = lane(cache_bytes=1000)
    small.chat(LONG)
    assert (len(small.lane._kept), small.lane._kept.nbytes) == (0, 0)


def test_rows_of_one_batch_use_their_own_adapters(tmp_path: Path) -> None:
    """Each row says what it says when all use its adapter; what is kept of prompts is kept apart."""
    model, adapters = tiny_model("llama"), Adapters()
    for seed, name in ((1, "one"), (2, "two")):
        tensors = matrices(model, modules(model, "q_proj", "down_proj"), seed=seed)
        adapters.load(model, name, adapter_folder(tmp_path / name, tensors), float32=True)
    make = partial(lane, model, published=adapters.published, salt=adapters.salt)
    used = (None, Adapter("one"), Adapter("two"), Adapter("one", 0.5))
    alone = [make().chat(LONG, adapter=adapter) for adapter in used]
    assert len({tuple(heard.ids) for heard in alone}) == 4
    made = make()
    for _ in range(2):
        together = [made.put(permit(LONG, adapter=adapter))[1] for adapter in used]
        made.run()
        assert [heard.ids for heard in together] == [heard.ids for heard in alone]
    assert [heard.started.reused_tokens for heard in together] == [256] * 4
    lengths = (6, 3, 8, 5)
    left = [made.put(permit(LONG, max_tokens=n, adapter=one))[1] for n, one in zip(lengths, used, strict=True)]
    made.run()
    assert [heard.ids for heard in left] == [right.ids[:n] for n, right in zip(lengths, alone, strict=True)]
