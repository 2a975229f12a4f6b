"""States that grow, on the real model: what is kept of them, and that no number shows it."""

from __future__ import annotations

import pytest

from letterwise import Client

from . import material
from .processes import Spare

pytestmark = pytest.mark.live
LINES = 24


def body(lines: int) -> material.Body:
    return material.twenty(material.letters_of(lines, year=2031), 3)


def test_grown_state_gives_the_cold_numbers(client: Client, spare: Spare) -> None:
    """Grown three times, a state is computed from its last boundary on; a server that saw none of it says the same."""
    before = client.info().prefix_store
    tokens = 0
    for lines in range(LINES - 3, LINES + 1):
        grown = client.decide(**material.call(body(lines)))
        prefix = grown.diagnostics.prefix
        assert prefix.reused_tokens >= tokens // 128 * 128
        assert prefix.stored
        tokens = prefix.tokens
    assert 0 < prefix.reused_tokens < prefix.tokens
    store = client.info().prefix_store
    assert store.tier == "exact"
    assert store.partial_hits - before.partial_hits >= 3
    assert store.stored > before.stored
    assert store.bytes <= store.budget_bytes
    with spare.get().client() as other:
        cold = other.decide(**material.call(body(LINES)))
        kept = other.decide(**material.call(body(LINES)))
    assert cold.diagnostics.prefix.reused_tokens < 128
    assert kept.diagnostics.prefix.reused_tokens == tokens
    assert grown.answers == cold.answers == kept.answers
