"""TLS of clients, for amqpctl, the export and connections to Kafka.

This module imports nothing of amqpd. It imports `ssl` only when a context is made, so that it costs no start-up
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


class BadTlsFiles(Exception):
    """TLS files that cannot be used; the text names them and says why."""


def client_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return a context that checks the server's certificate and name.

    Args:
        ca: Path of a PEM file with authorities to trust; "": those of the machine.
        certificate: Path of our certificate, if the server asks for one.
        key: Path of its key, if it is not in the certificate's file.

    Cost: reads the files; the machine's authorities cost 20 ms of CPU. Call it in a thread.
    Raises: BadTlsFiles.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:  # ssl.SSLError is an OSError
        named = ", ".join(name for name in (ca, certificate, key) if name)
        raise BadTlsFiles(f"{named or 'the authorities of the machine'}: {error.strerror or error}") from error
    return context
