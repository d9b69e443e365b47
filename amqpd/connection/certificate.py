"""The certificate that a TLS client has shown, in the words of RabbitMQ's lists and events.

Only one that `amqp.tls.ca` has signed counts, and the broker asks for one with `amqp.tls.verify_peer`: what nobody has
looked at is not told.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

KEYS: Final = ("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity")

# rabbit: the others stand as OpenSSL calls them.
_SHORT: Final = {
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
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
_ESCAPED: Final = str.maketrans({character: f"\\{character}" for character in ',+"\\<>;'})


def told(certificate: Mapping[str, Any]) -> dict[str, object]:
    """By KEYS; nothing where there is none. certificate: as `ssl.SSLSocket.getpeercert` has it."""
    if not certificate:
        return {}
    begin, end = (_time(certificate[name]) for name in ("notBefore", "notAfter"))
    values = (_name(certificate["subject"]), _name(certificate["issuer"]), f"{begin} - {end}")
    return dict(zip(KEYS, values, strict=True))


def _name(parts: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """As RFC 4514 writes it: the last part first."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part) for part in reversed(parts)
    )


def _escaped(value: str) -> str:
    value = value.translate(_ESCAPED)
    if value.startswith((" ", "#")):
        value = f"\\{value}"
    return f"{value[:-1]}\\ " if value.endswith(" ") else value


def _time(text: str) -> str:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
