"""Decisions with adapters: as served, from the configuration to the kept prefixes, which no two adapters share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine import warm as warm_module
from letterwise_service.engine.budgets import check_known
from letterwise_service.engine.events import Completed
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.thread import Engine
from letterwise_service.engine.warm import Warmed, warm
from letterwise_service.errors import InvalidRequest, LoadFailed
from letterwise_service.method.request import Adapter, DecisionRequest
from tests.engine.conftest import Heard
from tests.engine.decisions import BAD, LATE, finish, unpinned
from tests.engine.models.adapter_files import adapter_folder, matrices, modules
from tests.tiny import tiny_folder, tiny_model

# One of each tier of the prefix store.
ADAPTED = {"llama": ("q_proj", "down_proj"), "gemma3_text": ("o_proj", "up_proj")}
HEAD = ("embed_tokens", "lm_head", "v_proj")
STATE = "A parcel of books arrived two days late. " * 4
ONE, TWO, HALF, NONE = Adapter("one"), Adapter("two"), Adapter("one", 0.5), None
Settings = Callable[[str], dict[str, Any]]
pytestmark = pytest.mark.usefixtures("processor_operations")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A tiny model's folder, and two adapters for it: the second is on its head, tied or not."""
    root = tmp_path_factory.mktemp("adapted")

    def make(architecture: str) -> dict[str, Any]:
        folder = root / architecture
        if not folder.exists():
            tiny_folder(folder, architecture, max_position_embeddings=4096)
            model = tiny_model(architecture)
            for name, endings, seed in (("one", ADAPTED[architecture], 1), ("two", HEAD, 2)):
                adapter_folder(folder / name, matrices(model, modules(model, *endings), seed=seed))
        pairs = tuple((name, str(folder / name)) for name in ("one", "two"))
        return {"model": str(folder), "check_store_when_idle": True, "adapters": pairs}

    return make


@pytest.fixture(scope="module", params=ADAPTED)
def warmed(request: pytest.FixtureRequest, settings: Settings) -> Warmed:
    return warm(EngineConfig(**settings(request.param)))


def job(one: Warmed, adapter: Adapter | None, state: str = STATE) -> tuple[Job, Heard]:
    assert one.admission is not None
    heard = Heard()
    request = DecisionRequest(state, (LATE, BAD), adapter=adapter)
    return Job(one.admission.admit(request), heard, 60.0), heard


def decide(one: Warmed, adapter: Adapter | None, state: str = STATE) -> tuple[Any, Completed]:
    assert one.served is not None
    made, heard = job(one, adapter, state)
    finish(made, one.served)
    return heard.outcomes(), heard.completed()


def clear(one: Warmed) -> None:
    assert one.served is not None
    one.served.store.clear()


def test_model_says_what_is_loaded(warmed: Warmed, settings: Settings) -> None:
    """Names in the order of the start, and their numbers counted with the weights; alone, the model is as ever."""
    plain = warm(EngineConfig(model=settings(warmed.info.architecture)["model"]))
    assert (warmed.info.adapters, plain.info.adapters) == (("one", "two"), ())
    assert warmed.served is not None
    assert warmed.info.weights_bytes - plain.info.weights_bytes == warmed.served.adapters.nbytes > 0
    assert (warmed.info.parameters, warmed.info.path) == (plain.info.parameters, "rows")
    assert decide(warmed, NONE)[0] == decide(plain, NONE)[0]


def test_each_adapter_has_numbers_of_its_own(warmed: Warmed) -> None:
    """Answers differ by adapter and by scale, and say by which path they were read."""
    answers = [decide(warmed, adapter) for adapter in (NONE, ONE, TWO, HALF)]
    assert all(a[0] != b[0] for i, a in enumerate(answers) for b in answers[:i])
    assert [end.diagnostics.path for _, end in answers] == ["rows", "rows", "logits", "rows"]


@pytest.mark.parametrize("adapter", [TWO, HALF])
def test_kept_state_has_the_bits_of_a_computed_one(warmed: Warmed, adapter: Adapter) -> None:
    """With an adapter, too: cold, kept, and grown from a kept start, the same answers bit for bit."""
    longer = f"{STATE} It came with a broken lid. "
    clear(warmed)
    cold, cold_longer = decide(warmed, adapter), decide(warmed, adapter, longer)
    clear(warmed)
    decide(warmed, adapter, f"{STATE} It came whole.")
    grown, kept = decide(warmed, adapter, longer), decide(warmed, adapter, longer)
    assert cold_longer[0] == grown[0] == kept[0]
    assert grown[1].diagnostics.prefix.reused_tokens > 0
    assert kept[1].diagnostics.prefix.reused_tokens == kept[1].diagnostics.prefix.tokens
    assert decide(warmed, adapter)[0] == cold[0]


