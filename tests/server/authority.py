"""Certificates for the tests of TLS: an authority, and what it signs, each for as long as a test wants."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = 86_400.0


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass
class Authority:
    """One authority, and the folder of its files: `NAME.pem`, `NAME.key`, and its own `NAME.pem`."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._write(self.name, self._certificate(_named(self.name), self.key, _DAY, authority=True), self.key)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def sign(self, name: str, *, seconds: float = _DAY) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and localhost, valid from an hour ago on, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write(name, self._certificate(_named(name), key, seconds), key)

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, seconds: float, *, authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(seconds=seconds))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths
