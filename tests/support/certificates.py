"""A certificate authority for one test: daemon and client certificates with any subject alternative names."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from offpath.host_helper import Tls


class Authority:
    """Files go to ``folder``; keys are of this run only."""

    def __init__(
        self, folder: Path, name: str = "authority", life: datetime.timedelta = datetime.timedelta(hours=1)
    ) -> None:
        self._folder = folder
        self._life = life
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca_file = str(folder / f"{name}.pem")
        may_sign = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates, lists
        certificate = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        certificate = certificate.add_extension(may_sign, True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False
        )
        signed = certificate.sign(self._key, hashes.SHA256())
        Path(self.ca_file).write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + self._life)
        )

    def issue(self, name: str, *uris: str, is_server: bool = False, email: str = "") -> tuple[str, str]:
        """(certificate file, key file)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        if email:
            names.append(x509.RFC822Name(email))
        if is_server:
            names += [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, False)  # Python 3.13's default context insists on it
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        signed = builder.sign(self._key, hashes.SHA256())
        files = str(self._folder / f"{name}.crt"), str(self._folder / f"{name}.key")
        Path(files[0]).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(files[1]).write_bytes(secret)
        return files

    def client(self, name: str, *uris: str) -> Tls:
        return Tls(self.ca_file, *self.issue(name, *uris))
