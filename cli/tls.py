"""TLS of amqpctl: whose certificates it believes, and the one it shows, for `--uri https://...`.

    --tls-ca-cert-file FILE     AMQPCTL_TLS_CA_CERT_FILE     instead of the machine's own authorities
    --tls-cert-file FILE        AMQPCTL_TLS_CERT_FILE        to show; a login where the broker takes it for one
    --tls-key-file FILE         AMQPCTL_TLS_KEY_FILE         where it is not in the certificate's file
    --insecure                                               nothing is checked, and a warning says so

ssl is imported where it is needed: it is part of no other start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.cli.errors import UsageError
from amqpd.client_tls import BadTlsFiles, client_context

if TYPE_CHECKING:
    import ssl

    from amqpd.cli.options import CommandLine

OPTIONS: Final = ("tls-ca-cert-file", "tls-cert-file", "tls-key-file")
INSECURE: Final = "insecure"
WARNING: Final = (
    "Warning: --insecure: the broker's certificate is not checked. Whoever is on the way to it can read the password "
    "and answer in its place.\n"
)


class Tls(NamedTuple):
    """Paths of PEM files, each may be empty. insecure: the broker's certificate is not looked at."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    insecure: bool = False

    def context(self) -> ssl.SSLContext:
        """Raises: UsageError for a file that cannot be used."""
        try:
            context = client_context(self.ca, self.certificate, self.key)
        except BadTlsFiles as error:
            raise UsageError(f"TLS: {error}") from None
        if self.insecure:
            import ssl

            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def tls_of(line: CommandLine, environment: Mapping[str, str], uri: str) -> Tls:
    """The command line before the environment, which counts for https only. Raises: UsageError."""
    secure = uri.lower().startswith("https://")
    given = [name for name in (*OPTIONS, INSECURE) if name in line.given]
    if not secure:
        if given:
            raise UsageError(f"--{given[0]} goes with --uri https://HOST:15671")
        return Tls()
    files = [
        line.given.get(name) or environment.get("AMQPCTL_" + name.replace("-", "_").upper(), "") for name in OPTIONS
    ]
    ca, certificate, key = files
    if key and not certificate:
        raise UsageError("--tls-key-file goes with --tls-cert-file")
    return Tls(ca, certificate, key, INSECURE in line.given)
