"""Every model family of mlx-lm: a prefix with tails over it, against one plain forward over the whole prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from letterwise_service.engine.backend import caches, mx, open_backend
from letterwise_service.engine.reading import kernels, views
from letterwise_service.engine.reading.head import LOGITS, ROWS, pick_head
from letterwise_service.engine.reading.probe import drain, find_manner
from letterwise_service.engine.reading.reader import Manner, Reader, TailScores, Work
from letterwise_service.errors import ModelUnsuitable
from tests.families import FAMILIES, VOCABULARY, WINDOW, family_model

LETTERS = tuple(range(60, 112))
# What the scores may differ by, relative to the largest of them; and what a wrong prefix must change at least.
TOLERANCE = 2e-4
TOLD_APART = 5e-3

# Heads that are scaled, soft-capped or shared in a way of their own, or that are not beside a body called `model`.
# Every other family's letter scores come from the letters' rows alone.
# fmt: off
WHOLE_MODEL_HEADS = {
    "afm7", "cohere", "cohere2", "dbrx", "exaone", "gear", "gemma2", "gemma3n", "gemma4", "gemma4_text", "gpt2",
    "gpt_bigcode", "gpt_neox", "internlm2", "lille-130m", "llama4_text", "mamba", "mamba2", "minicpm", "minicpm3",
    "muse_glimmer", "nanochat", "nemotron_h", "openelm", "phixtral", "qwen", "recurrent_gemma",
    "talkie",
}
# fmt: on
# Without a cache its layers that share keys and values compute their own: another model than the one mlx-lm serves.
NEEDS_CACHE = {"gemma3n"}

_random = random.Random(5)


def _ids(length: int) -> list[int]:
    return [_random.randrange(VOCABULARY) for _ in range(length)]


PREFIX, OTHER_PREFIX, PROBE = _ids(150), _ids(150), _ids(60)
TAILS = [_ids(length) for length in (1, 13, 30, 64, 140)]


@dataclass
class Family:
    """A tiny model of the family, how it is read, one computed prefix, and what was read over it."""

    name: str
    model: Any
    manner: Manner
    streams: list[Any]
    cache: views.Cache
    before: list[Any]  # bitwise copies of the prefix's arrays, made before the tails were read
    found: list[TailScores]

    @property
    def reader(self) -> Reader:
        return Reader(self.model, self.manner, self.streams)


@pytest.fixture(scope="module", autouse=True)
def _our_operations() -> Iterator[None]:
    """The processor's own operations, as the service uses them, and the stock ones again afterwards."""
    if open_backend().device == "cpu":
        kernels.install()
    yield
    kernels.uninstall()


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, _our_operations: None) -> Iterator[Family]:
    model = family_model(request.param)
    streams = [_main(), mx.new_stream(mx.default_device())]
    manner = find_manner(model, LETTERS, PROBE, streams)
    reader = Reader(model, manner, streams)
    cache = drain(reader.prefill(PREFIX, Work()))
    before = [mx.array(a) for a in views.arrays(cache)]
    mx.eval(before)
    yield Family(request.param, model, manner, streams, cache, before, _read(reader, cache, TAILS))
    mx.clear_cache()


def _main() -> Any:
    return mx.default_stream(mx.default_device())


def _read(reader: Reader, cache: views.Cache, tails: list[list[int]]) -> list[TailScores]:
    steps = reader.read(PREFIX, cache, tails, Work())
    return sorted((scores for step in steps for scores in step), key=lambda scores: scores.index)


def _full(model: Any, ids: list[int], cache: Any) -> list[float]:
    """Letter scores of one forward over all of `ids` with mlx-lm's stock operations."""
    with kernels.stock():
        return list(model(mx.array([ids]), cache=cache)[0, -1][mx.array(LETTERS)].tolist())


def _judge(model: Any, ids: list[int]) -> list[float]:
    """The plain full forward, into an empty cache as mlx-lm runs every model."""
    return _full(model, ids, caches.make_prompt_cache(model))


def _error(found: Any, right: list[float]) -> float:
    """The largest difference relative to the largest score."""
    return max(abs(a - b) for a, b in zip(found, right, strict=True)) / max(1.0, *(abs(x) for x in right))


