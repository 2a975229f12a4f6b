from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "architecture", "path", "prompt_style", "prompt_format_version", "device", "dtype", "blas", "blas_gflops", "parameters", "weights_bytes", "problem", "adapters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_STYLE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLAS_FIELD_NUMBER: _ClassVar[int]
    BLAS_GFLOPS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    path: str
    prompt_style: str
    prompt_format_version: int
    device: str
    dtype: str
    blas: str
    blas_gflops: float
    parameters: int
    weights_bytes: int
    problem: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., path: _Optional[str] = ..., prompt_style: _Optional[str] = ..., prompt_format_version: _Optional[int] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., blas: _Optional[str] = ..., blas_gflops: _Optional[float] = ..., parameters: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., problem: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_questions", "max_options", "max_samples", "max_message_bytes", "context_tokens", "forward_tokens", "queue_jobs", "queue_tokens", "job_deadline_seconds", "chat_rows", "chat_queue", "chat_max_tokens")
    MAX_QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_JOBS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    JOB_DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_ROWS_FIELD_NUMBER: _ClassVar[int]
    CHAT_QUEUE_FIELD_NUMBER: _ClassVar[int]
    CHAT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_questions: int
    max_options: int
    max_samples: int
    max_message_bytes: int
    context_tokens: int
    forward_tokens: int
    queue_jobs: int
    queue_tokens: int
    job_deadline_seconds: float
    chat_rows: int
    chat_queue: int
    chat_max_tokens: int
    def __init__(self, max_questions: _Optional[int] = ..., max_options: _Optional[int] = ..., max_samples: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., context_tokens: _Optional[int] = ..., forward_tokens: _Optional[int] = ..., queue_jobs: _Optional[int] = ..., queue_tokens: _Optional[int] = ..., job_deadline_seconds: _Optional[float] = ..., chat_rows: _Optional[int] = ..., chat_queue: _Optional[int] = ..., chat_max_tokens: _Optional[int] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("temperature", "noul_temperature", "noul_bias")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    NOUL_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    NOUL_BIAS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    noul_temperature: float
    noul_bias: float
    def __init__(self, temperature: _Optional[float] = ..., noul_temperature: _Optional[float] = ..., noul_bias: _Optional[float] = ...) -> None: ...

class PrefixStore(_message.Message):
    __slots__ = ("tier", "records", "bytes", "budget_bytes", "hits", "misses", "evicted", "partial_hits", "stored", "refused")
    TIER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_HITS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    tier: str
    records: int
    bytes: int
    budget_bytes: int
    hits: int
    misses: int
    evicted: int
    partial_hits: int
    stored: int
    refused: int
    def __init__(self, tier: _Optional[str] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ..., budget_bytes: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., evicted: _Optional[int] = ..., partial_hits: _Optional[int] = ..., stored: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class Build(_message.Message):
    __slots__ = ("version", "python_version", "mlx_version", "mlx_lm_version", "platform")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    MLX_VERSION_FIELD_NUMBER: _ClassVar[int]
    MLX_LM_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    version: str
    python_version: str
    mlx_version: str
    mlx_lm_version: str
    platform: str
    def __init__(self, version: _Optional[str] = ..., python_version: _Optional[str] = ..., mlx_version: _Optional[str] = ..., mlx_lm_version: _Optional[str] = ..., platform: _Optional[str] = ...) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("model", "limits", "calibration", "prefix_store", "build")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_STORE_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    model: Model
    limits: Limits
    calibration: Calibration
    prefix_store: PrefixStore
    build: Build
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., prefix_store: _Optional[_Union[PrefixStore, _Mapping]] = ..., build: _Optional[_Union[Build, _Mapping]] = ...) -> None: ...
