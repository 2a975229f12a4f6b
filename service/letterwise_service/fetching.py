"""How the fetch of the embedded model is shown: a bar on a terminal, a line elsewhere; nothing when it is here already.

Owns the words on stderr. Knows nothing of how the model is fetched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

# Told (bytes done, bytes in all), from when there is something to fetch.
Progress: TypeAlias = Callable[[int, int], None]

_WORDS = "fetching the demo model"


@contextmanager
def bar() -> Iterator[Progress]:
    """What to call while bytes arrive; the bar appears at the first call and ends with the block."""
    with ExitStack() as stack:
        shown: list[Progress] = []

        def progress(done: int, total: int) -> None:
            if not shown:
                shown.append(_rich(stack) if sys.stderr.isatty() else _line())
            shown[0](done, total)

        yield progress


def _rich(stack: ExitStack) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = stack.enter_context(Bars("{task.description}", *columns, console=Console(stderr=True)))
    task = bars.add_task(_WORDS, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)


def _line() -> Progress:
    print(f"{_WORDS} …", file=sys.stderr, flush=True)
    return lambda done, total: None
