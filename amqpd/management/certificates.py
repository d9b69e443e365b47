"""Certificates of TLS listeners, for `amqpctl certificates` and `check_certificate_expiration`."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from amqpd.listeners import ANY
from amqpd.management.request import ApiRequest, ApiResponse, ResourceNotFound, Role, reply
from amqpd.management.router import ApiRoute
from amqpd.tls import read_certificates

if TYPE_CHECKING:
    from amqpd.config.schema import TlsSettings
    from amqpd.listeners import Listener

PROTOCOLS: Final = {"amqps": "amqp/ssl", "prometheus": "http/prometheus"}
"""rabbit: its names of protocols, where they differ from ours."""
_T = TypeVar("_T")


def _names(parts: Any) -> str:
    return ",".join(f"{name}={value}" for part in parts for name, value in part)


def certificate_items(path: Path) -> list[dict[str, Any]]:
    """Return the certificates of a file as the API shows them. Raises: OSError."""
    return [
        {
            "path": str(path),
            "subject": _names(each.get("subject", ())),
            "issuer": _names(each.get("issuer", ())),
            "serial_number": each.get("serialNumber", ""),
            "not_before": each["notBefore"],
            "not_after": each["notAfter"],
            "not_after_s": ssl.cert_time_to_seconds(each["notAfter"]),
            "subject_alternative_names": [f"{kind}:{name}" for kind, name in each.get("subjectAltName", ())],
        }
        for each in read_certificates(path)
    ]


def tls_listeners(call: ApiRequest) -> list[tuple[Listener, TlsSettings]]:
    """Return the TLS listeners with their current settings: a reload changes only certificate and key."""
    first, last = call.broker.settings, call.server.current_settings
    sections: dict[str, tuple[TlsSettings, TlsSettings]] = {
        "amqps": (first.amqp.tls, last.amqp.tls),
        "https": (first.http.tls, last.http.tls),
        "kafkas": (first.kafka.tls, last.kafka.tls),
    }
    found: list[tuple[Listener, TlsSettings]] = []
    for listener in call.server.listeners:
        if listener.protocol in sections:
            tls, newest = sections[listener.protocol]
            found.append((listener, replace(tls, certificate=newest.certificate, key=newest.key)))
    return found


def listeners_certificates(call: ApiRequest) -> list[dict[str, Any]]:
    """Read the certificates and authorities of the TLS listeners, each file once, as a reload would.

    Raises: ResourceNotFound for an unreadable file.
    """
    paths = {path: None for _, tls in tls_listeners(call) for path in (tls.certificate, tls.ca)}
    return [item for path in paths if path is not None for item in _read_or_404(path, certificate_items)]


def expiring_listeners(call: ApiRequest, until_s: float) -> list[dict[str, Any]]:
    """Return the TLS listeners whose certificate, or authority's certificate, expires before `until_s`.

    Each has the expiry times of all certificates in its files. rabbit: the same format.

    Args:
        until_s: seconds since 1970.

    Raises: ResourceNotFound for an unreadable file.
    """
    found = []
    for one, tls in tls_listeners(call):
        assert tls.certificate is not None  # a TLS listener has one
        files = {"cacertfile": tls.ca, "certfile": tls.certificate}
        ends = {name: _read_or_404(path, _expiry_times) if path is not None else [] for name, path in files.items()}
        if any(end < until_s for times in ends.values() for end in times):
            about: dict[str, Any] = {
                "node": call.node,
                "protocol": PROTOCOLS.get(one.protocol, one.protocol),
                "interface": one.host or ANY,
                "port": one.port,
            }
            for name, path in files.items():
                about[name] = str(path or "")
                about[f"{name}_expires_on"] = [_format_time(end) for end in ends[name]]
            found.append(about)
    return found


def _expiry_times(path: Path) -> list[int]:
    """Return the expiry times of all certificates in a file. Raises: OSError."""
    return sorted({ssl.cert_time_to_seconds(each["notAfter"]) for each in read_certificates(path)})


def _format_time(end_s: int) -> str:
    end = datetime.fromtimestamp(end_s, UTC)
    return f"{end:%Y-%m-%d} {end.hour}:{end:%M:%S}"


def _read_or_404(path: Path, read: Callable[[Path], _T]) -> _T:
    try:
        return read(path)
    except OSError as error:
        raise ResourceNotFound(f"{path}: {error}") from None


async def certificates(call: ApiRequest) -> ApiResponse:
    """List the certificates and authorities of the TLS listeners: subject, issuer, validity."""
    return reply(listeners_certificates(call))


ROUTES: Final = (ApiRoute("GET", "api/amqpd/certificates", Role.MONITORING, certificates),)
