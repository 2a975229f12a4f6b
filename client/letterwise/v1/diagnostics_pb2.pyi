from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Skipped(_message.Message):
    __slots__ = ("question_id", "because", "was", "wanted")
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    WAS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    question_id: str
    because: str
    was: str
    wanted: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, question_id: _Optional[str] = ..., because: _Optional[str] = ..., was: _Optional[str] = ..., wanted: _Optional[_Iterable[str]] = ...) -> None: ...

class PrefixDiagnostics(_message.Message):
    __slots__ = ("tokens", "reused_tokens", "stored", "tier")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    reused_tokens: int
    stored: bool
    tier: str
    def __init__(self, tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., stored: bool = ..., tier: _Optional[str] = ...) -> None: ...

class Diagnostics(_message.Message):
    __slots__ = ("readout", "path", "prompt_style", "prompt_format_version", "stages", "skipped", "orderings", "prefix", "passes", "forwards", "prompt_tokens", "computed_tokens", "padded_tokens", "neutralized_tokens", "queue_seconds", "prefix_seconds", "tails_seconds", "total_seconds", "ignored")
    READOUT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_STYLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ORDERINGS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PADDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEUTRALIZED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TAILS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    readout: str
    path: str
    prompt_style: str
    prompt_format_version: int
    stages: int
    skipped: _containers.RepeatedCompositeFieldContainer[Skipped]
    orderings: int
    prefix: PrefixDiagnostics
    passes: int
    forwards: int
    prompt_tokens: int
    computed_tokens: int
    padded_tokens: int
    neutralized_tokens: int
    queue_seconds: float
    prefix_seconds: float
    tails_seconds: float
    total_seconds: float
    ignored: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, readout: _Optional[str] = ..., path: _Optional[str] = ..., prompt_style: _Optional[str] = ..., prompt_format_version: _Optional[int] = ..., stages: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[Skipped, _Mapping]]] = ..., orderings: _Optional[int] = ..., prefix: _Optional[_Union[PrefixDiagnostics, _Mapping]] = ..., passes: _Optional[int] = ..., forwards: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., padded_tokens: _Optional[int] = ..., neutralized_tokens: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., prefix_seconds: _Optional[float] = ..., tails_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., ignored: _Optional[_Iterable[str]] = ...) -> None: ...
