"""One server, one spare, one judge and one engine for all live tests; each is a process or a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from letterwise import Client
from letterwise_service.engine.models import embedded

from . import material
from .judging import Judge
from .processes import Server, Spare
from .reading import Engine


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The embedded model; fetched if it is not in the cache."""
    return embedded.fetch()


@pytest.fixture(scope="session", autouse=True)
def judge(model_path: Path) -> Iterator[Judge]:
    """Starts at once on what is judged last, so that it computes while other tests run."""
    judge = Judge(model_path)
    judge.expect(material.domain(material.SCORED), whole=material.JUDGED_WHOLE)
    for body in material.UNUSUAL.values():
        judge.expect(material.domain(body))
    yield judge
    judge.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Server]:
    """The server that most tests ask."""
    server = Server(tmp_path_factory.mktemp("server"), "--job-deadline-seconds", "900")
    yield server
    server.close()


@pytest.fixture(scope="session")
def spare(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Spare]:
    """The server that tests may end, and that has read none of the other's states."""
    spare = Spare(tmp_path_factory.mktemp("spare"))
    yield spare
    spare.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.client(timeout_seconds=300) as client:
        yield client


@pytest.fixture(scope="session")
def engine(model_path: Path) -> Iterator[Engine]:
    """The engine's own reader on the real model, in a thread of this process."""
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as thread:
        yield Engine(thread)
