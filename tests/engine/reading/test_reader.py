"""Prefixes and tails against one plain forward over the whole prompt, and against themselves bit for bit."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from letterwise_service.engine.backend import mx
from letterwise_service.engine.reading import kernels, views
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.probe import drain
from letterwise_service.engine.reading.reader import Reader, TailScores, Work
from tests.engine.conftest import LETTER_IDS, random_ids, read, streams, wide_model
from tests.tiny import full_scores, tiny_model

ARCHITECTURES = ["llama", "qwen3", "gemma3_text", "qwen3_5", "wide"]
PREFIXES = [1, 50, 127, 128, 129, 333]
TAILS = [1, 5, 8, 40, 64, 127, 128, 129, 300]
MIXED = [5, 7, 8, 29, 32, 33, 40, 40, 38, 64, 57, 100, 129, 1]
ReaderOf = Callable[[str], Reader]


def lengths(architecture: str, every: Sequence[int]) -> list[int]:
    """Every length on a plain model; fewer on the others, whose windows and recurrent steps take their time."""
    left_out = {"llama": (), "qwen3_5": (50, 64, 127, 128, 300, 333)}.get(architecture, (1, 50, 64, 127))
    return [n for n in every if n not in left_out]


def judged(model: Any, prefix: list[int], tail: list[int]) -> list[float]:
    """What the stock model says of the whole prompt in one forward."""
    with kernels.stock():
        return full_scores(model, prefix + tail, LETTER_IDS)


def assert_close(found: TailScores, right: list[float]) -> None:
    size = max(1.0, *map(abs, right))
    assert max(abs(a - b) for a, b in zip(found.letters, right, strict=True)) <= 2e-5 * size


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tails_have_the_scores_of_a_full_forward(reader_of: ReaderOf, architecture: str) -> None:
    """Every length of tail over every length of prefix, read together, scores as its prompt in one forward."""
    reader = reader_of(architecture)
    tails = [random_ids(n, seed=1) for n in lengths(architecture, TAILS)]
    for prefix in (random_ids(n) for n in lengths(architecture, PREFIXES)):
        for found, tail in zip(read(reader, prefix, tails), tails, strict=True):
            assert_close(found, judged(reader.model, prefix, tail))


def test_wrong_prefix_has_other_scores(reader_of: ReaderOf) -> None:
    """The comparison can fail: one other id in the prefix moves the scores far more than it allows."""
    for architecture in ARCHITECTURES:
        reader = reader_of(architecture)
        prefix, tail = random_ids(50), random_ids(8, seed=1)
        other = [*prefix[:-1], prefix[-1] ^ 1]
        with pytest.raises(AssertionError):
            assert_close(read(reader, other, [tail])[0], judged(reader.model, prefix, tail))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_are_a_tails_own(reader_of: ReaderOf, architecture: str) -> None:
    """Alone, beside others, in another order, again, over a kept or a new prefix: the same bits."""
    reader = reader_of(architecture)
    prefix = random_ids(150)
    tails = [random_ids(n, seed=i) for i, n in enumerate(lengths(architecture, MIXED))]
    cache = drain(reader.prefill(prefix, Work()))
    before = [mx.array(a) for a in views.arrays(cache)]
    mx.eval(before)
    together = read(reader, prefix, tails, cache)
    order = random.Random(2).sample(range(len(tails)), len(tails))
    turned = read(reader, prefix, [tails[i] for i in order], cache)
    for i, tail in enumerate(tails):
        alone = read(reader, prefix, [tail], cache)[0]
        assert replace(alone, index=i) == together[i]
        assert replace(turned[order.index(i)], index=i) == together[i]
    assert read(reader, prefix, tails, cache) == together
    assert read(reader, prefix, tails) == together
    assert all(mx.array_equal(a, b).item() for a, b in zip(before, views.arrays(cache), strict=True))


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_5", "wide"])
@pytest.mark.parametrize(
    "change",
    [{"share": None}, {"share": None, "copy": None}, {"share": views.merged}, {"copy": None}, {"rows_limit": 1}],
    ids=["copies", "computed again", "merged", "long tails computed again", "a row each"],
)
def test_every_manner_has_the_scores_of_a_full_forward(
    reader_of: ReaderOf, architecture: str, change: dict[str, Any]
) -> None:
    """Where views or copies are not to be had, the other ways give the same scores, and again the same bits."""
    found = reader_of(architecture)
    reader = Reader(found.model, replace(found.manner, **change), streams())
    prefix, tails = random_ids(70), [random_ids(n, seed=1) for n in lengths(architecture, [1, 8, 40, 38, 128, 135])]
    cache = drain(reader.prefill(prefix, Work()))
    scores = read(reader, prefix, tails, cache)
    for one, tail in zip(scores, tails, strict=True):
        assert_close(one, judged(reader.model, prefix, tail))
    assert read(reader, prefix, tails, cache) == scores
    if "share" in change and change["share"] is None:
        assert [replace(read(reader, prefix, [tail], cache)[0], index=i) for i, tail in enumerate(tails)] == scores


def test_rows_share_forwards_on_a_model_of_some_size(reader_of: ReaderOf) -> None:
    """Short tails go several to a forward, and their forwards two to a step."""
    reader = reader_of("wide")
    assert reader.manner.rows_limit == FORWARD_TOKENS
    work, prefix = Work(), random_ids(100)
    cache = drain(reader.prefill(prefix, Work()))
    steps = list(reader.read(prefix, cache, [random_ids(30, seed=i) for i in range(12)], work))
    assert (work.forwards, work.computed_tokens, work.padded_tokens) == (3, 360, 24)
    assert [len(step) for step in steps] == [8, 4]


def test_work_counts_tokens_and_padding(reader_of: ReaderOf) -> None:
    """Prefix chunks, shared forwards with their padding, and long tails in chunks without any."""
    reader = Reader(reader_of("wide").model, replace(reader_of("wide").manner, rows_limit=FORWARD_TOKENS), streams())
    work, prefix = Work(), random_ids(300)
    assert list(reader.prefill(prefix, work)) == [256, 44]
    assert (work.forwards, work.computed_tokens, work.padded_tokens) == (3, 300, 0)
    tails, work = [random_ids(n) for n in (300, 40, 33, 1)], Work()
    read_steps = list(reader.read(prefix, drain(reader.prefill(prefix, Work())), tails, work))
    assert (work.forwards, work.computed_tokens, work.padded_tokens) == (3 + 1 + 1, 374, 7 + 31)
    assert sorted(one.index for step in read_steps for one in step) == [0, 1, 2, 3]


def test_prefix_bits_do_not_depend_on_what_is_read_between(reader_of: ReaderOf) -> None:
    """Two prefixes computed by turns, a step each, are those computed one after the other."""
    reader = reader_of("wide")
    firsts = [drain(reader.prefill(random_ids(500, seed=i), Work())) for i in (1, 2)]
    running = {i: reader.prefill(random_ids(500, seed=i), Work()) for i in (1, 2)}
    caches: dict[int, Any] = {}
    while running:
        for i in list(running):
            try:
                next(running[i])
                read(reader, random_ids(60), [random_ids(9)])
            except StopIteration as end:
                caches[i] = end.value
                del running[i]
    for first, i in zip(firsts, (1, 2), strict=True):
        pairs = zip(views.arrays(first), views.arrays(caches[i]), strict=True)
        assert all(mx.array_equal(a, b).item() for a, b in pairs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pace_changes_no_bit(reader_of: ReaderOf, architecture: str) -> None:
    """A forward a step, spread over the lanes, or a forward on each: the same scores, in fewer steps or more."""
    found = reader_of(architecture)
    fast, slow = (Reader(found.model, found.manner, streams()) for _ in range(2))
    slow.pace.forwards = 1
    prefix, tails = random_ids(300), [random_ids(n, seed=i) for i, n in enumerate((20, 25, 31, 17, 30, 28, 61, 64))]
    assert read(slow, prefix, tails) == read(fast, prefix, tails)
    assert [len(list(reader.prefill(prefix, Work()))) for reader in (fast, slow)] == [2, 3]
    adapted = slow.publishing(slow.manner, nullcontext)
    assert adapted.pace is slow.pace


def test_log_total_is_over_the_whole_vocabulary(reader_of: ReaderOf) -> None:
    """The mass of all 52 letters, and of fewer, is a probability of the model's own distribution."""
    reader = reader_of("llama")
    prefix, tail = random_ids(20), random_ids(9)
    found = read(reader, prefix, [tail])[0]
    with kernels.stock():
        logits = reader.model(mx.array([prefix + tail]))[0, -1]
    assert found.log_total == pytest.approx(mx.logsumexp(logits).item(), rel=1e-5)
    assert 0.0 < sum(math.exp(score - found.log_total) for score in found.letters) < 1.0


