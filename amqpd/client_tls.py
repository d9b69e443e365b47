"""TLS as a client has it: whose certificates are believed, and the one that is shown. One place for all who are
clients: amqpctl, the export, connections to Kafka.

A leaf: it imports nothing of amqpd's, and `ssl` where a context is made, so that it is part of no other start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


class BadTlsFiles(Exception):
    """Files of TLS that cannot be used; the text names them and says why."""


def client_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """A context that checks the server's certificate and its name.

    ca: path of a PEM file with the authorities to believe, "": the machine's own. certificate, key: of ours, to show,
    "": none; a key may be in the certificate's file. Cost: reads the files, and with the machine's authorities 20 ms of
    a processor: a loop has it done by a thread. Raises: BadTlsFiles.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(name for name in (ca, certificate, key) if name)
        raise BadTlsFiles(f"{named or 'the authorities of the machine'}: {error.strerror or error}") from error
    return context
