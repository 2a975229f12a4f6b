"""How many letters become many options: chunks, option orders, averages, and the merge over chunk winners.

Owns the arithmetic between one pass and a distribution over all options. Pure functions on any thread; knows
nothing of texts or questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from .calibration import most_probable, normalized
from .prompt import LETTERS

# Chunks of 52, whose winners fit one more pass of 52.
MAX_OPTIONS = len(LETTERS) ** 2


def chunks(count: int) -> list[range]:
    """Near-equal runs of at most 52 option indices. Raises ValueError past 2704 options."""
    if not 1 <= count <= MAX_OPTIONS:
        raise ValueError(f"a question takes 1 to {MAX_OPTIONS} options")
    pieces = -(-count // len(LETTERS))
    size = -(-count // pieces)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def option_orders(count: int, samples: int) -> list[list[int]]:
    """The orders in which `count` options are listed: position p of order j shows option `orders[j][p]`."""
    if samples <= 1:
        return [list(range(count))]
    orders = []
    for seed in range(samples):
        order = list(range(count))
        random.Random(seed).shuffle(order)
        orders.append(order)
    return orders


def average_by_option(orders: Sequence[Sequence[int]], listed: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """The mean probability of each option; `listed[j][p]` belongs to option `orders[j][p]`."""
    totals = [0.0] * len(orders[0])
    for order, probabilities in zip(orders, listed, strict=True):
        for option, probability in zip(order, probabilities, strict=True):
            totals[option] += probability
    return tuple(total / len(orders) for total in totals)


def winners(runs: Sequence[range], within: Sequence[Sequence[float]]) -> list[int]:
    """The option that won each chunk, by its index among all options."""
    return [run[most_probable(probabilities)] for run, probabilities in zip(runs, within, strict=True)]


def merged(within: Sequence[Sequence[float]], final: Sequence[float]) -> tuple[float, ...]:
    """p(i) in proportion to final(chunk of i) * within(i) / within(winner of that chunk), over all options."""
    weights: list[float] = []
    for probabilities, share in zip(within, final, strict=True):
        top = max(probabilities)
        weights.extend(share * probability / top for probability in probabilities)
    return normalized(weights)
