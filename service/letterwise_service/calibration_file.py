"""The calibration in use: the published constants, or those of a file that can be read again.

Owns which calibration a new decision begins with; one that has begun keeps its own. Any thread. Knows nothing of what
the constants do.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import tomllib
from pathlib import Path
from typing import Any

from . import metrics
from .config_file import ConfigError
from .method.calibration import PUBLISHED, Calibration
from .method.request import DecisionRequest

_log = logging.getLogger(__name__)
_NAMES = tuple(field.name for field in dataclasses.fields(Calibration))


class Calibrated:
    """What decisions are calibrated with now."""

    def __init__(self, path: str | None) -> None:
        """Raises ConfigError for a file that cannot be read or holds anything else than a calibration."""
        self._path = path
        self.current = _read(path) if path else PUBLISHED

    def applied(self, request: DecisionRequest) -> DecisionRequest:
        """The request, to be answered with the calibration that is in use now."""
        return dataclasses.replace(request, calibration=self.current)

    def reload(self) -> None:
        """Reads the file again; one that cannot be used leaves the old constants, and an error in the log."""
        if self._path is None:
            return
        try:
            self.current = _read(self._path)
        except ConfigError as error:
            metrics.reloaded("calibration", kept=True)
            _log.error("the old calibration stays in use", extra={"reason": str(error)})
        else:
            metrics.reloaded("calibration", kept=False)
            _log.info("calibration read", extra=dataclasses.asdict(self.current))


def _read(path: str) -> Calibration:
    values = _document(path)
    for name in values:
        if name not in _NAMES:
            raise ConfigError(f"calibration_file: {path}: unknown key {name!r}; expected {', '.join(_NAMES)}")
    return Calibration(**{name: _number(values[name], f"{path}: {name}", name) for name in values})


def _document(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"calibration_file: cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"calibration_file: {path} is neither TOML nor a JSON object") from None
    assert isinstance(values, dict), "what begins with a brace is an object or an error"
    return values


def _number(value: Any, place: str, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    lowest, highest = (-100.0, 100.0) if name == "noul_bias" else (0.01, 100.0)
    if not number or not lowest <= value <= highest:
        raise ConfigError(f"calibration_file: {place}: expected a number from {lowest:g} to {highest:g}")
    return float(value)
