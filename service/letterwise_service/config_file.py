"""The settings file: TOML, one key per setting, each value held to the same rules as its flag.

Owns the reading of the file and how a native TOML value is told to a setting's parser. Keys have the settings' names
(`queue_jobs`). Knows no setting, no flag and no variable. Paths in it are relative to where the program was started,
as those of flags are.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any


class ConfigError(Exception):
    """A setting that cannot be used; the message names the flag, variable or key and says what was expected."""


@dataclass(frozen=True)
class ConfigFile:
    """What one file gives."""

    path: str
    values: dict[str, Any]

    def place(self, name: str) -> str:
        """Where a setting of this file stands, for a message."""
        return f"{self.path}: {name}"

    def unknown(self, known: Collection[str]) -> list[ConfigError]:
        """One error for each key that is no setting, with the setting that was most likely meant."""
        return [
            ConfigError(f"{self.path}: unknown setting {key!r}; the nearest known one is {_nearest(key, known)}")
            for key in self.values
            if key not in known
        ]


def load(path: str) -> ConfigFile:
    """Reads a file. Raises ConfigError when it cannot be read or is not TOML."""
    try:
        return ConfigFile(path, tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def text_of(value: Any) -> str | None:
    """A native value as its flag would be written; None for a kind that no setting takes (a list, a time)."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")
    if isinstance(value, dict):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return None


def same(parsed: Any, native: Any) -> bool:
    """Whether a parser took a native value for what it is: 5 for an alias is a number where text belongs."""
    return isinstance(native, str | dict) or bool(parsed == native)


def _nearest(key: str, known: Collection[str]) -> str:
    return difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.0)[0]
