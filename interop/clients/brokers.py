"""The brokers beside each other: amqpd under its own name and as RabbitMQ, and RabbitMQ itself.

Each side has two nodes. The second one demands client certificates over TLS, and is the one that the runner disturbs.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.error import URLError
from urllib.parse import quote

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from amqpd.testing import BrokerProcess
from interop.bench import machine
from interop.bench.rabbitmq import RabbitMQ

POLICY: Final = {"pattern": "^limited$", "definition": {"max-length": 2}, "apply-to": "queues"}
EVERYTHING: Final = {"configure": ".*", "write": ".*", "read": ".*"}
RABBITMQ: Final = "RabbitMQ"
SIDES: Final = ("amqpd", "compat", RABBITMQ)
KAFKA: Final = "Kafka"
KAFKA_SIDES: Final = ("amqpd", KAFKA)
PEERS: Final = (RABBITMQ, KAFKA)
"""The brokers with which amqpd is compared."""

API_TIMEOUT_S: Final = 60.0


def call_api(port: int, method: str, path: str, body: object = None) -> object:
    """Send a request to the HTTP API at 127.0.0.1 as guest and return its answer. Raises OSError."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def await_api(port: int) -> None:
    """Wait for RabbitMQ's HTTP API, which listens a little later than AMQP. Raises OSError after a minute."""
    deadline = time.monotonic() + API_TIMEOUT_S
    while True:
        try:
            call_api(port, "GET", "/api/whoami")
            return
        except (URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Certificates(NamedTuple):
    """PEM files. server and client contain key and certificate."""

    ca: Path
    server: Path
    client: Path


def make_certificates(folder: Path) -> Certificates:
    """Write a new authority and what it signed into the folder."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "client.pem")
    authority.cert_pem.write_to_path(files.ca)
    for names, path in ((("localhost", "127.0.0.1"), files.server), (("client.test",), files.client)):
        issued = authority.issue_cert(*names, key_type=trustme.KeyType.RSA)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the form that Java reads
        path.write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
    return files


class Node(ABC):
    """A broker process with the ports that programs and the runner need."""

    amqp_port: int
    tls_port: int
    http_port: int
    metrics_port: int

    @abstractmethod
    def start(self) -> None:
        """Start the broker, and return when programs can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker."""

    @abstractmethod
    def kill_and_start(self) -> None:
        """Kill the broker with SIGKILL, and start it with the same data and ports."""

    @abstractmethod
    def set_memory_limit(self, share: str) -> None:
        """Set the memory alarm's limit as a share of the machine's memory."""

    def add_vhost(self, name: str) -> None:
        """Create a vhost with the policy of the scenario `policy`."""
        self.api("PUT", f"/api/vhosts/{quote(name, safe='')}", {})
        self.api("PUT", f"/api/permissions/{quote(name, safe='')}/guest", EVERYTHING)
        self.api("PUT", f"/api/policies/{quote(name, safe='')}/limited", POLICY)

    def api(self, method: str, path: str, body: object = None) -> object:
        """Send a request to the HTTP API and return its answer. Raises OSError."""
        return call_api(self.http_port, method, path, body)


class Amqpd(Node):
    """An amqpd of this checkout or environment. compat: the setting of this name."""

    def __init__(self, folder: Path, certificates: Certificates, compat: str, demands_certificate: bool) -> None:
        settings: dict[str, object] = {
            "log.level": "warning",
            "amqp.tls.port": 0,
            "amqp.tls.certificate": certificates.server,
            "amqp.tls.key": certificates.server,
            "amqp.tls.ca": certificates.ca,
            "amqp.tls.verify_peer": demands_certificate,
            "amqp.tls.fail_if_no_peer_certificate": demands_certificate,
        }
        if compat:
            settings["compat"] = compat
        self._process = BrokerProcess(folder, settings=settings)

    def start(self) -> None:
        self._process.start()
        self._read_ports()

    def _read_ports(self) -> None:
        assert self._process.ready is not None
        self.amqp_port, self.http_port = self._process.amqp_port, self._process.http_port
        self.metrics_port = self.http_port
        self.tls_port = self._process.ready.listeners["amqps"][1]
        self._process.settings["amqp.tls.port"] = self.tls_port

    def stop(self) -> None:
        if not self._process.running:
            return
        self._process.stop(60)
        if "Traceback" in self._process.stderr:
            raise RuntimeError(f"the broker logged a traceback:\n{self._process.stderr[-4000:]}")

    def kill_and_start(self) -> None:
        self._process.kill()
        self._process.start()

    def set_memory_limit(self, share: str) -> None:
        done = self._process.ctl("set_vm_memory_high_watermark", share)
        if done.returncode:
            raise RuntimeError(f"amqpctl: {done.stderr}")


class Rabbit(Node):
    """A private node of Debian's RabbitMQ."""

    def __init__(self, folder: Path, certificates: Certificates, demands_certificate: bool) -> None:
        self.tls_port, self.http_port, self.metrics_port = (machine.free_port() for _ in range(3))
        demanded = str(demands_certificate).lower()
        config = (
            f"management.tcp.port = {self.http_port}\nmanagement.tcp.ip = 127.0.0.1\n"
            f"prometheus.tcp.port = {self.metrics_port}\nprometheus.tcp.ip = 127.0.0.1\n"
            f"stream.listeners.tcp.1 = 127.0.0.1:{machine.free_port()}\n"
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.cacertfile = {certificates.ca}\n"
            f"ssl_options.certfile = {certificates.server}\nssl_options.keyfile = {certificates.server}\n"
            f"ssl_options.verify = {'verify_peer' if demands_certificate else 'verify_none'}\n"
            f"ssl_options.fail_if_no_peer_cert = {demanded}\n"
        )
        self._node = RabbitMQ(folder, ("rabbitmq_management", "rabbitmq_stream", "rabbitmq_prometheus"), config)
        self.amqp_port = self._node.port

    def start(self) -> None:
        self._node.start()
        await_api(self.http_port)

    def stop(self) -> None:
        self._node.stop()

    def kill_and_start(self) -> None:
        self._node.kill()
        self.start()

    def set_memory_limit(self, share: str) -> None:
        self._node.control("set_vm_memory_high_watermark", share)


class Side:
    """One broker of the comparison. name: in the matrix; version: as the broker says it."""

    def __init__(self, name: str, make: Callable[[Path, bool], Node], folder: Path) -> None:
        self.name = name
        self.version = ""
        self.node = make(folder / "first", False)
        self.second = make(folder / "second", True)

    def __enter__(self) -> Self:
        try:
            self.node.start()
            self.second.start()
        except BaseException:
            self.__exit__()
            raise
        overview = self.node.api("GET", "/api/overview")
        assert isinstance(overview, dict)
        self.version = str(overview.get("rabbitmq_version" if self.name == RABBITMQ else "product_version"))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.node.stop()
        finally:
            self.second.stop()


def sides(folder: Path, certificates: Certificates) -> list[Side]:
    """Return the sides, not started: amqpd under its own name, amqpd as RabbitMQ, RabbitMQ."""

    def amqpd(compat: str) -> Callable[[Path, bool], Node]:
        return lambda path, demands: Amqpd(path, certificates, compat, demands)

    return [
        Side("amqpd", amqpd(""), folder / "own"),
        Side("compat", amqpd("rabbitmq-3.10"), folder / "compat"),
        Side(RABBITMQ, lambda path, demands: Rabbit(path, certificates, demands), folder / "rabbitmq"),
    ]
