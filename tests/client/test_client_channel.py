"""Addresses and deadlines are checked before any channel is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from letterwise import AsyncClient, Client, InvalidRequest, Tls, errors
from letterwise.channel import address


@pytest.mark.parametrize(
    ("target", "whole"),
    [
        ("localhost", "localhost:50051"),
        ("10.0.0.1:9", "10.0.0.1:9"),
        ("[::1]", "[::1]:50051"),
        ("[::1]:9", "[::1]:9"),
        ("dns:50051", "dns:50051"),
        ("dns:///host:9", "dns:///host:9"),
        ("unix:/run/letterwise", "unix:/run/letterwise"),
    ],
)
def test_address_has_a_port(target: str, whole: str) -> None:
    """The default one when none is given; gRPC's own names are left as they are."""
    assert address(target) == whole


@pytest.mark.parametrize(
    "target",
    [
        "",
        " ",
        "http://localhost:50051",
        "localhost:",
        "localhost:x",
        "localhost:0",
        "host:65536",
        ":1",
        "a b:1",
        3,
        None,
    ],
)
@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_wrong_address_is_refused(client_class: Any, target: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Before any channel is opened, so gRPC has nothing to print."""
    with pytest.raises(errors.InvalidRequest, match="expected host:port") as refused:
        client_class(target)
    assert [violation.field for violation in refused.value.violations] == ["target"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "1", None, True])
@pytest.mark.parametrize("client_class", [Client, AsyncClient])
def test_wrong_deadline_is_refused(client_class: Any, seconds: Any) -> None:
    """A deadline is a number of seconds above 0."""
    with pytest.raises(errors.InvalidRequest, match=r"^timeout_seconds: expected a number"):
        client_class("localhost", timeout_seconds=seconds)


def test_very_long_deadline_is_a_deadline(server: Any) -> None:
    """One that gRPC would take for passed."""
    with Client(server.target, timeout_seconds=1e300) as client:
        assert client.info()


def test_authorities_that_are_none_are_refused_before_any_connection(tmp_path: Path) -> None:
    """gRPC would tell of them on standard error, and the caller of a refused connection."""
    file = tmp_path / "authority.pem"
    for content, told in (("no certificate", "a PEM file"), ("-----BEGIN CERTIFICATE-----\nx\n", "certificates")):
        file.write_text(content)
        with pytest.raises(InvalidRequest, match=rf"tls\.ca: expected {told}: "):
            Client(tls=Tls(ca=file))
