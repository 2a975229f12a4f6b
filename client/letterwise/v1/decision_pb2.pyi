from letterwise.v1 import diagnostics_pb2 as _diagnostics_pb2
from letterwise.v1 import info_pb2 as _info_pb2
from letterwise.v1 import serving_pb2 as _serving_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("text", "json")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    text: str
    json: str
    def __init__(self, text: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class AskIf(_message.Message):
    __slots__ = ("question_id", "answers")
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    question_id: str
    answers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, question_id: _Optional[str] = ..., answers: _Optional[_Iterable[str]] = ...) -> None: ...

class Option(_message.Message):
    __slots__ = ("name", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: Value
    def __init__(self, name: _Optional[str] = ..., description: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Noul(_message.Message):
    __slots__ = ("yes", "no")
    YES_FIELD_NUMBER: _ClassVar[int]
    NO_FIELD_NUMBER: _ClassVar[int]
    yes: Value
    no: Value
    def __init__(self, yes: _Optional[_Union[Value, _Mapping]] = ..., no: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.RepeatedCompositeFieldContainer[Option]
    def __init__(self, options: _Optional[_Iterable[_Union[Option, _Mapping]]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("levels",)
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, levels: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("id", "instructions", "ask_if", "noul", "choice", "score")
    ID_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    ASK_IF_FIELD_NUMBER: _ClassVar[int]
    NOUL_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    id: str
    instructions: Value
    ask_if: _containers.RepeatedCompositeFieldContainer[AskIf]
    noul: Noul
    choice: Choice
    score: Score
    def __init__(self, id: _Optional[str] = ..., instructions: _Optional[_Union[Value, _Mapping]] = ..., ask_if: _Optional[_Iterable[_Union[AskIf, _Mapping]]] = ..., noul: _Optional[_Union[Noul, _Mapping]] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ..., score: _Optional[_Union[Score, _Mapping]] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("state", "questions", "samples", "ask", "model", "adapter", "service_class")
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    state: Value
    questions: _containers.RepeatedCompositeFieldContainer[Question]
    samples: int
    ask: _containers.RepeatedScalarFieldContainer[str]
    model: str
    adapter: _serving_pb2.Adapter
    service_class: _serving_pb2.ServiceClass
    def __init__(self, state: _Optional[_Union[Value, _Mapping]] = ..., questions: _Optional[_Iterable[_Union[Question, _Mapping]]] = ..., samples: _Optional[int] = ..., ask: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., adapter: _Optional[_Union[_serving_pb2.Adapter, _Mapping]] = ..., service_class: _Optional[_Union[_serving_pb2.ServiceClass, str]] = ...) -> None: ...

class NoulAnswer(_message.Message):
    __slots__ = ("probability",)
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    probability: float
    def __init__(self, probability: _Optional[float] = ...) -> None: ...

class OptionProbability(_message.Message):
    __slots__ = ("name", "probability")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    probability: float
    def __init__(self, name: _Optional[str] = ..., probability: _Optional[float] = ...) -> None: ...

class ChoiceAnswer(_message.Message):
    __slots__ = ("choice", "probabilities", "confidence")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    choice: str
    probabilities: _containers.RepeatedCompositeFieldContainer[OptionProbability]
    confidence: float
    def __init__(self, choice: _Optional[str] = ..., probabilities: _Optional[_Iterable[_Union[OptionProbability, _Mapping]]] = ..., confidence: _Optional[float] = ...) -> None: ...

class LevelProbability(_message.Message):
    __slots__ = ("index", "level", "probability")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    index: int
    level: Value
    probability: float
    def __init__(self, index: _Optional[int] = ..., level: _Optional[_Union[Value, _Mapping]] = ..., probability: _Optional[float] = ...) -> None: ...

class ScoreAnswer(_message.Message):
    __slots__ = ("score", "probabilities", "confidence")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    score: float
    probabilities: _containers.RepeatedCompositeFieldContainer[LevelProbability]
    confidence: float
    def __init__(self, score: _Optional[float] = ..., probabilities: _Optional[_Iterable[_Union[LevelProbability, _Mapping]]] = ..., confidence: _Optional[float] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("question_id", "letter_mass", "noul", "choice", "score")
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    LETTER_MASS_FIELD_NUMBER: _ClassVar[int]
    NOUL_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    question_id: str
    letter_mass: float
    noul: NoulAnswer
    choice: ChoiceAnswer
    score: ScoreAnswer
    def __init__(self, question_id: _Optional[str] = ..., letter_mass: _Optional[float] = ..., noul: _Optional[_Union[NoulAnswer, _Mapping]] = ..., choice: _Optional[_Union[ChoiceAnswer, _Mapping]] = ..., score: _Optional[_Union[ScoreAnswer, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class DecideResponse(_message.Message):
    __slots__ = ("model", "answers", "skipped", "usage", "diagnostics")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    model: str
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    skipped: _containers.RepeatedCompositeFieldContainer[_diagnostics_pb2.Skipped]
    usage: Usage
    diagnostics: _diagnostics_pb2.Diagnostics
    def __init__(self, model: _Optional[str] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., skipped: _Optional[_Iterable[_Union[_diagnostics_pb2.Skipped, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.Diagnostics, _Mapping]] = ...) -> None: ...

class DecideStreamRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: DecideRequest
    def __init__(self, request: _Optional[_Union[DecideRequest, _Mapping]] = ...) -> None: ...

class DecisionAccepted(_message.Message):
    __slots__ = ("passes", "prompt_tokens")
    PASSES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    passes: int
    prompt_tokens: int
    def __init__(self, passes: _Optional[int] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class PrefixProgress(_message.Message):
    __slots__ = ("done_tokens", "total_tokens", "reused_tokens")
    DONE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    done_tokens: int
    total_tokens: int
    reused_tokens: int
    def __init__(self, done_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ...) -> None: ...

class DecisionCompleted(_message.Message):
    __slots__ = ("model", "usage", "diagnostics")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    model: str
    usage: Usage
    diagnostics: _diagnostics_pb2.Diagnostics
    def __init__(self, model: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.Diagnostics, _Mapping]] = ...) -> None: ...

class DecideStreamResponse(_message.Message):
    __slots__ = ("accepted", "prefix", "answer", "skipped", "completed")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    accepted: DecisionAccepted
    prefix: PrefixProgress
    answer: Answer
    skipped: _diagnostics_pb2.Skipped
    completed: DecisionCompleted
    def __init__(self, accepted: _Optional[_Union[DecisionAccepted, _Mapping]] = ..., prefix: _Optional[_Union[PrefixProgress, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., skipped: _Optional[_Union[_diagnostics_pb2.Skipped, _Mapping]] = ..., completed: _Optional[_Union[DecisionCompleted, _Mapping]] = ...) -> None: ...

class PrewarmRequest(_message.Message):
    __slots__ = ("state", "model", "adapter", "service_class")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    state: Value
    model: str
    adapter: _serving_pb2.Adapter
    service_class: _serving_pb2.ServiceClass
    def __init__(self, state: _Optional[_Union[Value, _Mapping]] = ..., model: _Optional[str] = ..., adapter: _Optional[_Union[_serving_pb2.Adapter, _Mapping]] = ..., service_class: _Optional[_Union[_serving_pb2.ServiceClass, str]] = ...) -> None: ...

class PrewarmResponse(_message.Message):
    __slots__ = ("model", "prompt_tokens", "reused_tokens", "stored", "tier", "diagnostics")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt_tokens: int
    reused_tokens: int
    stored: bool
    tier: str
    diagnostics: _diagnostics_pb2.Diagnostics
    def __init__(self, model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., stored: bool = ..., tier: _Optional[str] = ..., diagnostics: _Optional[_Union[_diagnostics_pb2.Diagnostics, _Mapping]] = ...) -> None: ...
