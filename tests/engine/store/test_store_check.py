"""The walk over the kept prefixes of a whole engine: asked for from any thread, and whenever nothing runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from letterwise_service.engine.errands import Errands
from letterwise_service.engine.thread import Engine
from letterwise_service.errors import EngineDown
from tests.engine.engines import LATE, WHICH, Gate, submit


def test_check_is_made_on_the_engine_thread(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks, idle or busy, gets the counts of a store that has been walked between two steps."""
    assert engine._served is not None
    where: list[str] = []
    plain = engine._served.store.check

    def check(*, idle: bool = False) -> None:
        where.append(f"{threading.current_thread().name} {'idle' if idle else 'busy'}")
        plain(idle=idle)

    monkeypatch.setattr(engine._served.store, "check", check)
    assert engine.check_store() == engine.describe_store()
    gate = Gate(engine)
    flights = [submit(engine, LATE, WHICH)[1] for _ in range(5)]
    with ThreadPoolExecutor(3) as others:
        checks = [others.submit(engine.check_store) for _ in range(3)]
        gate.open()
        assert all(one.result().records > 0 for one in checks)
    for heard in flights:
        heard.completed()
    assert engine.wait_idle(10)
    assert where[0] == "engine idle"
    assert "engine busy" in where
    assert where[-1] == "engine idle"


def test_fault_in_the_store_is_the_askers_to_hear(started: Callable[..., Engine]) -> None:
    """On demand the engine goes on; whenever nothing runs, when so set, a store that is not whole stops it."""
    broken = started()
    broken.wait_ready(60)
    submit(broken)[1].completed()
    assert broken.wait_idle(10)
    assert broken._served is not None
    broken._served.store._shelf.counts.bytes += 1
    with pytest.raises(AssertionError):
        broken.check_store()
    assert broken.alive
    died = threading.Event()
    broken.on_death(died.set)
    submit(broken)
    assert died.wait(30)
    with pytest.raises(EngineDown):
        broken.check_store()


def test_closed_engine_checks_nothing(started: Callable[..., Engine]) -> None:
    """Who asks an engine that has ended is told so, and does not wait."""
    closed = started()
    closed.wait_ready(60)
    closed.close()
    with pytest.raises(EngineDown):
        closed.check_store()


def test_errands_are_made_in_order_and_refused_at_the_end() -> None:
    """Each is made once; what one raises reaches its caller alone; what waits when they close is refused."""
    errands, made = Errands(), []
    first, second = errands.add(lambda: made.append(1)), errands.add(lambda: 1 // 0)
    third = errands.add(lambda: made.append(3))
    left = errands.add(lambda: made.append(4))
    left.cancel()
    errands.run()
    errands.run()
    assert (first.result(), third.result(), made) == (None, None, [1, 3])
    with pytest.raises(ZeroDivisionError):
        second.result()
    late = errands.add(lambda: made.append(5))
    errands.close()
    with pytest.raises(EngineDown):
        late.result()
    with pytest.raises(EngineDown):
        errands.add(lambda: None)
    assert made == [1, 3]
