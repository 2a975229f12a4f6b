"""What every contender reads: a support desk's log as the state, and questions of the three kinds about it.

Texts follow from numbers alone, so that every process makes the same ones; a new seed is a state that nobody has
read. The token ids are made once, by the service's own method and admission, and handed to every contender.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from letterwise_service.method.decision import Decision
from letterwise_service.method.request import Choice, DecisionRequest, Noul, Option, Question, Score

if TYPE_CHECKING:
    from letterwise_service.engine.prompts.tokens import PromptTokens

# Log entries of a state of about 700 tokens, header included.
ENTRIES = 24
_UNLIMITED_TOKENS = 10**9

_PEOPLE = ("Mira", "Tobias", "Chen", "Aisha", "Pavel", "Ines", "Jonas", "Leila", "Marek", "Sofia")
_GOODS = ("a desk lamp", "two chairs", "a kettle", "a rain jacket", "a bicycle pump", "a set of books", "a phone case")
_EVENTS = (
    "arrived with a torn box and no receipt",
    "came four days after the promised date",
    "was sent to the old address again",
    "had the wrong colour and size",
    "worked for a week and then stopped",
    "never left the warehouse in spite of the notice",
)
_WISHES = (
    "asks for the money back",
    "wants a new one sent today",
    "will keep it for a discount",
    "only wants to know why",
    "says that a colleague will call",
)

_NOULS = (
    ("Does any customer in the log ask for the money back?", "", ""),
    ("Is there a parcel that went to an address that is no longer right?", "", ""),
    ("Should a person look at this log before the end of the day, rather than tomorrow?", "", ""),
    ("Does the log speak of damage?", "A box or an item is torn or broken.", "Nothing is torn or broken."),
    ("Has the warehouse made the same mistake more than once in the entries above?", "", ""),
    ("Is every customer in the log still polite and patient?", "", ""),
    ("Would a discount be enough for at least one of the customers, as far as the log says?", "", ""),
)
_CHOICES = (
    ("Which team should take over the case?", ("billing", "delivery", "returns", "technical help")),
    ("What is the most frequent reason for the complaints in the log above?", ("delay", "damage", "mix-up", "defect")),
    ("Which reply fits best?", ("an apology", "a refund", "a replacement", "a question", "a call")),
    ("Through which channel should the first customer be answered?", ("mail", "phone", "letter")),
    ("In which language is the log written?", ("English", "German", "French", "Spanish", "Polish", "Czech")),
    ("Who is at fault in most of the entries?", ("the warehouse", "the carrier", "the customer", "nobody")),
    ("What should be done with the next parcel?", ("send it as planned", "hold it back", "check it by hand")),
)
_SCORES = (
    ("How urgent is the case?", ("it can wait", "this week", "today", "right now")),
    ("How angry are the customers on the whole?", ("calm", "annoyed", "angry", "furious")),
    ("How costly will it be to set this right?", ("nothing", "little", "noticeable", "much", "very much")),
    ("How likely is it that the customers order again?", ("never", "hardly", "perhaps", "surely")),
    ("How well does the log describe what happened?", ("badly", "in part", "well", "completely")),
    ("How many customers are affected?", ("one", "a few", "many")),
)
_PLACES = ("north", "south", "east", "west", "central", "coastal", "upper", "lower", "inner", "outer")
_DESKS = (
    "billing",
    "delivery",
    "returns",
    "repairs",
    "complaints",
    "orders",
    "stock",
    "carriers",
    "gifts",
    "contracts",
)


@dataclass(frozen=True)
class Ids:
    """A request as token ids: what every pass starts with, and each pass's rest, in the order of the questions."""

    prefix: tuple[int, ...]
    tails: tuple[tuple[int, ...], ...]


def state(seed: int, entries: int = ENTRIES) -> str:
    """A log of `entries` lines that no other seed gives."""
    draw = random.Random(seed)
    lines = [f"Log {seed} of the support desk."]
    for number in range(1, entries + 1):
        person, goods = draw.choice(_PEOPLE), draw.choice(_GOODS)
        event, wish = draw.choice(_EVENTS), draw.choice(_WISHES)
        lines.append(f"{number}. {person} ordered {goods}, which {event}; {person} {wish}.")
    return "\n".join(lines)


def questions(count: int) -> tuple[Question, ...]:
    """The first `count` of a fixed sequence that mixes the kinds; past 20 they come again, each about another entry."""
    return tuple(_question(index) for index in range(count))


def _question(index: int) -> Question:
    number, kind = divmod(index, 3)
    again = f" Look at entry {index} only." if index >= 20 else ""
    if kind == 0:
        text, yes, no = _NOULS[number % len(_NOULS)]
        return Noul(f"q{index}", text + again, yes or None, no or None)
    if kind == 1:
        text, names = _CHOICES[number % len(_CHOICES)]
        return Choice(f"q{index}", text + again, tuple(Option(name) for name in names))
    text, levels = _SCORES[number % len(_SCORES)]
    return Score(f"q{index}", text + again, levels)


def one_choice(options: int) -> Choice:
    """A question of up to 1,000 options."""
    names = [f"{place} {desk} {floor}" for floor in range(1, 11) for place in _PLACES for desk in _DESKS]
    return Choice("desk", "Which desk should answer?", tuple(Option(name) for name in names[:options]))


def request(seed: int, count: int, entries: int = ENTRIES) -> DecisionRequest:
    """`count` questions on the state of `seed`."""
    return DecisionRequest(state(seed, entries), questions(count))


def ids(asked: DecisionRequest, tokens: PromptTokens, style: str) -> Ids:
    """The ids of a request whose passes are all of its first stage."""
    from letterwise_service.engine.budgets import Admission, Budgets, tail_ids

    permit = Admission(tokens, Budgets(_UNLIMITED_TOKENS, _UNLIMITED_TOKENS), style).admit(asked)
    passes = Decision(asked, style=style).ready()
    return Ids(permit.prefix, tuple(tail_ids(permit, tokens, one.text) for one in passes))


def demo_tokens() -> PromptTokens:
    """The embedded model's tokenizer, without its weights."""
    from letterwise_service.engine.models import embedded
    from letterwise_service.engine.models.gguf import GgufFile
    from letterwise_service.engine.models.gguf_tokenizer import tokenizer_of
    from letterwise_service.engine.prompts.tokens import PromptTokens

    return PromptTokens(tokenizer_of(GgufFile(embedded.fetch())))


def lengths(tails: Sequence[Sequence[int]]) -> list[int]:
    return [len(tail) for tail in tails]