@pytest.mark.parametrize("build", [lambda: tiny_model("qwen3"), wide_model], ids=["qwen3", "wide"])
def test_bad_numbers_stay_in_their_row(processor_operations: None, build: Callable[[], Any]) -> None:
    """A tail that meets a weight which is no number has no scores; its companions' bits do not change."""
    model = build()
    reader = Reader(model, reader_manner(model), streams())
    prefix, tails = random_ids(60), [[5] * 20, [255] * 20, [9] * 20, [8] * 90]
    clean = read(reader, prefix, tails)
    broken = mx.array(model.model.embed_tokens.weight)
    broken[255] = math.nan
    model.model.embed_tokens.weight = broken
    found = read(reader, prefix, tails)
    assert all(math.isnan(score) for score in found[1].letters)
    assert math.isnan(found[1].log_total)
    assert [found[i].letters for i in (0, 2, 3)] == [clean[i].letters for i in (0, 2, 3)]


def reader_manner(model: Any) -> Any:
    """The manner that the probe finds on ids that do not meet 255."""
    from letterwise_service.engine.reading.probe import find_manner

    return find_manner(model, LETTER_IDS, [i % 250 for i in random_ids(100)], streams())


@pytest.mark.parametrize("prefix_tokens", [1, 4, 8, 12, 20, 37, 64, 260, 470, 900])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_bits_are_a_tails_own_over_any_prefix(processor_operations: None, groups: int, prefix_tokens: int) -> None:
    """No length of prefix makes a row's products fall into another kernel when it has companions."""
    reader = grouped_reader(groups)
    assert reader.manner.rows_limit == FORWARD_TOKENS
    prefix, tails = random_ids(prefix_tokens), [random_ids(n, seed=n) for n in (20, 25, 30, 31, 36, 38, 40, 50, 61, 64)]
    cache = drain(reader.prefill(prefix, Work()))
    together = read(reader, prefix, tails, cache)
    assert [replace(read(reader, prefix, [tail], cache)[0], index=i) for i, tail in enumerate(tails)] == together


@functools.cache
def grouped_reader(groups: int) -> Reader:
    """A model of some size with `groups` query heads to each key/value head."""
    model = wide_model(num_key_value_heads=4 // groups, num_hidden_layers=1)
    return Reader(model, reader_manner(model), streams())
