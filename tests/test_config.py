"""The settings: flags over environment over defaults, and what is said of a wrong one."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from letterwise_service import config
from letterwise_service.config import ConfigError, EngineConfig, ServerConfig


def read_engine(*flags: str, **environment: str) -> EngineConfig:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, EngineConfig)
    return config.read(EngineConfig, parser.parse_args(flags), environment)


def read_server(*flags: str, **environment: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, ServerConfig)
    return config.read(ServerConfig, parser.parse_args(flags), environment)


def test_settings_default_to_the_dataclass() -> None:
    """With nothing given, what is read is what the constructors give."""
    assert read_engine() == EngineConfig()
    assert read_server() == ServerConfig()


def test_settings_flag_wins_over_environment() -> None:
    """A flag beats the variable, the variable beats the default, an empty variable is none."""
    assert read_server("--port", "1", LETTERWISE_PORT="2").port == 1
    assert read_server(LETTERWISE_PORT="2").port == 2
    assert read_server(LETTERWISE_PORT="").port == ServerConfig().port


@pytest.mark.parametrize("settings", [EngineConfig, ServerConfig])
def test_settings_defaults_pass_their_own_parsers(settings: type[EngineConfig | ServerConfig]) -> None:
    """Every default is a value that its flag would give too."""
    for field in dataclasses.fields(settings):
        if field.default not in (None, ()):
            shown = {True: "on", False: "off"}[field.default] if isinstance(field.default, bool) else str(field.default)
            assert field.metadata["parse"](shown) == field.default, field.name


def test_settings_are_frozen() -> None:
    """Nobody changes a setting after it was read."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().model = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512MB", 512_000_000), ("2GiB", 2**31), ("1.5k", 1500), ("16MiB", 2**24), ("3b", 3)],
)
def test_size_reads_units(text: str, size: int) -> None:
    """Decimal and binary units, in any case, and plain bytes."""
    assert read_engine("--prefix-store-bytes", text).prefix_store_bytes == size


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--port", "65536", "from 0 to 65535"),
        ("--port", "-1", "from 0 to 65535"),
        ("--port", "http", "a whole number"),
        ("--port", "9" * 30, "a whole number"),
        ("--host", " ", "some printable text"),
        ("--drain-seconds", "-1", "a number of seconds"),
        ("--drain-seconds", "nan", "a number of seconds"),
        ("--keepalive-seconds", "0", "above 0"),
        ("--max-message-bytes", "0", "a size above 0"),
        ("--max-message-bytes", "lots", "a size above 0"),
        ("--log-level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_server_setting_that_is_wrong_names_flag_and_expectation(flag: str, value: str, expected: str) -> None:
    """The message has the flag, the value and what would have been right."""
    with pytest.raises(ConfigError) as caught:
        read_server(f"{flag}={value}")
    assert str(caught.value).startswith(f"{flag} {value!r}: expected ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--alias", "bad\udcff", "some printable text"),
        ("--queue-jobs", "5000000000", "a whole number"),
        ("--prompt-style", "round", "one of auto, bracket, plain"),
        ("--prefix-store", "yes", "one of on, off"),
        ("--max-samples", "0", "from 1 to 1024"),
        ("--context-tokens", "12", "128 or more"),
        ("--queue-jobs", "0", "1 or more"),
        ("--job-deadline-seconds", "0", "above 0"),
        ("--model", "./nowhere/model.gguf", "no such path"),
        ("--model", "nowhere", "no such path"),
        ("--model", "a/b/c", "no such path"),
        ("--chat-rows", "-1", "from 0 to 256"),
        ("--adapters", "tone", "name=folder"),
        ("--adapters", "tone=./nowhere", "each folder there"),
        ("--adapters", "tone=.,tone=.", "each name once"),
        ("--adapters", "a tone=.", "name=folder"),
        ("--adapters", "=.", "name=folder"),
    ],
)
def test_engine_setting_that_is_wrong_names_flag_and_expectation(flag: str, value: str, expected: str) -> None:
    """The same for what the engine is told."""
    with pytest.raises(ConfigError, match=f"^{flag} ") as caught:
        read_engine(flag, value)
    assert expected in str(caught.value)


def test_wrong_variable_is_named_as_the_variable() -> None:
    """A value from the environment is blamed on its variable, not on a flag that nobody gave."""
    with pytest.raises(ConfigError, match=r"^LETTERWISE_PORT 'x'"):
        read_server(LETTERWISE_PORT="x")


def test_model_takes_paths_and_hub_ids(tmp_path: Path) -> None:
    """A folder, a GGUF file, a hub id and demo are models; a file of another kind is not."""
    file = tmp_path / "m.GGUF"
    file.touch()
    (tmp_path / "notes.txt").touch()
    assert read_engine("--model", str(tmp_path)).model == str(tmp_path)
    assert read_engine("--model", str(file)).model == str(file)
    assert read_engine("--model", "mlx-community/Qwen3.5-4B-4bit").model == "mlx-community/Qwen3.5-4B-4bit"
    with pytest.raises(ConfigError, match="another kind"):
        read_engine("--model", str(tmp_path / "notes.txt"))


def test_adapters_are_named_folders(tmp_path: Path) -> None:
    """In their order; what stands around a comma does not count."""
    first, second = tmp_path / "first", tmp_path / "second=2"
    first.mkdir()
    second.mkdir()
    pairs = (("tone", str(first)), ("law.v2", str(second)))
    assert read_engine("--adapters", f"tone={first} , law.v2={second}").adapters == pairs
    assert read_engine(LETTERWISE_ADAPTERS=f"tone={first}").adapters == pairs[:1]


def test_fixed_setting_is_not_read() -> None:
    """A command may fix a setting, whatever the environment says."""
    parsed = config.read(EngineConfig, argparse.Namespace(), {"LETTERWISE_PREFIX_STORE": "on"}, prefix_store=False)
    assert parsed.prefix_store is False


def test_help_tells_default_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag's help has its default and the name of its variable."""
    parser = argparse.ArgumentParser()
    config.add_flags(parser, ServerConfig)
    config.add_flags(parser, EngineConfig)
    text = " ".join(parser.format_help().split())
    for field in (*dataclasses.fields(ServerConfig), *dataclasses.fields(EngineConfig)):
        assert config.flag_of(field.name) in text
        assert f"[{config.variable_of(field.name)}]" in text
    assert "(default 50051)" in text