def test_adapters_and_scales_share_no_prefix(warmed: Warmed) -> None:
    """What one keeps, no other finds: not the model alone, not another adapter, not another scale of the same."""
    clear(warmed)
    for adapter in (ONE, NONE, TWO, HALF):
        assert decide(warmed, adapter)[1].diagnostics.prefix.reused_tokens == 0
    for adapter in (HALF, TWO, NONE, ONE):
        prefix = decide(warmed, adapter)[1].diagnostics.prefix
        assert prefix.reused_tokens == prefix.tokens


def test_jobs_that_take_turns_keep_their_adapters(warmed: Warmed) -> None:
    """Six jobs on one state, a step each in turn: none waits for another adapter's prefix, each has its numbers."""
    assert warmed.served is not None
    wanted = (ONE, TWO, HALF, ONE, NONE, NONE)
    state = STATE * 2  # read in more than one step
    alone = [decide(warmed, adapter, state)[0] for adapter in wanted]
    clear(warmed)
    made = [job(warmed, adapter, state) for adapter in wanted]
    for one, _ in made:
        one.start(warmed.served)
    running = [one for one, _ in made]
    while running:
        running = [one for one in running if not one.advance()]
    assert [heard.outcomes() for _, heard in made] == alone
    prefixes = [heard.completed().diagnostics.prefix for _, heard in made]
    assert [p.reused_tokens for p in prefixes] == [0, 0, 0, prefixes[0].tokens, 0, prefixes[0].tokens]
    assert unpinned(warmed.served)


def test_state_is_kept_for_the_adapter_that_it_is_read_with(warmed: Warmed) -> None:
    """A prewarm with an adapter serves decisions with it, at its scale, and no others."""
    assert warmed.admission is not None
    assert warmed.served is not None
    clear(warmed)
    finish(Job(warmed.admission.admit_state(STATE, adapter=HALF), Heard(), 60.0), warmed.served)
    assert decide(warmed, ONE)[1].diagnostics.prefix.reused_tokens == 0
    prefix = decide(warmed, HALF)[1].diagnostics.prefix
    assert prefix.reused_tokens == prefix.tokens


def test_unknown_adapter_is_refused_by_name(warmed: Warmed) -> None:
    """Admission names the field and what there is, for decisions and states alike, before it tokenises anything."""
    assert warmed.admission is not None
    for admit in (
        lambda: warmed.admission.admit(DecisionRequest("x" * 10**7, (LATE,), adapter=Adapter("three"))),  # type: ignore[union-attr]
        lambda: warmed.admission.admit_state("x" * 10**7, adapter=Adapter("three")),  # type: ignore[union-attr]
    ):
        with pytest.raises(InvalidRequest) as refused:
            admit()
        (violation,) = refused.value.violations
        assert (violation.field, violation.description) == ("adapter.name", "expected one of the adapters one, two")
    with pytest.raises(InvalidRequest, match="no adapters are loaded here"):
        check_known(ONE, ())
    check_known(None, ())


def test_engine_serves_adapters(settings: Settings) -> None:
    """Through the engine's own doors: decisions with and without an adapter at once, each as by itself."""
    engine = Engine(EngineConfig(**settings("llama")))
    engine.start()
    try:
        assert engine.wait_ready(60).adapters == ("one", "two")
        requests = [DecisionRequest(STATE, (LATE, BAD), adapter=a) for a in (ONE, NONE, TWO, HALF) * 2]
        heard = [Heard() for _ in requests]
        for request, listener in zip(requests, heard, strict=True):
            engine.submit(engine.admit(request), listener)
        outcomes = [one.outcomes() for one in heard]
        assert outcomes[:4] == outcomes[4:]
        assert len({str(one) for one in outcomes}) == 4
        with pytest.raises(InvalidRequest):
            engine.admit(DecisionRequest(STATE, (LATE,), adapter=Adapter("")))
        assert engine.wait_idle(10)
        engine.check_store()
    finally:
        engine.close()


def test_adapter_that_no_chat_can_have_alone_stops_the_load(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that chats does not start with such an adapter, and says which; one without chat serves it."""
    monkeypatch.setattr(warm_module, "rows_apart", lambda *_: False)
    with pytest.raises(LoadFailed, match=r"adapter one: .* beside others"):
        warm(EngineConfig(**settings("llama")))
    assert warm(EngineConfig(**settings("llama"), chat_rows=0)).info.adapters == ("one", "two")


def test_adapter_that_gives_no_numbers_stops_the_load(settings: Settings, tmp_path: Path) -> None:
    """Finite matrices whose products are not: the load fails by the adapter's name."""
    model = tiny_model("llama")
    tensors = {name: a * 1e30 for name, a in matrices(model, modules(model, "q_proj", "down_proj")).items()}
    pairs = (("wild", str(adapter_folder(tmp_path / "wild", tensors))),)
    with pytest.raises(LoadFailed, match=r"adapter wild: with .* scores are not finite"):
        warm(EngineConfig(**{**settings("llama"), "adapters": pairs}))
