"""The messages of a chat, both ways: protobuf → a sound `ChatRequest`, chat events → protobuf.

Pure: no I/O, no event loop. What a conversation may be is `method/chat.py`'s; this module owns what stands for a
field that is absent.
"""

from __future__ import annotations

from letterwise.v1 import chat_pb2 as pb

from ..config import EngineConfig
from ..engine.events import ChatEvent, ChatFinished, ChatStarted, ChatText, Failed, ModelInfo
from ..errors import InvalidRequest, Violation
from ..method import chat
from .requests import adapter_of, check_size

# What is generated at most when the caller names no number.
DEFAULT_MAX_TOKENS = 512

_REASONS = {"stop": pb.FINISH_REASON_STOP, "length": pb.FINISH_REASON_LENGTH}


def request_of(request: pb.ChatRequest, config: EngineConfig) -> chat.ChatRequest:
    """The chat that is asked for. Raises InvalidRequest."""
    default = min(DEFAULT_MAX_TOKENS, config.chat_max_tokens)
    asked = chat.ChatRequest(
        messages=tuple(chat.ChatMessage(message.role, message.content) for message in request.messages),
        max_tokens=request.max_tokens if request.HasField("max_tokens") else default,
        temperature=request.temperature if request.HasField("temperature") else 0.0,
        top_p=request.top_p if request.HasField("top_p") else 1.0,
        seed=request.seed if request.HasField("seed") else None,
        stop=tuple(request.stop),
        adapter=adapter_of(request),
    )
    chat.check(asked, max_tokens=config.chat_max_tokens)
    return asked


def check_sizes(request: pb.ChatRequest, model: ModelInfo) -> None:
    """Refuses what is too much before any of it is read. Raises TooLong and InvalidRequest."""
    if (count := len(request.messages)) > chat.MAX_MESSAGES:
        raise InvalidRequest([Violation("messages", f"expected at most {chat.MAX_MESSAGES} messages, not {count}")])
    if (count := len(request.stop)) > chat.MAX_STOPS:
        raise InvalidRequest([Violation("stop", f"expected at most {chat.MAX_STOPS} texts, not {count}")])
    check_size("messages", request, model)


def response_of(event: ChatEvent) -> pb.ChatResponse:
    """One event of the stream; a Failed never travels as one."""
    match event:
        case ChatStarted():
            started = pb.ChatStarted(prompt_tokens=event.prompt_tokens, reused_tokens=event.reused_tokens)
            return pb.ChatResponse(started=started)
        case ChatText():
            tokens = [pb.ChatToken(id=id, logprob=logprob) for id, logprob in event.tokens]
            return pb.ChatResponse(delta=pb.ChatDelta(text=event.text, tokens=tokens))
        case ChatFinished():
            return pb.ChatResponse(finished=_finished(event))
        case Failed():
            raise AssertionError("a failure is raised, not sent as an event")


def _finished(event: ChatFinished) -> pb.ChatFinished:
    return pb.ChatFinished(
        model=event.model,
        finish_reason=_REASONS[event.reason],
        usage=pb.ChatUsage(input_tokens=event.prompt_tokens, output_tokens=event.output_tokens),
        queue_seconds=event.queue_seconds,
        total_seconds=event.total_seconds,
    )
