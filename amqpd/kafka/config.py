"""Access to Kafka: addresses, TLS and SASL, for our connections and for aiokafka's clients.

This module does not import aiokafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqpd.client_tls import BadTlsFiles, client_context
from amqpd.kafka.outages import Outages
from amqpd.kafka.sasl import MECHANISMS

if TYPE_CHECKING:
    import ssl


class InvalidKafkaConfig(ValueError):
    """The settings do not fit together; the text says which and why."""


@dataclass(frozen=True)
class KafkaAccess:
    """Access to one Kafka cluster.

    Attributes:
        kafka: `host:port` of some brokers; they name the other ones.
        ca_file: CA certificates to trust; "": those of the machine.
        cert_file: Our certificate, if the brokers ask for one.
        key_file: The key of our certificate.
        sasl_mechanism: "" for none.
        outages: Each connection reports its failures and recoveries here.
    """

    kafka: tuple[str, ...]
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    client_id: str = "amqpd"
    outages: Outages = field(default_factory=Outages, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.kafka:
            raise InvalidKafkaConfig("no Kafka broker is configured")
        for address in self.kafka:
            split_address(address)
        if self.sasl_mechanism and self.sasl_mechanism not in MECHANISMS:
            raise InvalidKafkaConfig(
                f"unknown SASL mechanism {self.sasl_mechanism}; expected one of {', '.join(MECHANISMS)}"
            )
        if self.sasl_mechanism and not self.sasl_username:
            raise InvalidKafkaConfig(f"{self.sasl_mechanism} needs a user name")
        if not self.tls and (self.ca_file or self.cert_file or self.key_file):
            raise InvalidKafkaConfig("certificates are configured, but TLS is not enabled")
        if self.key_file and not self.cert_file:
            raise InvalidKafkaConfig("a key is configured, but no certificate")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of each named broker."""
        return [split_address(address) for address in self.kafka]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, which checks the broker's name; None without TLS.

        It reads files: call it in a thread. Raises InvalidKafkaConfig.
        """
        if not self.tls:
            return None
        try:
            return client_context(self.ca_file, self.cert_file, self.key_file)
        except BadTlsFiles as error:
            raise InvalidKafkaConfig(str(error)) from error

    def aiokafka_options(self) -> dict[str, Any]:
        """Return the options of aiokafka's clients (admin, consumer) for this access. Reads files as `ssl_context`.

        Raises: InvalidKafkaConfig.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": list(self.kafka),
            "client_id": self.client_id,
            "security_protocol": ("SASL_" if self.sasl_mechanism else "") + ("SSL" if self.tls else "PLAINTEXT"),
            "ssl_context": self.ssl_context(),
        }
        if self.sasl_mechanism:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password
        return options


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[host]:port`. Raises InvalidKafkaConfig."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise InvalidKafkaConfig(f"{address!r} is not a broker address, expected host:port")
    return host, int(port)
