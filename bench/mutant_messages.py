"""Hostile protobuf messages, each made of a number, for every RPC that the contract has.

Most begin as a sound request, or as one filled at random after its descriptor, and are changed on the wire. Pure; the
same draws make the same message. Knows nothing of what a server says to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from letterwise.v1 import chat_pb2, decision_pb2

from . import mutant_bodies

SERVICES = (
    *decision_pb2.DESCRIPTOR.services_by_name.values(),
    *chat_pb2.DESCRIPTOR.services_by_name.values(),
)
_METHODS = [method for service in SERVICES for method in service.methods]
_DOUBLES = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324)
_INTEGERS = (0, 1, 2, 3, 33, 127, 128, 65_536, 2**31 - 1, 2**32 - 1)
_MOST_DEPTH = 6
# What a call may carry beside its message.
_METADATA: Sequence[tuple[str, str | bytes]] = (
    ("x-request-id", "x" * 2000),
    ("x-request-id", '%00 \\ "'),
    ("authorization", "Bearer"),
    ("authorization", "basic " + "=" * 50),
    ("traceparent", "00-zz-00-01"),
    ("x-bytes-bin", b"\x00\xff"),
    ("x-large", "y" * 7000),
    ("grpc-previous-rpc-attempts", "99"),
)


@dataclass(frozen=True)
class GrpcCase:
    """One call. `path`: /package.Service/Method; `streams`: whether its replies are a stream."""

    path: str
    message: bytes
    streams: bool
    metadata: tuple[tuple[str, str | bytes], ...]


def grpc_case(draw: Random) -> GrpcCase:
    """One call of one of the RPCs, each of them as likely."""
    method = draw.choice(_METHODS)
    path = f"/{method.containing_service.full_name}/{method.name}"
    metadata = (draw.choice(_METADATA),) if draw.random() < 0.06 else ()
    return GrpcCase(path, message(draw, method.input_type), method.server_streaming, metadata)


def message(draw: Random, kind: Any) -> bytes:
    """A message near to one of this kind, a descriptor of protobuf's, as bytes."""
    made = _sound(kind.name) if draw.random() < 0.6 else None
    if made is None:
        made = message_factory.GetMessageClass(kind)()
        fill(draw, made)
    for _ in range(draw.choice((0, 0, 1, 2, 5))):
        _change(draw, made)
    data = made.SerializeToString()[: mutant_bodies.MOST_BODY_BYTES]
    return data if draw.random() < 0.6 else _spoiled(draw, data)


def fill(draw: Random, made: Message, depth: int = 0) -> None:
    """Sets fields at random, and their fields."""
    field: Any
    for field in made.DESCRIPTOR.fields:
        if draw.random() < (0.75 if depth < _MOST_DEPTH else 0.1):
            _set(draw, made, field, depth)


def _change(draw: Random, made: Message, depth: int = 0) -> None:
    """One field, of the message or of one inside it, gets another value, or is gone."""
    field: Any = draw.choice(made.DESCRIPTOR.fields) if made.DESCRIPTOR.fields else None
    if field is None:
        return
    inner = _inner(draw, made, field)
    if inner is not None and draw.random() < 0.8:
        _change(draw, inner, depth + 1)
    elif draw.random() < 0.2:
        made.ClearField(field.name)
    else:
        _set(draw, made, field, depth)


def _inner(draw: Random, made: Message, field: FieldDescriptor) -> Message | None:
    if field.message_type is None:
        return None
    if field.is_repeated:
        many = getattr(made, field.name)
        return draw.choice(many) if many else None
    return getattr(made, field.name) if made.HasField(field.name) else None


def _set(draw: Random, made: Message, field: FieldDescriptor, depth: int) -> None:
    if field.is_repeated:
        many = getattr(made, field.name)
        for _ in range(draw.choice((1, 1, 2, 3, 60 if depth < 3 else 4))):
            if field.message_type is None:
                many.append(_scalar(draw, field))
            elif many and draw.random() < 0.5:
                many.add().CopyFrom(draw.choice(many))
            else:
                fill(draw, many.add(), depth + 1)
    elif field.message_type is None:
        setattr(made, field.name, _scalar(draw, field))
    else:
        getattr(made, field.name).SetInParent()
        fill(draw, getattr(made, field.name), depth + 1)


