"""What the tests of the engine share: tiny models on two lanes of this thread, and random prompts."""

from __future__ import annotations

import importlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine.backend import mx
from letterwise_service.engine.events import Answered, Completed, Event, Failed, WasSkipped
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.reading.head import LetterHead
from letterwise_service.engine.reading.packing import FORWARD_TOKENS
from letterwise_service.engine.reading.probe import drain, find_manner
from letterwise_service.engine.reading.reader import Reader, TailScores, Work
from letterwise_service.engine.steps import Served
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import LetterwiseError
from letterwise_service.method.answers import Answer, Skipped
from tests.tiny import VOCABULARY, tiny_folder, tiny_model

LETTER_IDS = tuple(range(32, 58)) + tuple(range(64, 90))
# Large enough for the products of one row and of several to be the same kernel's, so that rows share forwards.
WIDE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}


def wide_model(**changed: Any) -> Any:
    """A random llama of 256 dimensions."""
    module = importlib.import_module("mlx_lm.models.llama")
    mx.random.seed(11)
    model = module.Model(module.ModelArgs.from_dict({**WIDE, **changed}))
    model.eval()
    mx.eval(model.parameters())
    return model


def random_ids(count: int, seed: int = 0) -> list[int]:
    """Ids of ordinary bytes."""
    rng = random.Random(1000 * count + seed)
    return [rng.randrange(256) for _ in range(count)]


@cache
def streams() -> tuple[Any, Any]:
    """This thread's two lanes."""
    return mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)


@cache
def found_reader(name: str) -> Reader:
    """A tiny model's reader in the manner that the probe finds, with the processor's operations as served."""
    model = wide_model() if name == "wide" else tiny_model(name)
    return Reader(model, find_manner(model, LETTER_IDS, random_ids(FORWARD_TOKENS + 2), streams()), streams())


@pytest.fixture
def processor_operations() -> Iterator[None]:
    """The engine's own operations in place for one test, and out of place after it."""
    kernels.install()
    yield
    kernels.uninstall()


@pytest.fixture
def reader_of(processor_operations: None) -> Callable[[str], Reader]:
    """Gives an architecture's reader: llama, qwen3, gemma3_text, qwen3_5 or wide."""
    return found_reader


def read(reader: Reader, prefix: Sequence[int], tails: Sequence[Sequence[int]], cache: Any = None) -> list[TailScores]:
    """The scores of `tails` in order, over a prefix computed now unless its cache is given."""
    cache = drain(reader.prefill(prefix, Work())) if cache is None else cache
    return sorted((s for step in reader.read(prefix, cache, tails, Work()) for s in step), key=lambda s: s.index)


class Heard:
    """A listener that keeps what it is told; `end` waits for the last event."""

    def __init__(self, also: Callable[[Event], None] | None = None) -> None:
        self.events: list[Event] = []
        self._ended = threading.Event()
        self._also = also

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Completed | Failed):
            self._ended.set()
        if self._also is not None:
            self._also(event)

    def end(self) -> Completed | Failed:
        """The last event, which comes within a minute and after which there is none."""
        assert self._ended.wait(60), "the job never ended"
        last = self.events[-1]
        assert isinstance(last, Completed | Failed)
        return last

    def completed(self) -> Completed:
        last = self.end()
        assert isinstance(last, Completed), last
        return last

    def error(self) -> LetterwiseError:
        last = self.end()
        assert isinstance(last, Failed), last
        return last.error

    def outcomes(self) -> dict[str, Answer | Skipped]:
        """Answers and skips by question."""
        self.completed()
        found = [e.answer for e in self.events if isinstance(e, Answered)]
        return {one.id: one for one in [*found, *(e.skipped for e in self.events if isinstance(e, WasSkipped))]}


@pytest.fixture
def served(processor_operations: None) -> Served:
    from tests.engine.decisions import service  # which takes its reader from here

    return service(found_reader("llama"))


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each forward that is built."""
    counted: list[int] = []
    plain = LetterHead.forward

    def forward(self: LetterHead, model: Any, ids: Any, cache: Any) -> Any:
        counted.append(ids.size)
        return plain(self, model, ids, cache)

    monkeypatch.setattr(LetterHead, "forward", forward)
    return counted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a context of 4,096 tokens."""
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    """One warm engine for the tests that leave it alive."""
    made = Engine(EngineConfig(model=str(folder), check_store_when_idle=True))
    made.start()
    made.wait_ready(60)
    yield made
    made.close()


@pytest.fixture
def started(folder: Path) -> Iterator[Callable[..., Engine]]:
    """Starts engines of a test's own, and closes them after it."""
    engines: list[Engine] = []

    def start(**settings: Any) -> Engine:
        engines.append(Engine(EngineConfig(**{"model": str(folder), "check_store_when_idle": True, **settings})))
        engines[-1].start()
        return engines[-1]

    yield start
    for one in engines:
        one.close()
