"""The frozen settings, and the only reader of flags and environment.

A flag wins over LETTERWISE_*, which wins over a default. Each setting is one field with its default, its help line
and its parser; the flag (`--queue-jobs`) and the variable (`LETTERWISE_QUEUE_JOBS`) take their names from the field.
Knows nothing of what the settings do.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ENVIRONMENT_PREFIX = "LETTERWISE_"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_MOST = 2**31 - 1  # what every counter of the contract can hold
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class ConfigError(Exception):
    """A setting that cannot be used; the message names the flag or variable and says what was expected."""


def _setting(default: T, help: str, parse: Callable[[str], T]) -> T:
    field: T = dataclasses.field(default=default, metadata={"help": help, "parse": parse})
    return field


def _whole(low: int, high: int = _MOST) -> Callable[[str], int]:
    def parse(text: str) -> int:
        expected = f"a whole number from {low} to {high}" if high < _MOST else f"a whole number, {low} or more"
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not low <= int(text) <= high:
            raise ValueError(expected)
        return int(text)

    return parse


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise ValueError("a number of seconds, such as 30 or 0.5")
    if float(text) > _MOST // 1000:  # gRPC counts in milliseconds
        raise ValueError(f"a number of seconds up to {_MOST // 1000}")
    return float(text)


def _positive_seconds(text: str) -> float:
    if (seconds := _seconds(text)) <= 0:
        raise ValueError("a number of seconds above 0")
    return seconds


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or int(size := float(match[1]) * _unit(match[2], match[3])) < 1:
        raise ValueError("a size above 0, such as 512MB, 2GiB or a number of bytes")
    if size >= 2**63:
        raise ValueError("a size that a machine can have")
    return int(size)


def _message_size(text: str) -> int:
    if not 1024 <= (size := _size(text)) <= _MOST:
        raise ValueError("a size from 1KiB to 2147483647 bytes")
    return size


def _unit(letter: str, binary: str) -> int:
    return int((1024 if binary else 1000) ** " kmgt".index(letter.lower() or " "))


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return parse


def _on_off(text: str) -> bool:
    return _one_of("on", "off")(text) == "on"


def _text(text: str) -> str:
    if not text.strip() or not text.isprintable():  # bytes that are no UTF-8 come as lone surrogates
        raise ValueError("some printable text")
    return text


def _model(text: str) -> str:
    """`demo`, a path that exists, or a hub id (`owner/name`); a path to nowhere is refused here, before any work."""
    path = Path(text).expanduser()
    if text == "demo":
        return text
    if path.is_dir() or (path.is_file() and path.suffix.lower() == ".gguf"):
        return str(path)
    if path.is_file():
        raise ValueError("demo, a model folder, a .gguf file or a hub id; this is a file of another kind")
    if not _HUB_ID.fullmatch(text) or text.startswith(".") or path.suffix.lower() == ".gguf":
        raise ValueError("demo, a model folder, a .gguf file or a hub id (owner/name); there is no such path")
    return text


def _optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return parse


def _adapters(text: str) -> tuple[tuple[str, str], ...]:
    """`name=folder,…` → the pairs. Each folder must be there, each name once."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, folder = part.strip().partition("=")
        path = Path(folder).expanduser()
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) or name in found or not folder or not path.is_dir():
            raise ValueError("name=folder pairs with commas between, each name once and each folder there")
        found[name] = str(path)
    return tuple(found.items())


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is told. `model`: "demo", a folder, a .gguf file or a hub id."""

    model: str = _setting("demo", "demo (the embedded model), a model folder, a .gguf file or a hub id", _model)
    alias: str | None = _setting(None, "the name to serve under (the model's own)", _optional(_text))
    prompt_style: str = _setting(
        "auto",
        "auto, bracket (models trained on it, OpenJev) or plain (every other model)",
        _one_of("auto", "bracket", "plain"),
    )
    max_samples: int = _setting(32, "the most option orders that one request may average", _whole(1, 1024))
    max_questions: int = _setting(256, "the most questions in one request", _whole(1, 65_536))
    max_options: int = _setting(2048, "the most options of one question", _whole(1, 65_536))
    context_tokens: int | None = _setting(None, "the longest prompt (the model's own context)", _optional(_whole(128)))
    prefix_store: bool = _setting(True, "on or off: keep the states' prefixes for later decisions", _on_off)
    prefix_store_bytes: int | None = _setting(
        None, "memory for kept prefixes, such as 2GiB (a share of what the model leaves)", _optional(_size)
    )
    prefix_store_records: int = _setting(
        8,
        "the most states kept of a model with recurrent or windowed layers; others are bounded by bytes alone",
        _whole(1, 1_000_000),
    )
    check_store_when_idle: bool = _setting(
        False, "on or off: walk the store whenever nothing runs, and stop if it is not whole; for tests", _on_off
    )
    decision_tokens: int = _setting(
        1_000_000, "the most prompt tokens of one decision, each of its prompts counted in full", _whole(1)
    )
    queue_jobs: int = _setting(
        256, "the most decisions waiting or running, batch ones half of it; more are refused at once", _whole(1)
    )
    queue_tokens: int = _setting(
        4_000_000, "the most prompt tokens waiting or running, batch ones half of it", _whole(1)
    )
    job_deadline_seconds: float = _setting(
        120.0, "how long a decision may run, counted from when it leaves the queue", _positive_seconds
    )
    adapters: tuple[tuple[str, str], ...] = _setting(
        (), "LoRA adapters that requests may name: name=folder,… in mlx-lm's format", _adapters
    )
    chat_rows: int = _setting(
        8, "the most conversations that generate at once; 0 for a server without chat", _whole(0, 256)
    )
    chat_queue: int = _setting(64, "the most conversations waiting for a place; more are refused at once", _whole(1))
    chat_max_tokens: int = _setting(2048, "the most tokens that one chat may generate", _whole(1))
    chat_cache_bytes: int | None = _setting(
        None,
        "memory for what chat keeps of earlier prompts, such as 1GiB (a share of what the model leaves)",
        _optional(_size),
    )
    blas_threads: int = _setting(1, "threads of the processor's BLAS", _whole(1, 1024))


@dataclass(frozen=True)
class ServerConfig:
    """Everything the server is told."""

    host: str = _setting("127.0.0.1", "the address to listen on; 0.0.0.0 for every interface", _text)
    port: int = _setting(50051, "the port to listen on; 0 picks a free one", _whole(0, 65_535))
    drain_seconds: float = _setting(30.0, "how long running decisions may go on once a stop is asked for", _seconds)
    max_message_bytes: int = _setting(16 * 2**20, "the largest request, such as 16MiB", _message_size)
    keepalive_seconds: float = _setting(
        60.0, "how long a connection may be silent before it is probed", _positive_seconds
    )
    connection_age_seconds: float = _setting(
        1800.0,
        "a connection's age when it is asked to reconnect, so that callers look the address up again",
        _positive_seconds,
    )
    metrics_port: int = _setting(
        0, "the port of /metrics for Prometheus, on the same address; 0 for none", _whole(0, 65_535)
    )
    log_level: str = _setting("info", "debug, info, warning or error", _one_of("debug", "info", "warning", "error"))


Config = TypeVar("Config", EngineConfig, ServerConfig)


def flag_of(name: str) -> str:
    """The flag of a setting: `queue_jobs` → `--queue-jobs`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting: `queue_jobs` → `LETTERWISE_QUEUE_JOBS`."""
    return ENVIRONMENT_PREFIX + name.upper()


def add_flags(parser: argparse.ArgumentParser, settings: type[EngineConfig | ServerConfig]) -> None:
    """Gives `parser` a flag per setting, each with its help, default and environment variable."""
    group = parser.add_argument_group(f"{settings.__name__.removesuffix('Config').lower()} settings")
    for field in dataclasses.fields(settings):
        default = "" if field.default in (None, ()) else f" (default {_shown(field.default)})"
        group.add_argument(
            flag_of(field.name),
            default=argparse.SUPPRESS,
            metavar=field.name.rsplit("_", 1)[-1].upper(),
            help=f"{field.metadata['help']}{default} [{variable_of(field.name)}]".replace("%", "%%"),
        )


def read(settings: type[Config], flags: argparse.Namespace, environment: Mapping[str, str], **fixed: Any) -> Config:
    """The settings that the flags and the environment give; `fixed` ones are not read. Raises ConfigError."""
    values = dict(fixed)
    for field in dataclasses.fields(settings):
        if field.name in fixed:
            continue
        if (text := getattr(flags, field.name, None)) is not None:
            values[field.name] = _parsed(field, text, flag_of(field.name))
        elif text := environment.get(variable_of(field.name)):
            values[field.name] = _parsed(field, text, variable_of(field.name))
    return settings(**values)


def _parsed(field: dataclasses.Field[Any], text: str, source: str) -> Any:
    try:
        return field.metadata["parse"](text)
    except ValueError as expected:
        raise ConfigError(f"{source} {text!r}: expected {expected}") from None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
