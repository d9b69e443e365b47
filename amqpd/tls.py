"""TLS of the server's listeners: contexts from the settings, and certificates that change under running listeners.

`amqp.tls.*` and `http.tls.*` are two sets of the same: each listener has a certificate, and may ask its clients for
theirs. A context lives as long as the process; `renew` puts another certificate into it, for the handshakes to come.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from amqpd.config.schema import DEPTH_MAX

if TYPE_CHECKING:
    import asyncio

    from amqpd.config import HttpTlsSettings, TlsSettings


log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""How long a peer may take to shake hands."""


def server_context(tls: TlsSettings | HttpTlsSettings, name: str) -> ssl.SSLContext:
    """TLS 1.2 and 1.3. name: of the section, for errors. Cost: 5 ms. Raises: OSError; ssl.SSLError is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.certificate is None:
        raise OSError(f"{name}.port is set but {name}.certificate is not")
    try:
        context.load_cert_chain(tls.certificate, tls.key, _no_passphrase)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except OSError as error:
        # A bare "[SSL] PEM lib" would leave open which of the listeners' files it is about.
        raise OSError(error.errno, f"{name}: {tls.certificate}, {tls.key}, {tls.ca}: {error}") from error
    if tls.fail_if_no_peer_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    elif tls.verify_peer:
        context.verify_mode = ssl.CERT_OPTIONAL
    choose_ciphers(context, tls.ciphers, f"{name}.ciphers")
    if tls.depth < DEPTH_MAX:
        context.sslobject_class = _bounded(tls.depth)
    return context


def choose_ciphers(context: ssl.SSLContext, names: Sequence[str], setting: str) -> None:
    """Offer these cipher suites alone; none named: OpenSSL's choice.

    OpenSSL's suites of TLS 1.3 cannot be chosen from Python before 3.15: a list has all three of them, or none and with
    it no TLS 1.3. Raises: OSError, where the list cannot be obeyed.
    """
    if not names:
        return
    offered = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}
    newer = {name for name in names if name.startswith("TLS_")}
    older = [name for name in names if name not in newer]
    if newer and not offered <= newer:
        raise OSError(f"{setting}: name all suites of TLS 1.3 ({', '.join(sorted(offered))}), or none of them")
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


def _bounded(depth: int) -> type[ssl.SSLObject]:
    """Return a class of TLS connections whose handshake fails where a client's chain of certificates is too long."""

    class Bounded(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            between = _verified_count(self) - 2
            if between > depth:
                why = f"{between} certificates are between the client's and its authority's, and {depth} are allowed"
                log.warning("a TLS handshake is refused: %s", why)  # the loop would not tell
                raise ssl.SSLCertVerificationError(why)

    return Bounded


def _verified_count(link: Any) -> int:
    """Return how many certificates the client's verified chain has, its own and the authority's among them.

    Python has a public method for it from 3.13 on. 0: the client has shown none, or goes on with an earlier session,
    whose chain was looked at then.
    """
    found = link if hasattr(link, "get_verified_chain") else link._sslobj
    return len(found.get_verified_chain() or ())


def _no_passphrase() -> str:
    """OpenSSL would ask for it on the terminal, and hold the loop until somebody answers. Raises: OSError."""
    raise OSError("the private key has a passphrase, and nobody is asked for it")


def renew(context: ssl.SSLContext, tls: TlsSettings | HttpTlsSettings, name: str) -> None:
    """Certificate and key for the handshakes to come. Raises: OSError, and the context keeps the former."""
    server_context(tls, name)  # they fit, or nothing is changed
    assert tls.certificate is not None  # server_context has looked
    context.load_cert_chain(tls.certificate, tls.key, _no_passphrase)


def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """For `loop.set_exception_handler`: a certificate that cannot be read is a line, without a traceback.

    uvloop tells of it where Python cannot decode what a client has shown: an alternative name that is no text. The
    connection is closed then, and nobody is let in.
    """
    error = context.get("exception")
    if str(context.get("message", "")).startswith("SSL handshake failed") and error is not None:
        log.warning("a TLS handshake failed: %r", error)
    else:
        loop.default_exception_handler(context)
