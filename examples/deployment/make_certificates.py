"""Certificates of the SuperLink, and a key pair for a SuperNode.

    python make_certificates.py server ADDRESS…     on the server: ca.crt, server.crt, server.key
    python make_certificates.py node NAME           on each client: NAME.key stays there, NAME.pub goes to the server

The server's certificate is valid for localhost, 127.0.0.1 and the addresses that are given. The authority's own key is
thrown away, so nobody can sign a second certificate with it. Keys are P-384. Files are written to `certificates`.
"""

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

DAYS = 365


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("certificates"))
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("server").add_argument("addresses", nargs="*", help="names and IP addresses of the server")
    kinds.add_parser("node").add_argument("name")
    given = parser.parse_args()
    given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if given.kind == "server":
        make_server(given.folder, given.addresses)
    else:
        make_node(given.folder, given.name)


def make_server(folder: Path, addresses: list[str]) -> None:
    """An authority, and a certificate that it signs."""
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = name_of("Collegium federation")
    of_authority = (
        certificate(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    names = [alternative(address) for address in dict.fromkeys(["localhost", "127.0.0.1", *addresses])]
    of_server = (
        certificate(name_of("SuperLink"), issuer, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    write(folder / "ca.crt", of_authority.public_bytes(Encoding.PEM), 0o644)
    write(folder / "server.crt", of_server.public_bytes(Encoding.PEM), 0o644)
    write(folder / "server.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def make_node(folder: Path, name: str) -> None:
    """A key pair in OpenSSH's format, which SuperNodes read."""
    key = ec.generate_private_key(ec.SECP384R1())
    write(folder / f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    write(folder / f"{name}.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), 0o644)


def certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def usage(**allowed: bool) -> x509.KeyUsage:
    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in every})


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def write(path: Path, content: bytes, mode: int) -> None:
    """A key is never overwritten: whoever registered it would be locked out."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    print(path)


if __name__ == "__main__":
    main()
