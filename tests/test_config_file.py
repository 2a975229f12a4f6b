"""The settings file: TOML under environment under flags, and what is said of a wrong one."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import NoReturn

import pytest

from letterwise_service import cli, config
from letterwise_service.config import EngineConfig, ServerConfig
from letterwise_service.config_file import ConfigError
from letterwise_service.method.request import DecisionRequest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "letterwise.toml"


def read_server(file: Path, *flags: str, **environment: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    config.add_flags(parser, ServerConfig)
    return config.read(ServerConfig, parser.parse_args(["--config", str(file), *flags]), environment)


def read_engine(file: Path) -> EngineConfig:
    return config.read(EngineConfig, argparse.Namespace(), {"LETTERWISE_CONFIG": str(file)})


def check(*arguments: str) -> int:
    return cli.main(["config", "check", *arguments])


def test_file_stands_under_environment_and_flags(file: Path) -> None:
    """Flag beats variable beats file beats default, setting by setting."""
    file.write_text("port = 1\nmetrics_port = 2\ndrain_seconds = 3\n")
    settings = read_server(file, "--port", "7", LETTERWISE_PORT="8", LETTERWISE_METRICS_PORT="9")
    assert (settings.port, settings.metrics_port, settings.drain_seconds) == (7, 9, 3.0)
    assert settings.keepalive_seconds == ServerConfig().keepalive_seconds


def test_file_takes_native_values_and_texts_alike(file: Path, tmp_path: Path) -> None:
    """A number, a truth value or a table, or the text that the flag would have; both give the same setting."""
    native = f'queue_jobs = 5\nprefix_store = false\nprefix_store_bytes = 1024\nadapters = {{ tone = "{tmp_path}" }}\n'
    text = f'queue_jobs = "5"\nprefix_store = "off"\nprefix_store_bytes = "1KiB"\nadapters = "tone={tmp_path}"\n'
    file.write_text(native + "job_deadline_seconds = 0.25\n")
    settings = read_engine(file)
    file.write_text(text + 'job_deadline_seconds = "0.25"\n')
    assert settings == read_engine(file)
    assert settings.adapters == (("tone", str(tmp_path)),)
    assert (settings.prefix_store, settings.job_deadline_seconds) == (False, 0.25)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("port = 70000", "port '70000': expected a whole number from 0 to 65535"),
        ("port = 1.0", "port '1.0': expected a whole number from 0 to 65535"),
        ("port = true", "port 'on': expected a whole number from 0 to 65535"),
        ("port = [1]", "port: expected one value, not [1]"),
        ("drain_seconds = nan", "drain_seconds 'NaN': expected a number of seconds, such as 30 or 0.5"),
        ("max_message_bytes = 2000.5", "max_message_bytes 2000.5: expected text, in quotes, or a whole number"),
        ("host = 5", "host 5: expected text, in quotes, or a whole number"),
        ('log_level = "loud"', "log_level 'loud': expected one of debug, info, warning, error"),
    ],
)
def test_wrong_value_is_told_with_file_key_and_expectation(file: Path, line: str, told: str) -> None:
    """In the words that a flag gets."""
    file.write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_server(file)
    assert str(caught.value) == f"{file}: {told}"


@pytest.mark.parametrize(
    ("line", "nearest"),
    [("queu_jobs = 1", "queue_jobs"), ("max-questions = 1", "max_questions"), ("tls_cert = 1", "tls_key")],
)
def test_unknown_key_is_refused_with_the_nearest_setting(file: Path, line: str, nearest: str) -> None:
    """A typing error is not passed over: neither of one's own kind nor of the other's settings."""
    file.write_text(line)
    key = line.partition(" ")[0]
    with pytest.raises(ConfigError) as caught:
        read_engine(file)
    assert str(caught.value).startswith(f"{file}: unknown setting '{key}'; the nearest known one is ")
    assert nearest.partition("_")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"port 1", "is not TOML"), (b"\xff = 1", "expected UTF-8 text"), (None, "No such file or directory")],
)
def test_file_that_cannot_be_read_is_one_sentence(file: Path, content: bytes | None, told: str) -> None:
    """Missing, not text, not TOML."""
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        read_server(file)


def test_check_prints_a_file_of_the_effective_settings(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every setting, with where it came from; what is printed gives the same settings again."""
    file.write_text('queue_jobs = 5\nhost = "::1"\n')
    monkeypatch.setenv("LETTERWISE_LOG_FORMAT", "json")
    monkeypatch.setenv("LETTERWISE_QUEUE_JOB", "9")
    assert check(str(file), "--port", "7") == 0
    printed = capsys.readouterr()
    lines = {line.removeprefix("# ").split()[0]: line for line in printed.out.splitlines()}
    assert sorted(lines) == sorted(config.names())
    for name, source in {
        "queue_jobs": f"{file}: queue_jobs",
        "port": "--port",
        "log_format": "LETTERWISE_LOG_FORMAT",
        "model": "default",
    }.items():
        assert lines[name].endswith(f"  # {source}")
    assert printed.err == "note: LETTERWISE_QUEUE_JOB is in the environment and is no setting\n"
    values = tomllib.loads(printed.out)
    assert (values["queue_jobs"], values["port"], values["log_format"], values["host"]) == (5, 7, "json", "::1")
    file.write_text(printed.out)
    assert check(str(file)) == 0


def test_check_tells_every_fault_in_a_sentence_and_exits_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that is wrong at once, each once, and nothing on standard output."""
    file.write_text('port = "x"\nqueue_jobs = 0\nmodell = "demo"\n')
    assert check(str(file)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sorted(printed.err.splitlines()) == [
        f"letterwise-service: {file}: port 'x': expected a whole number from 0 to 65535",
        f"letterwise-service: {file}: queue_jobs '0': expected a whole number, 1 or more",
        f"letterwise-service: {file}: unknown setting 'modell'; the nearest known one is model",
    ]


def test_check_reads_the_files_that_settings_name(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens, certificates and calibration that a start would refuse are faults here, and no secret is shown."""
    secrets, constants = tmp_path / "tokens", tmp_path / "calibration.toml"
    secrets.write_text("good-one\nSECRET with spaces\n")
    constants.write_text("temperature = 0\n")
    file.write_text(
        f'token_file = "{secrets}"\ncalibration_file = "{constants}"\ntls_certificate = "{secrets}"\n'
        f'tls_key = "{secrets}"\n'
    )
    assert check(str(file)) == 2
    told = capsys.readouterr().err
    assert f"token_file: line 2 of {secrets} is no token" in told
    assert f"calibration_file: {constants}: temperature: expected a number from 0.01 to 100" in told
    assert f"tls_certificate {secrets} and tls_key {secrets} are no pair" in told
    assert len(told.splitlines()) == 3
    assert "SECRET" not in told


def test_offline_decision_is_calibrated_as_a_served_one(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's setting reaches the one request that the command answers."""
    (tmp_path / "constants").write_text("noul_bias = 0.75")
    (tmp_path / "body").write_text('{"state": "s", "questions": {"a": {"type": "noul", "instructions": "?"}}}')
    file.write_text(f'calibration_file = "{tmp_path / "constants"}"\n')
    asked: list[DecisionRequest] = []

    def note(settings: EngineConfig, request: DecisionRequest) -> NoReturn:
        asked.append(request)
        raise cli.CommandFailed("far enough")

    monkeypatch.setattr(cli, "_decided", note)
    assert cli.main(["decide", str(tmp_path / "body"), "--config", str(file)]) == 1
    assert capsys.readouterr().err.endswith("far enough\n")
    assert [request.calibration.noul_bias for request in asked] == [0.75]