def _scalar(draw: Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return _text(draw, field)
        case FieldDescriptor.CPPTYPE_DOUBLE:
            return draw.choice(_DOUBLES)
        case FieldDescriptor.CPPTYPE_ENUM:
            return draw.choice((0, 1, 2, 3, 99, -1))
        case FieldDescriptor.CPPTYPE_BOOL:
            return draw.random() < 0.5
    return draw.choice(_INTEGERS)


def _text(draw: Random, field: FieldDescriptor) -> str:
    if field.name == "json":
        text = (
            mutant_bodies.deep(draw)
            if draw.random() < 0.15
            else mutant_bodies.json_body(draw).decode("utf-8", "replace")
        )
    elif field.name == "role" and draw.random() < 0.7:
        text = draw.choice(("system", "user", "assistant"))
    else:
        text = draw.choice(mutant_bodies.TEXTS) * draw.choice((1, 1, 1, 3))
    return text.encode("utf-8", "replace").decode()


def _spoiled(draw: Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    makes: Sequence[Callable[[], bytes]] = (
        lambda: data[:at],
        lambda: mutant_bodies.flipped(draw, data),
        lambda: mutant_bodies.flipped(draw, data),
        lambda: data + data,
        lambda: data[:at] + _field(draw) + data[at:],
        lambda: data + _field(draw),
        lambda: data[:at] + data[at // 2 :],
        lambda: draw.randbytes(draw.randrange(200)),
        lambda: data + b"\x0b" * draw.choice((1, 90, 20_000)),  # groups that are opened and never closed
        lambda: b"\x0a\xff\xff\xff\xff\x07" + data,  # a length of two gigabytes
        lambda: data + b"\xff" * 11,  # a varint that does not end
        lambda: data + _length_delimited(19, b"x" * 400_000),
        lambda: _nested(draw, data),
    )
    return draw.choice(makes)()


def _field(draw: Random) -> bytes:
    """A field of some number and some wire type, known or not."""
    tag = draw.randrange(1, 20) << 3 | draw.randrange(8)
    return bytes((tag & 0x7F | (0x80 if tag > 0x7F else 0), *((tag >> 7,) if tag > 0x7F else ()))) + draw.randbytes(
        draw.randrange(12)
    )


def _nested(draw: Random, data: bytes) -> bytes:
    """The message as a field of itself, again and again: deeper than a parser may go."""
    for _ in range(draw.choice((3, 99, 300))):
        data = _length_delimited(1, data)
    return data


def _length_delimited(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _sound(name: str) -> Message | None:
    """A request that is answered."""
    pb = decision_pb2
    decide = pb.DecideRequest(
        state=pb.Value(json='{"subject": "charged twice"}'),
        questions=[
            pb.Question(id="refund", instructions=_value("Money back?"), noul=pb.Noul(yes=_value("so"))),
            pb.Question(
                id="team",
                instructions=_value("Who?"),
                choice=pb.Choice(options=[pb.Option(name="a"), pb.Option(name="b", description=_value("c"))]),
                ask_if=[pb.AskIf(question_id="refund", answers=["yes", "no"])],
            ),
            pb.Question(
                id="far", instructions=_value("How?"), score=pb.Score(levels=[_value("low"), pb.Value(json="[1]")])
            ),
        ],
        samples=2,
    )
    chat = chat_pb2.ChatRequest(
        messages=[chat_pb2.ChatMessage(role="user", content="Say it.")], max_tokens=3, temperature=0.7, seed=5
    )
    sound: dict[str, Message] = {
        "DecideRequest": decide,
        "DecideStreamRequest": pb.DecideStreamRequest(request=decide),
        "PrewarmRequest": pb.PrewarmRequest(state=decide.state),
        "ChatRequest": chat,
    }
    return sound.get(name)


def _value(text: str) -> decision_pb2.Value:
    return decision_pb2.Value(text=text)
