"""Ours: the whole engine on the embedded model; a case is one decision, from the request to its last event.

The clock runs over admission (which tokenises), the queue, the prefix, the tails and the answers. A kept case reads a
state that the case before it left in the store. The ids that it read are checked against those the others were given.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

from mlx.utils import tree_flatten

from letterwise_service.config import EngineConfig
from letterwise_service.engine.events import Completed, Diagnostics, Event, Failed
from letterwise_service.engine.reading.reader import Reader, TailScores
from letterwise_service.engine.thread import Engine
from letterwise_service.method.request import DecisionRequest

from .. import workload
from .lines import Case, clocked, serve

_plain_read = Reader.read
_scores: list[TailScores] = []


def _recorded(self: Reader, *given: Any) -> Iterator[list[TailScores]]:
    """`Reader.read`, its scores kept: the events carry probabilities, and contenders are compared by scores."""
    for done in _plain_read(self, *given):
        _scores.extend(done)
        yield done


def load() -> tuple[dict[str, Any], Any]:
    Reader.read = _recorded  # type: ignore[method-assign, assignment]
    engine = Engine(EngineConfig(prefix_store_records=2, job_deadline_seconds=3600.0))
    engine.start()
    info = engine.wait_ready()
    return {"blas": info.blas, "style": info.prompt_style}, lambda case: _answer(engine, case)


def _answer(engine: Engine, case: Case) -> dict[str, Any]:
    asked = request_of(case)
    _check_ids(engine, asked, case)
    _scores.clear()
    with clocked() as taken:
        diagnostics = _decide(engine, asked)
    if case.get("kept") and not diagnostics.prefix.reused_tokens:
        raise RuntimeError("the prefix was not kept")
    if not case.get("kept") and diagnostics.prefix.reused_tokens:
        raise RuntimeError("the state had been read before")
    return {
        "seconds": taken[0],
        "letters": [list(one.letters) for one in sorted(_scores, key=lambda one: one.index)],
        "computed_tokens": diagnostics.computed_tokens + diagnostics.padded_tokens,
        "operations": _operations(engine, diagnostics),
    }


def _operations(engine: Engine, diagnostics: Diagnostics) -> float:
    """Multiplications and additions of the decision's products, padding included: what explains its time.

    Two per weight of the layers and token; four per attention width and pair of a token and one that it sees, where a
    tail's tokens are taken to see the whole prefix.
    """
    assert engine._served is not None
    layers = engine._served.reader.model.layers
    flat: Any = [pair for layer in layers for pair in tree_flatten(layer.parameters())]
    weights = sum(value.size for _, value in flat)
    width = sum(layer.self_attn.q_proj.weight.shape[0] for layer in layers)
    prefix, computed = diagnostics.prefix.tokens, diagnostics.prefix.tokens - diagnostics.prefix.reused_tokens
    tokens = diagnostics.computed_tokens + diagnostics.padded_tokens
    seen = computed**2 / 2 + (tokens - computed) * prefix
    return float(2 * weights * tokens + 4 * width * seen)


def request_of(case: Case) -> DecisionRequest:
    entries = case.get("entries", workload.ENTRIES)
    if "options" in case:
        return DecisionRequest(workload.state(case["seed"], entries), (workload.one_choice(case["options"]),))
    return workload.request(case["seed"], case["count"], entries)


def _decide(engine: Engine, asked: DecisionRequest) -> Diagnostics:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(engine.admit(asked), events.put)
    while True:
        match events.get():
            case Failed(error):
                raise error
            case Completed(_, diagnostics):
                return diagnostics


def _check_ids(engine: Engine, asked: DecisionRequest, case: Case) -> None:
    """What the others read is what the engine reads."""
    if "tails" not in case:
        return
    permit = engine.admit(asked)
    if list(permit.prefix) != case["prefix"] or [list(tail) for tail in permit.tails.values()] != case["tails"]:
        raise RuntimeError("the engine's token ids are not those of the workload")


if __name__ == "__main__":
    serve(load)
