"""TLS details of a connection in RabbitMQ's terms: cipher, client certificate, user name from a certificate.

A listener asks for a certificate with `verify_peer`. Only certificates signed by `amqp.tls.ca` (`http.tls.ca`) are
shown, or accepted for a login.

Names in a certificate are not trusted to be short, printable or single. They are compared as a whole, NUL bytes
included; TLS itself refuses a certificate that cannot be parsed.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.internal_backend import NAME_BYTES_MAX, AuthenticationRefused

if TYPE_CHECKING:
    from amqpd.config.schema import AuthSettings

KEYS: Final = ("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")
CIPHER_KEYS: Final = ("ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash")

# rabbit: other attribute types are shown as numbers
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
_ESCAPED: Final = {ord(character): f"\\{character}" for character in ',+"\\<>;'}
# rabbit: escapes control characters and every byte of UTF-8 sequences
_ESCAPED_BYTES: Final = {code: f"\\{code:02X}" for code in (*range(32), *range(126, 256))}
_SAN_TYPES: Final = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI"}
_SUITE: Final = re.compile(r"(?:((?:EC)?DHE?-(?:ECDSA|RSA|DSS))-)?(.+)")
_AEAD: Final = ("gcm", "ccm", "ccm_8", "poly1305")


def tls_info(certificate: Mapping[str, Any]) -> dict[str, object]:
    """Return the certificate's values by KEYS; empty without a certificate.

    Args:
        certificate: in the form of `ssl.SSLSocket.getpeercert`.
    """
    if not certificate:
        return {}
    begin, end = (_time(certificate[name]) for name in ("notBefore", "notAfter"))
    values = (
        _distinguished_name(certificate["subject"]),
        _distinguished_name(certificate["issuer"]),
        f"{begin} - {end}",
    )
    return dict(zip(KEYS, values, strict=True))


def external_user_name(certificate: Mapping[str, Any], auth: AuthSettings) -> str:
    """Return the user name in a client certificate, selected by `auth.ssl_cert_login_from`.

    rabbit: the texts; several common names are joined with commas.

    Raises:
        AuthenticationRefused: there is no certificate or no usable name.
    """
    if not certificate:
        raise AuthenticationRefused("connection peer presented no TLS (x.509) certificate")
    if auth.ssl_cert_login_from == "distinguished_name":
        name = _distinguished_name(certificate["subject"])
    elif auth.ssl_cert_login_from == "common_name":
        parts = [each for part in certificate["subject"] for each in part]
        name = ",".join(value for kind, value in parts if kind == "commonName")
    else:
        kind = _SAN_TYPES[auth.ssl_cert_login_san_type]
        names = [value for each, value in certificate.get("subjectAltName", ()) if each == kind]
        name = names[auth.ssl_cert_login_san_index] if auth.ssl_cert_login_san_index < len(names) else ""
        if kind == "IP Address" and name:
            try:
                name = str(ipaddress.ip_address(name.strip()))
            except ValueError:  # neither 4 nor 16 bytes: OpenSSL shows `<invalid>`
                raise AuthenticationRefused(f"the certificate has an invalid IP address: {name!r}") from None
    if not name:
        raise AuthenticationRefused("no name found")
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise AuthenticationRefused(f"the name in the certificate is too long for a user, {name[:NAME_BYTES_MAX]!r}...")
    return name


def ciphers(version: str, suite: str) -> dict[str, object]:
    """Return cipher details by CIPHER_KEYS; empty without TLS. Only for suites with certificates, which all
    listeners use.

    Args:
        version: by OpenSSL's name, for example `TLSv1.2`.
        suite: by OpenSSL's name, for example `ECDHE-RSA-AES128-SHA`.
    """
    if not version:
        return {}
    if suite.startswith("TLS_"):
        # TLS 1.3: the suite does not name the key exchange, and its hash is not the MAC of records.
        values = (version.lower(), "any", suite[4:].rpartition("_")[0].lower(), "aead")
        return dict(zip(CIPHER_KEYS, values, strict=True))
    match = _SUITE.fullmatch(suite)
    assert match is not None  # the second group takes anything
    exchange = (match[1] or "RSA").lower().replace("-", "_")
    words = re.sub(r"^(aes|aria|camellia)(\d)", r"\1_\2", match[2].lower().replace("-", "_"))
    words = words.replace("ccm8", "ccm_8")
    rest, _, digest = words.rpartition("_")
    if any(f"_{kind}" in words for kind in _AEAD):
        values = (version.lower(), exchange, rest if digest.startswith("sha") else words, "aead")
    else:
        values = (version.lower(), exchange, f"{rest}_cbc", digest)
    return dict(zip(CIPHER_KEYS, values, strict=True))


def _distinguished_name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """Return a distinguished name in the form of RFC 4514, last part first."""
    return ",".join(
        "+".join(f"{_attribute_type(kind)}={_escaped(value)}" for kind, value in part) for part in reversed(parts)
    )


def _attribute_type(name: str) -> str:
    """Return the short name of an attribute type, or as RabbitMQ its number, for example `2.5.4.9`."""
    if name in _SHORT_NAMES or not name[:1].isalpha():
        return _SHORT_NAMES.get(name, name)
    return ssl._ASN1Object.fromname(name).oid


def _escaped(value: str) -> str:
    data = value.encode("utf-8", "surrogateescape").decode("latin-1")
    text = data.translate(_ESCAPED | _ESCAPED_BYTES)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if text.endswith(" ") and text != "\\ " else text


def _time(text: str) -> str:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
