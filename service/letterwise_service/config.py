"""The frozen settings, and the only reader of flags, environment and settings file.

A flag wins over LETTERWISE_*, which wins over the file, which wins over a default. Each setting is one field with its
default, its help line and its parser; the flag (`--queue-jobs`), the variable (`LETTERWISE_QUEUE_JOBS`) and the key of
the file (`queue_jobs`) take their names from the field. Knows nothing of what the settings do.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from . import config_file
from . import setting_values as of
from .config_file import ConfigError, ConfigFile

T = TypeVar("T")

ENVIRONMENT_PREFIX = "LETTERWISE_"
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
DEFAULT = "default"


def _setting(default: T, help: str, parse: Callable[[str], T]) -> T:
    field: T = dataclasses.field(default=default, metadata={"help": help, "parse": parse})
    return field


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is told. `model`: "demo", a folder, a .gguf file or a hub id."""

    model: str = _setting("demo", "demo (the embedded model), a model folder, a .gguf file or a hub id", of.model)
    alias: str | None = _setting(None, "the name to serve under (the model's own)", of.optional(of.text))
    prompt_style: str = _setting(
        "auto",
        "auto, bracket (models trained on it, OpenJev) or plain (every other model)",
        of.one_of("auto", "bracket", "plain"),
    )
    max_samples: int = _setting(32, "the most option orders that one request may average", of.whole(1, 1024))
    max_questions: int = _setting(256, "the most questions in one request", of.whole(1, 65_536))
    max_options: int = _setting(2048, "the most options of one question", of.whole(1, 65_536))
    context_tokens: int | None = _setting(
        None, "the longest prompt (the model's own context)", of.optional(of.whole(128))
    )
    prefix_store: bool = _setting(True, "on or off: keep the states' prefixes for later decisions", of.on_off)
    prefix_store_bytes: int | None = _setting(
        None, "memory for kept prefixes, such as 2GiB (a share of what the model leaves)", of.optional(of.size)
    )
    prefix_store_records: int = _setting(
        8,
        "the most states kept of a model with recurrent or windowed layers; others are bounded by bytes alone",
        of.whole(1, 1_000_000),
    )
    check_store_when_idle: bool = _setting(
        False, "on or off: walk the store whenever nothing runs, and stop if it is not whole; for tests", of.on_off
    )
    decision_tokens: int = _setting(
        1_000_000, "the most prompt tokens of one decision, each of its prompts counted in full", of.whole(1)
    )
    queue_jobs: int = _setting(
        256, "the most decisions waiting or running, batch ones half of it; more are refused at once", of.whole(1)
    )
    queue_tokens: int = _setting(
        4_000_000, "the most prompt tokens waiting or running, batch ones half of it", of.whole(1)
    )
    job_deadline_seconds: float = _setting(
        120.0, "how long a decision may run, counted from when it leaves the queue", of.positive_seconds
    )
    adapters: tuple[tuple[str, str], ...] = _setting(
        (), "LoRA adapters that requests may name: name=folder,… in mlx-lm's format", of.adapters
    )
    chat_rows: int = _setting(
        8, "the most conversations that generate at once; 0 for a server without chat", of.whole(0, 256)
    )
    chat_queue: int = _setting(64, "the most conversations waiting for a place; more are refused at once", of.whole(1))
    chat_max_tokens: int = _setting(2048, "the most tokens that one chat may generate", of.whole(1))
    chat_cache_bytes: int | None = _setting(
        None,
        "memory for what chat keeps of earlier prompts, such as 1GiB (a share of what the model leaves)",
        of.optional(of.size),
    )
    blas_threads: int = _setting(1, "threads of the processor's BLAS", of.whole(1, 1024))
    require_blas: bool = _setting(
        True, "on or off: refuse to start on a Linux processor that has no fast BLAS", of.on_off
    )
    calibration_file: str | None = _setting(
        None, "TOML or JSON with temperature, noul_temperature, noul_bias (the published ones)", of.optional(of.file)
    )


@dataclass(frozen=True)
class ServerConfig:
    """Everything the server is told."""

    host: str = _setting("127.0.0.1", "the address to listen on; 0.0.0.0 for every interface", of.text)
    port: int = _setting(50051, "the port to listen on; 0 picks a free one", of.whole(0, 65_535))
    http_port: int = _setting(8080, "the port of the HTTP routes, on the same address; 0 for none", of.whole(0, 65_535))
    drain_seconds: float = _setting(30.0, "how long running decisions may go on once a stop is asked for", of.seconds)
    max_message_bytes: int = _setting(16 * 2**20, "the largest request, such as 16MiB", of.message_size)
    keepalive_seconds: float = _setting(
        60.0, "how long a connection may be silent before it is probed", of.positive_seconds
    )
    connection_age_seconds: float = _setting(
        1800.0,
        "a connection's age when it is asked to reconnect, so that callers look the address up again",
        of.positive_seconds,
    )
    metrics_port: int = _setting(
        0, "the port of /metrics for Prometheus, on the same address; 0 for none", of.whole(0, 65_535)
    )
    token_file: str | None = _setting(
        None, "bearer tokens that callers must show, one a line, name:token for a name in the log", of.optional(of.file)
    )
    tls_certificate: str | None = _setting(
        None, "the server's certificate chain, PEM; turns TLS on", of.optional(of.file)
    )
    tls_key: str | None = _setting(None, "the private key of the certificate, PEM", of.optional(of.file))
    tls_client_ca: str | None = _setting(
        None, "certificates that must have signed those of callers, PEM; turns mutual TLS on", of.optional(of.file)
    )
    log_level: str = _setting("info", "debug, info, warning or error", of.one_of("debug", "info", "warning", "error"))
    log_format: str = _setting("text", "text (key=value) or json, a line each", of.one_of("text", "json"))
    tracing: str = _setting(
        "auto", "on, off, or auto: on where OTEL_EXPORTER_OTLP_ENDPOINT is set", of.one_of("auto", "on", "off")
    )


