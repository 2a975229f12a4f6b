"""The engine's reader on the real model, for what no reply carries: the letter scores themselves.

MLX belongs to the thread that loaded the model, so everything runs on the one thread that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from letterwise_service.config import EngineConfig
from letterwise_service.engine.reading.probe import drain
from letterwise_service.engine.reading.reader import TailScores, Work
from letterwise_service.engine.warm import warm
from letterwise_service.method.decision import Decision
from letterwise_service.method.request import DecisionRequest

from .judging import STYLE


class Engine:
    """A warm model, its admission and its reader."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._warmed = thread.submit(warm, EngineConfig()).result()

    def prompts(self, messages: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of whole prompts, as the engine makes them."""
        assert self._warmed.served is not None
        return [encoded.ids for encoded in self._warmed.served.tokens.messages(messages)]

    def scores(self, request: DecisionRequest) -> dict[str, TailScores]:
        """The letter scores of each first pass by its text: prefix in chunks, tails in groups, as in the service."""
        return self._thread.submit(self._scores, request).result()

    def _scores(self, request: DecisionRequest) -> dict[str, TailScores]:
        served, admission = self._warmed.served, self._warmed.admission
        assert served is not None
        assert admission is not None
        permit = admission.admit(request)
        texts = [one.text for one in Decision(request, style=STYLE).ready()]
        tails = [permit.tails[text] for text in texts]
        cache = drain(served.reader.prefill(permit.prefix, Work()))
        steps = served.reader.read(permit.prefix, cache, tails, Work())
        return {texts[one.index]: one for step in steps for one in step}
