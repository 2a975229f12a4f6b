"""The committed stubs are what the proto files generate, byte for byte."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "client" / "letterwise" / "v1"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    """The names of `proto/generate.py`, which is a script."""
    return runpy.run_path(str(ROOT / "proto" / "generate.py"))


@pytest.mark.timeout(300)
def test_stubs_regenerate_to_what_is_committed(generator: dict[str, Any], tmp_path: Path) -> None:
    """Every generated file equals its committed one, and no committed stub is left over."""
    try:
        python = generator["install_tools"](generator["cache_folder"]())
    except generator["ToolsUnavailable"] as problem:
        pytest.skip(f"the generators cannot be installed here, so nothing can be compared: {problem}")
    written = {path.name: path.read_bytes() for path in generator["generate"](tmp_path, python)}
    committed = {path.name: path.read_bytes() for path in COMMITTED.glob("*_pb2*") if path.suffix in (".py", ".pyi")}
    assert sorted(written) == sorted(committed)
    assert [name for name in written if written[name] != committed[name]] == []
