"""From a configuration to what serves: tiers, budgets, the store's bounds, and models that cannot serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from letterwise_service.config import EngineConfig
from letterwise_service.engine import warm as warm_module
from letterwise_service.engine.budgets import Budgets
from letterwise_service.engine.reading import kernels
from letterwise_service.engine.warm import Warmed, warm
from letterwise_service.errors import LoadFailed, ModelUnsuitable
from tests.tiny import tiny_folder

Warm = Callable[..., Warmed]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("models")

    def folder(architecture: str) -> Path:
        path = root / architecture
        return path if path.exists() else tiny_folder(path, architecture, max_position_embeddings=2048)

    return folder


@pytest.fixture
def warmed(folders: Callable[[str], Path]) -> Iterator[Warm]:
    """Warms a tiny model on this thread; the stock operations are back afterwards."""

    def make(architecture: str = "llama", **settings: Any) -> Warmed:
        return warm(EngineConfig(**{"model": str(folders(architecture)), **settings}))

    yield make
    kernels.uninstall()


def budgets_of(one: Warmed) -> Budgets:
    assert one.admission is not None
    return one.admission._budgets


@pytest.mark.parametrize(
    ("architecture", "tier"),
    [("llama", "exact"), ("qwen3", "exact"), ("gemma3_text", "checkpoint"), ("qwen3_5", "checkpoint")],
)
def test_tier_follows_the_models_layers(warmed: Warm, architecture: str, tier: str) -> None:
    """Plain attention alone is exact; windows and recurrent layers are kept as checkpoints."""
    one = warmed(architecture)
    assert (one.info.tier, one.info.problem, one.info.path) == (tier, None, "rows")
    assert one.served is not None
    assert one.served.store.tier == tier
    assert one.served.reader.lanes == 2


def test_store_takes_its_settings(warmed: Warm) -> None:
    """Off keeps nothing and says so; bytes and records are what was asked for."""
    assert warmed(prefix_store=False).info.tier == "off"
    one = warmed("gemma3_text", prefix_store_bytes=12_345, prefix_store_records=3)
    assert one.served is not None
    assert one.served.store.describe().budget_bytes == 12_345
    assert one.served.store._shelf._max_records == 3  # type: ignore[attr-defined]


def test_budgets_follow_context_and_memory(warmed: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's context unless another is set; of free memory a half, for a prefix and a tail's copy of it."""
    monkeypatch.setattr(warm_module, "available_bytes", lambda: 1 << 30)
    one = warmed()
    per_token = 4 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, bytes
    assert budgets_of(one) == Budgets(2048, (1 << 29) // (2 * per_token), decision_tokens=1_000_000)
    assert one.served is not None
    assert one.served.store.describe().budget_bytes == 1 << 28
    small = warmed(context_tokens=512)
    assert budgets_of(small).context_tokens == small.info.context_tokens == 512


def test_unknown_memory_is_guessed(warmed: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine does not say what is free, two gibibytes are taken for it."""
    monkeypatch.setattr(warm_module, "available_bytes", lambda: None)
    monkeypatch.setattr("letterwise_service.engine.models.loading.available_bytes", lambda: None)
    one = warmed()
    assert one.served is not None
    assert one.served.store.describe().budget_bytes == 1 << 29


def test_style_and_name_follow_the_settings(warmed: Warm) -> None:
    """An alias names the model, and chooses the bracket style when it is an OpenJev's; a style that is set stays."""
    assert warmed().info.prompt_style == "plain"
    renamed = warmed(alias="my-OpenJev")
    assert (renamed.info.model, renamed.info.prompt_style) == ("my-OpenJev", "bracket")
    assert warmed(alias="my-OpenJev", prompt_style="plain").info.prompt_style == "plain"


def test_models_of_other_bytes_have_other_records(warmed: Warm, folders: Callable[[str], Path]) -> None:
    """The salt of kept prefixes is the reader's and these exact weights'."""
    first, again, other = warmed(), warmed(alias="other name"), warmed("qwen3")
    salts = [one.served.store._salt for one in (first, again, other) if one.served]
    assert salts[0] == salts[1] != salts[2]


def test_problem_is_a_fact_and_no_failure(warmed: Warm, tmp_path: Path) -> None:
    """A model that cannot serve letters is there to be asked about, with no store and no admission."""
    one = warm(EngineConfig(model=str(tiny_folder(tmp_path / "m", template="{{ messages[0]['content'] | upper }}"))))
    assert one.served is None
    assert one.admission is None
    assert one.info.problem
    assert (one.info.tier, one.info.path) == ("unsupported", "")


def test_stock_operations_serve_where_ours_do_not(warmed: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose numbers do not stand with the processor's own operations is served with the stock ones."""
    plain = warm_module.find_manner
    seen: list[bool] = []

    def find_manner(*arguments: Any) -> Any:
        seen.append(kernels._installed)
        if kernels._installed:
            raise ModelUnsuitable("other numbers")
        return plain(*arguments)

    monkeypatch.setattr(warm_module, "find_manner", find_manner)
    assert warmed().info.problem is None
    assert seen == [True, False]
    assert not kernels._installed


def test_model_that_is_not_there_fails(tmp_path: Path) -> None:
    """No model is LoadFailed, with where it was looked for."""
    with pytest.raises(LoadFailed, match="nowhere"):
        warm(EngineConfig(model=str(tmp_path / "nowhere")))
