"""Requests for the server's tests."""

from __future__ import annotations

from letterwise.v1 import decision_pb2 as pb


def text(value: str) -> pb.Value:
    return pb.Value(text=value)


def noul(id: str = "refund", **fields: object) -> pb.Question:
    return pb.Question(id=id, instructions=text("Is a refund asked for?"), noul=pb.Noul(), **fields)


def choice(
    id: str = "team", names: tuple[str, ...] = ("billing", "technical", "other"), **fields: object
) -> pb.Question:
    options = [pb.Option(name=name, description=text(f"about {name}")) for name in names]
    return pb.Question(id=id, instructions=text("Which team?"), choice=pb.Choice(options=options), **fields)


def score(id: str = "urgency", levels: tuple[str, ...] = ("low", "middle", "high"), **fields: object) -> pb.Question:
    values = [text(level) for level in levels]
    return pb.Question(id=id, instructions=text("How urgent?"), score=pb.Score(levels=values), **fields)


def after(id: str, *answers: str) -> list[pb.AskIf]:
    return [pb.AskIf(question_id=id, answers=answers)]


def ticket() -> pb.DecideRequest:
    """Every kind of question, one that is asked only after another, and one that never is."""
    return pb.DecideRequest(
        state=pb.Value(json='{"subject": "charged twice", "body": "日本語 🎫"}'),
        questions=[
            noul("escalate", ask_if=after("team", "billing", "technical", "other")),
            noul(),
            choice(),
            score(),
            noul("never", ask_if=after("ghost", "no")),
            pb.Question(
                id="ghost",
                instructions=text("Is there one option?"),
                choice=pb.Choice(options=[pb.Option(name="yes"), pb.Option(name="no")]),
                ask_if=after("urgency", "low"),
            ),
        ],
        samples=2,
    )
