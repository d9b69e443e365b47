"""The certificates of TLS listeners, as `amqpctl certificates` and `check_certificate_expiration` show them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from amqpd.management.call import Call, NotThere, Reply, Role, reply
from amqpd.management.router import Route


def decoded(path: Path) -> dict[str, Any]:
    """The first certificate of a PEM file. Raises: OSError; ssl.SSLError is one."""
    # The standard library decodes the certificate of a peer, or of a file; only the latter without a connection.
    found: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    return found


def _names(parts: Any) -> str:
    return ",".join(f"{name}={value}" for part in parts for name, value in part)


def item(path: Path) -> dict[str, Any]:
    """Raises: OSError."""
    found = decoded(path)
    return {
        "path": str(path),
        "subject": _names(found.get("subject", ())),
        "issuer": _names(found.get("issuer", ())),
        "serial_number": found.get("serialNumber", ""),
        "not_before": found["notBefore"],
        "not_after": found["notAfter"],
        "not_after_s": ssl.cert_time_to_seconds(found["notAfter"]),
        "subject_alternative_names": [f"{kind}:{name}" for kind, name in found.get("subjectAltName", ())],
    }


def listeners_certificates(call: Call) -> list[dict[str, Any]]:
    """As the files are now, which is what a reload would take. Raises: NotThere for one that cannot be read."""
    tls = call.broker.settings.amqp.tls
    if tls.port is None or tls.certificate is None:
        return []
    try:
        return [item(tls.certificate)]
    except OSError as error:
        raise NotThere(f"{tls.certificate}: {error}") from None


async def certificates(call: Call) -> Reply:
    return reply(listeners_certificates(call))


ROUTES: Final = (Route("GET", "api/amqpd/certificates", Role.MONITORING, certificates),)
