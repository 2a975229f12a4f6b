"""The effective settings, and all that is wrong with them: what `letterwise-service config check` tells.

Owns the judgement of a whole configuration without serving it: values, keys, and the files that settings name. The
lines are themselves a settings file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import config
from .calibration_file import Calibrated
from .config import EngineConfig, Found, ServerConfig
from .config_file import ConfigError

# Variables of this prefix that are read elsewhere.
_OTHERS = {config.CONFIG_VARIABLE, "LETTERWISE_CACHE", "LETTERWISE_TOKEN"}


def found(flags: argparse.Namespace, environment: Mapping[str, str]) -> tuple[dict[str, Found], list[ConfigError]]:
    """Every setting with its source, and every fault: of a value, a key, or a file that a setting names."""
    engine, engine_faults = config.find(EngineConfig, flags, environment)
    server, server_faults = config.find(ServerConfig, flags, environment)
    # Both saw the same keys of the same file.
    faults = list({str(fault): fault for fault in (*engine_faults, *server_faults)}.values())
    if not faults:
        given = EngineConfig(**_values(engine)), ServerConfig(**_values(server))
        faults = [fault for load in _loads(*given, environment) if (fault := _fault(load))]
    return server | engine, faults


def unread(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none; most are typing errors, some an orchestrator's."""
    known = {config.variable_of(name) for name in config.names()} | _OTHERS
    return sorted(name for name in environment if name.startswith(config.ENVIRONMENT_PREFIX) and name not in known)


def lines(found: Mapping[str, Found]) -> Iterator[str]:
    """A line per setting, as the file would have it; a setting that is left to the service is a comment."""
    width = max(len(_entry(name, one.value)) for name, one in found.items())
    for name, one in found.items():
        yield f"{_entry(name, one.value):<{width}}  # {one.source}"


def _values(found: Mapping[str, Found]) -> dict[str, Any]:
    return {name: one.value for name, one in found.items()}


def _loads(engine: EngineConfig, server: ServerConfig, environment: Mapping[str, str]) -> list[Callable[[], object]]:
    """What a start would read, each to be tried alone."""
    from .server import credentials, tracing, transport

    return [
        lambda: credentials.Credentials(server.token_file),
        lambda: transport.certificates(server),
        lambda: Calibrated(engine.calibration_file),
        lambda: tracing.check(server.tracing, environment),
    ]


def _fault(load: Callable[[], object]) -> ConfigError | None:
    try:
        load()
    except ConfigError as error:
        return error
    return None


def _entry(name: str, value: Any) -> str:
    return f"# {name}" if value in (None, ()) else f"{name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{{ {', '.join(f'{_toml(name)} = {_toml(part)}' for name, part in value)} }}"
    # JSON's text, numbers and truth values are TOML's too.
    return json.dumps(value, ensure_ascii=False)