Config = TypeVar("Config", EngineConfig, ServerConfig)


def flag_of(name: str) -> str:
    """The flag of a setting: `queue_jobs` → `--queue-jobs`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting: `queue_jobs` → `LETTERWISE_QUEUE_JOBS`."""
    return ENVIRONMENT_PREFIX + name.upper()


def add_flags(parser: argparse.ArgumentParser, settings: type[EngineConfig | ServerConfig]) -> None:
    """Gives `parser` a flag per setting, each with its help, default and environment variable, and `--config`."""
    if "config" not in (action.dest for action in parser._actions):  # argparse has no public way to see them
        parser.add_argument(
            "--config",
            default=argparse.SUPPRESS,
            metavar="FILE",
            help=f"settings as TOML; flags and environment win [{CONFIG_VARIABLE}]",
        )
    group = parser.add_argument_group(f"{settings.__name__.removesuffix('Config').lower()} settings")
    for field in dataclasses.fields(settings):
        default = "" if field.default in (None, ()) else f" (default {shown(field.default)})"
        group.add_argument(
            flag_of(field.name),
            default=argparse.SUPPRESS,
            metavar=field.name.rsplit("_", 1)[-1].upper(),
            help=f"{field.metadata['help']}{default} [{variable_of(field.name)}]".replace("%", "%%"),
        )


@dataclass(frozen=True)
class Found:
    """A setting's value, and where it was found: a flag, a variable, a place in the file, or DEFAULT."""

    value: Any
    source: str


def read(settings: type[Config], flags: argparse.Namespace, environment: Mapping[str, str], **fixed: Any) -> Config:
    """The settings that flags, environment and file give; `fixed` ones are not read. Raises ConfigError."""
    found, faults = find(settings, flags, environment, **fixed)
    if faults:
        raise faults[0]
    return settings(**{name: one.value for name, one in found.items()})


def find(
    settings: type[EngineConfig | ServerConfig],
    flags: argparse.Namespace,
    environment: Mapping[str, str],
    **fixed: Any,
) -> tuple[dict[str, Found], list[ConfigError]]:
    """Every setting with its source, and all that is wrong, keys of the file that are none among it."""
    try:
        file = _settings_file(flags, environment)
    except ConfigError as error:
        return {}, [error]
    found = {name: Found(value, "the command") for name, value in fixed.items()}
    faults = file.unknown(names()) if file else []
    for field in dataclasses.fields(settings):
        if field.name not in fixed:
            try:
                found[field.name] = _found(field, flags, environment, file)
            except ConfigError as error:
                faults.append(error)
    return found, faults


def names() -> list[str]:
    """Every setting's name."""
    return [field.name for each in (EngineConfig, ServerConfig) for field in dataclasses.fields(each)]


def _settings_file(flags: argparse.Namespace, environment: Mapping[str, str]) -> ConfigFile | None:
    path = getattr(flags, "config", None) or environment.get(CONFIG_VARIABLE)
    return config_file.load(path) if path else None


def _found(
    field: dataclasses.Field[Any], flags: argparse.Namespace, environment: Mapping[str, str], file: ConfigFile | None
) -> Found:
    flag, variable = flag_of(field.name), variable_of(field.name)
    if (text := getattr(flags, field.name, None)) is not None:
        return Found(_parsed(field, text, flag), flag)
    if text := environment.get(variable):
        return Found(_parsed(field, text, variable), variable)
    if file is not None and field.name in file.values:
        return Found(_native(field, file), file.place(field.name))
    return Found(field.default, DEFAULT)


def _native(field: dataclasses.Field[Any], file: ConfigFile) -> Any:
    """A value of the file; what its parser says is told of the value as the file has it."""
    value, place = file.values[field.name], file.place(field.name)
    text = config_file.text_of(value)
    if text is None:
        raise ConfigError(f"{place}: expected one value, not {value!r}")
    parsed = _parsed(field, text, place)
    if not config_file.same(parsed, value):
        raise ConfigError(f"{place} {value!r}: expected text, in quotes, or a whole number")
    return parsed


def _parsed(field: dataclasses.Field[Any], text: str, source: str) -> Any:
    try:
        return field.metadata["parse"](text)
    except ValueError as expected:
        raise ConfigError(f"{source} {text!r}: expected {expected}") from None


def shown(value: Any) -> str:
    """A value as its flag would be given."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
