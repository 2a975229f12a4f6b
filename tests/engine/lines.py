"""Queues under test: jobs that do nothing, and whole lives of them."""

from __future__ import annotations

import time

from letterwise_service.engine.budgets import Permit
from letterwise_service.engine.jobs import Job
from letterwise_service.engine.lineup import JobQueue
from letterwise_service.method.request import INTERACTIVE


def job(tokens: int = 10, caller_deadline: float | None = None, service_class: str = INTERACTIVE) -> Job:
    permit = Permit(
        None, (1, 2), {}, passes=0, prompt_tokens=tokens, neutralized=0, adapter=None, service_class=service_class
    )
    return Job(permit, lambda event: None, 60.0, caller_deadline)


def queued(jobs: list[Job], max_jobs: int = 100, max_tokens: int = 10_000) -> JobQueue:
    queue = JobQueue(max_jobs, max_tokens)
    for one in jobs:
        queue.put(one)
    return queue


def turns(queue: JobQueue, count: int) -> list[tuple[Job, bool] | None]:
    return [queue.turn(wait=False) for _ in range(count)]


def run(queue: JobQueue, one: Job, seconds: float, *, completed: bool = True) -> None:
    """One job's whole life, `seconds` long by its own account."""
    queue.put(one)
    assert queue.turn(wait=False) == (one, True)
    one.started = time.monotonic() - seconds
    one.completed = completed
    queue.remove(one)
