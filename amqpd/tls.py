"""TLS of the server's listeners.

`amqp.tls.*` and `http.tls.*` have the same settings: each listener has a certificate and may ask for client
certificates. A context lives as long as the process; `renew` loads another certificate for later handshakes.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqpd.config.schema import DEPTH_MAX

if TYPE_CHECKING:
    import asyncio

    from amqpd.config.schema import TlsSettings


log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""Time limit for a handshake."""


def server_context(tls: TlsSettings, name: str) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and 1.3.

    Args:
        name: Name of the settings section, for errors.

    Cost: 5 ms.
    Raises: OSError (ssl.SSLError is one).
    """
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.section, context.depth = name, tls.depth
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The Java client with NIO reads no frame behind a session ticket of TLS 1.3. RabbitMQ sends none.
    context.num_tickets = 0
    if tls.certificate is None:
        raise OSError(f"{name}.port is set but {name}.certificate is not")
    try:
        context.load_cert_chain(tls.certificate, tls.key, _no_passphrase)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except OSError as error:
        # OpenSSL's "[SSL] PEM lib" does not name the file.
        files = ", ".join(str(path) for path in (tls.certificate, tls.key, tls.ca) if path is not None)
        raise OSError(f"{name}: {files}: {error}") from error
    _check_dates(tls.certificate, name)
    if tls.fail_if_no_peer_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.verify_peer:
        context.verify_mode = ssl.CERT_OPTIONAL
    choose_ciphers(context, tls.ciphers, f"{name}.ciphers")
    return context


def read_certificates(path: Path) -> list[dict[str, Any]]:
    """Return the first certificate of a PEM file and all authorities in it, as `getpeercert` shows certificates.

    Raises: OSError (ssl.SSLError is one).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The only function of the standard library that decodes a certificate without a connection.
        first: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        context.load_verify_locations(path)
        return [first, *(each for each in context.get_ca_certs() if each != first)]
    except ValueError as error:  # for example an alternative name that is no text
        raise OSError(f"Python cannot decode a certificate in it: {error}") from error


def _check_dates(path: Path, section: str) -> None:
    """Log a warning for certificates that clients refuse today, or that OpenSSL can read and Python cannot."""
    now_s = time.time()
    try:
        found = read_certificates(path)
    except OSError as error:
        log.warning("%s: the dates in %s are not checked: %s", section, path, error)
        return
    for each in found:
        if ssl.cert_time_to_seconds(each["notAfter"]) < now_s:
            log.warning("%s: %s expired on %s: clients refuse it", section, path, each["notAfter"])
        elif ssl.cert_time_to_seconds(each["notBefore"]) > now_s:
            log.warning("%s: %s is not valid before %s: clients refuse it", section, path, each["notBefore"])


def choose_ciphers(context: ssl.SSLContext, names: Sequence[str], setting: str) -> None:
    """Offer only these cipher suites; with an empty list, OpenSSL's choice.

    Before Python 3.15, suites of TLS 1.3 cannot be selected. So the list must have all three of them, or none,
    which switches TLS 1.3 off. Raises OSError for any other list.
    """
    if not names:
        return
    offered = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}
    newer = {name for name in names if name.startswith("TLS_")}
    older = [name for name in names if name not in newer]
    if newer and not offered <= newer:
        raise OSError(f"{setting}: list all suites of TLS 1.3 ({', '.join(sorted(offered))}), or none of them")
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise OSError(f"{setting}: OpenSSL knows none of {', '.join(older)}") from None
    unknown = set(older) - {each["name"] for each in context.get_ciphers()}
    if unknown:
        raise OSError(f"{setting}: OpenSSL does not offer {', '.join(sorted(unknown))}")


class _ServerLink(ssl.SSLObject):
    """TLS of one connection. The reason of a failed handshake gets into the log, and as an alert to the client.

    Event loops close the connection at the first error and drop the alert. So the error is reported to the loop one
    call later: when the client sends more. If it closes the connection or is silent, the loop ends the handshake.

    Attributes:
        outgoing: bytes for the client.
    """

    outgoing: ssl.MemoryBIO
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            self._log(error)
            if not self.outgoing.pending:
                raise
            self._failure = error
            error.__traceback__ = None  # its frames would keep this object alive
        else:
            self._check_depth()
            return
        raise ssl.SSLWantReadError("the alert must be sent first")

    def _log(self, why: object) -> None:
        assert isinstance(self.context, _ServerContext)
        log.warning("a TLS handshake with %s failed: %s", self.context.section, why)

    def _check_depth(self) -> None:
        """Raise SSLCertVerificationError if the client's certificate chain is too long."""
        assert isinstance(self.context, _ServerContext)
        depth = self.context.depth
        if depth < DEPTH_MAX and (between := _verified_count(self) - 2) > depth:
            why = f"{between} certificates are between the client's and its authority's, and {depth} are allowed"
            self._log(why)
            raise ssl.SSLCertVerificationError(why)


class _ServerContext(ssl.SSLContext):
    """Context of a listener.

    Attributes:
        section: name of the settings section, for the log.
        depth: the setting `depth`.
    """

    sslobject_class = _ServerLink
    section: str
    depth: int

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *rest: Any, **options: Any) -> ssl.SSLObject:
        link = super().wrap_bio(incoming, outgoing, *rest, **options)
        assert isinstance(link, _ServerLink)
        link.outgoing = outgoing
        return link


def _verified_count(link: Any) -> int:
    """Return the number of certificates in the client's verified chain, including its own and the authority's.

    Return 0 if the client has shown no certificate, or resumes a session whose chain was checked before. Python has
    a public method for it since 3.13.
    """
    found = link if hasattr(link, "get_verified_chain") else link._sslobj
    return len(found.get_verified_chain() or ())


def _no_passphrase() -> str:
    """Raise OSError: OpenSSL would ask for the passphrase on the terminal and block the event loop."""
    raise OSError("the private key has a passphrase, which is not supported")


def renew(context: ssl.SSLContext, tls: TlsSettings, name: str) -> None:
    """Load certificate and key for later handshakes. Raises OSError, and keeps the old ones."""
    server_context(tls, name)  # check them before any change
    assert tls.certificate is not None  # server_context has checked it
    context.load_cert_chain(tls.certificate, tls.key, _no_passphrase)


def handle_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle exceptions of the event loop: an unreadable client certificate is logged without a traceback.

    uvloop reports such a certificate if Python cannot decode it, for example an alternative name that is no text.
    The connection is closed then, so the client gets no access.
    """
    error = context.get("exception")
    if str(context.get("message", "")).startswith("SSL handshake failed") and error is not None:
        log.warning("a TLS handshake failed: %r", error)
    else:
        loop.default_exception_handler(context)