def _bits(scores: TailScores) -> tuple[tuple[float, ...], float]:
    return scores.letters, scores.log_total


def test_find_manner_reads_every_family_over_a_view(family: Family) -> None:
    """No family needs a merge, a recomputed prefix, or more than its own cache classes."""
    assert (family.manner.share, family.manner.copy) == (views.view, views.copy)


def test_pick_head_takes_the_letters_rows_where_they_give_the_whole_models_scores(family: Family) -> None:
    """Which families go through their whole head is pinned, so that none slips to the slower path unseen."""
    assert family.manner.head.path == (LOGITS if family.name in WHOLE_MODEL_HEADS else ROWS)


def test_reader_gives_the_scores_of_one_plain_forward(family: Family) -> None:
    """Tails of 1 to 140 tokens over a prefix past every window; with another prefix the plain scores are others."""
    for tail, found in zip(TAILS, family.found, strict=True):
        right = _judge(family.model, PREFIX + tail)
        assert _error(found.letters, right) <= TOLERANCE
        if tail in (TAILS[0], TAILS[-1]):
            assert _error(_judge(family.model, OTHER_PREFIX + tail), right) >= TOLD_APART


def test_plain_forward_is_the_same_without_a_cache(family: Family) -> None:
    """The judge's cache changes nothing, but for the one family that is another model without it."""
    ids = PREFIX
    differs = _error(_full(family.model, ids, None), _judge(family.model, ids)) > TOLERANCE
    assert differs == (family.name in NEEDS_CACHE)


def test_reading_leaves_the_prefix_bit_for_bit(family: Family) -> None:
    """What the tails write goes to their views and copies."""
    after = views.arrays(family.cache)
    assert len(after) == len(family.before) > 0
    assert all(mx.array_equal(a, b).item() for a, b in zip(family.before, after, strict=True))


def test_tail_has_the_same_bits_whatever_is_read_with_it(family: Family) -> None:
    """Alone, in another order, and beside more tails of its width."""
    order = [3, 0, 2, 1, 4, 2, 1, 1, 2]
    together = _read(family.reader, family.cache, [TAILS[i] for i in order])
    alone = [_read(family.reader, family.cache, [tail])[0] for tail in TAILS]
    assert [_bits(s) for s in alone] == [_bits(s) for s in family.found]
    assert [_bits(s) for s in together] == [_bits(family.found[i]) for i in order]


def test_kept_prefix_gives_the_bits_of_a_computed_one(family: Family) -> None:
    """A prefix computed again, and tails read again, are the same to the bit."""
    again = drain(family.reader.prefill(PREFIX, Work()))
    pairs = zip(views.arrays(again), views.arrays(family.cache), strict=True)
    assert all(mx.array_equal(a, b).item() for a, b in pairs)
    assert _read(family.reader, again, TAILS) == family.found


@pytest.mark.parametrize(
    ("share", "copy"),
    [(views.view, None), (views.merged, views.copy), (None, views.copy), (None, None)],
    ids=["no copy", "merged", "copies", "recomputed"],
)
@pytest.mark.parametrize("name", ["llama", "deepseek_v32", "qwen3_5", "falcon_h1"])
def test_every_way_of_reading_gives_the_scores_of_one_plain_forward(name: str, share: Any, copy: Any) -> None:
    """The ways that no family needs today are right too: on plain, rotating, nested, recurrent and mixed caches."""
    model = family_model(name)
    reader = Reader(model, Manner(pick_head(model, LETTERS, mx.array([PROBE])), share, copy, rows_limit=4), [_main()])
    found = _read(reader, drain(reader.prefill(PREFIX, Work())), [TAILS[1], TAILS[2], TAILS[4]])
    for tail, scores in zip((TAILS[1], TAILS[2], TAILS[4]), found, strict=True):
        assert _error(scores.letters, _judge(model, PREFIX + tail)) <= TOLERANCE


def test_find_manner_refuses_a_family_whose_scores_depend_on_its_chunks() -> None:
    """plamo3's mask reaches one token further than its cache, so past the window no split gives the whole's scores."""
    model = family_model("plamo3", window_size=WINDOW, sliding_window=WINDOW)
    with pytest.raises(ModelUnsuitable):
        find_manner(model, LETTERS, PROBE, [_main()])
