"""TLS for both front ends: the server's certificate, its key, and the authority that callers' certificates need.

Owns the files and their rotation: each handshake gets the newest pair that was found whole. gRPC asks for it on its
own threads, HTTP on the event loop, so everything here stands under one lock. Knows nothing of what is served.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from .. import metrics
from ..config import ServerConfig
from ..config_file import ConfigError
from .watching import Watch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Files:
    certificate: str
    key: str
    client_ca: str | None

    def paths(self) -> list[str]:
        return [path for path in (self.certificate, self.key, self.client_ca) if path]


class Certificates:
    """The pair in use. A pair that cannot be used leaves the one before it in use, and an error in the log."""

    def __init__(self, files: _Files, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError for files that cannot be read or do not belong together."""
        self._files = files
        self._lock = threading.Lock()
        self._watch = Watch(files.paths(), clock)
        self._context, self._configuration = _read(files)

    @property
    def mutual(self) -> bool:
        """Whether callers must show a certificate."""
        return self._files.client_ca is not None

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For gRPC's port; asks for the pair at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, self._newest_configuration, require_client_authentication=self.mutual
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For an HTTP server's port; a handshake is given the newest pair's own context as it begins."""
        door, _ = _read(self._files)
        # A session that is taken up again would not be asked for its certificate anew.
        door.options |= ssl.OP_NO_TICKET
        door.num_tickets = 0
        door.sni_callback = self._choose
        return door

    def reload(self) -> None:
        """Reads the files again, whether they look changed or not."""
        with self._lock:
            self._watch.moved()
            self._reread()

    def _newest_configuration(self) -> Any:
        """What gRPC is to use from now on. It compares nothing itself and takes an equal one for a new one."""
        self._look()
        return self._configuration

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, door: ssl.SSLContext) -> None:
        self._look()
        connection.context = self._context

    def _look(self) -> None:
        with self._lock:
            if self._watch.changed():
                self._reread()

    def _reread(self) -> None:
        try:
            self._context, self._configuration = _read(self._files)
        except ConfigError as error:
            metrics.reloaded("certificates", kept=True)
            _log.error("the old certificate stays in use", extra={"reason": str(error)})
        else:
            metrics.reloaded("certificates", kept=False)
            _log.info("certificate read", extra={"certificate": self._files.certificate})


def certificates(config: ServerConfig) -> Certificates | None:
    """What the settings ask for; None for plain text. Raises ConfigError."""
    if config.tls_certificate and config.tls_key:
        return Certificates(_Files(config.tls_certificate, config.tls_key, config.tls_client_ca))
    if config.tls_certificate or config.tls_key or config.tls_client_ca:
        raise ConfigError("TLS needs both tls_certificate and tls_key")
    return None


def _read(files: _Files) -> tuple[ssl.SSLContext, Any]:
    """The pair in both forms, once OpenSSL has found that certificate and key belong together."""
    pems = [_pem(path) for path in files.paths()]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, OSError, ValueError):
        raise ConfigError(
            f"tls_certificate {files.certificate} and tls_key {files.key} are no pair of PEM files without a password"
        ) from None
    if files.client_ca:
        _trust(context, files.client_ca)
    if pems != [_pem(path) for path in files.paths()]:
        raise ConfigError("tls_certificate: the files are being written")
    certificate, key, *authority = pems
    return context, grpc.ssl_server_certificate_configuration([(key, certificate)], *authority)


def _trust(context: ssl.SSLContext, client_ca: str) -> None:
    try:
        context.load_verify_locations(client_ca)
    except (ssl.SSLError, OSError):
        raise ConfigError(f"tls_client_ca: {client_ca} holds no PEM certificate") from None
    context.verify_mode = ssl.CERT_REQUIRED
    # Version 1.2 has sessions that Python cannot turn off; see `ssl_context`.
    context.minimum_version = ssl.TLSVersion.TLSv1_3


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: cannot read {path}: {error.strerror}") from None
