"""Hostile bytes at the Kafka listener: each request truncated, changed and at random, and sockets that do not go on.

After each request the broker answers or closes the connection. Its log has no traceback, its memory stays bounded, and
an AMQP client beside it publishes and consumes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from kafka import KafkaAdminClient
from kafka.protocol.sasl import SaslHandshakeRequest
from kafka_socket import KafkaSocket, address_of, until
from random_messages import random_message

from amqpd.kafka_server import connection as connections
from amqpd.kafka_server.messages import api_types
from amqpd.kafka_server.server import KafkaServer, every_api
from amqpd.server import Server
from amqpd.testing import BrokerProcess, embedded

APIS = sorted(every_api(), key=lambda api: api.key)
GROWTH_BYTES_MAX = 64 << 20
INT32_MAX = struct.pack(">i", (1 << 31) - 1)
VARINT_MAX = b"\xff\xff\xff\xff\x0f"


class Neighbour:
    """An AMQP client that uses the same broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare("neighbour queue", durable=True)

    def use(self) -> None:
        self._channel.basic_publish("", "neighbour queue", b"x", pika.BasicProperties(delivery_mode=2), mandatory=True)
        assert self._channel.basic_get("neighbour queue", auto_ack=True)[2] == b"x"

    def close(self) -> None:
        self._connection.close()


def resident_bytes(broker: BrokerProcess) -> int:
    fields = Path(f"/proc/{broker.pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


@pytest.fixture(scope="module")
def hostile_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Only errors are logged, because the broker process keeps its newest lines only.
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "log.level": "error"}
    with BrokerProcess(tmp_path_factory.mktemp("hostile-broker"), settings=settings) as broker:
        yield broker


@pytest.fixture
def neighbour(hostile_broker: BrokerProcess) -> Iterator[Neighbour]:
    """An AMQP client that must work before and after the test, whose memory must be bounded."""
    client = Neighbour(hostile_broker)
    client.use()
    before, log_before = resident_bytes(hostile_broker), hostile_broker.stderr
    yield client
    client.use()
    client.close()
    assert hostile_broker.stderr.removeprefix(log_before) == ""
    until(lambda: resident_bytes(hostile_broker) - before < GROWTH_BYTES_MAX)


# Requests that kafka-python does not know, of their first version.
EXAMPLES = {
    "ConsumerGroupHeartbeat": b"\6group\7member\0\0\0\0\0\0\0\0\0\1\2\4abc\0\1\0",
    "ConsumerGroupDescribe": b"\2\6group\0\0",
    "ShareGroupHeartbeat": b"\6group\7member\0\0\0\0\0\2\4abc\0",
    "ShareGroupDescribe": b"\2\6group\0\0",
    "ShareFetch": b"\6group\7member" + b"\0\0\0\0" * 6 + b"\2" + b"\7" * 16 + b"\2\0\0\0\0\1\0\0\1\0",
    "ShareAcknowledge": b"\6group\7member\0\0\0\1\2" + b"\7" * 16 + b"\2\0\0\0\0\1\0\0\0",
    "DescribeShareGroupOffsets": b"\2\6group\2\4abc\2\0\0\0\0\0\0\0",
    "AlterShareGroupOffsets": b"\6group\2\4abc\2\0\0\0\0" + b"\0" * 8 + b"\0\0\0",
    "DeleteShareGroupOffsets": b"\6group\2\4abc\0\0",
}


def request_type(api: Any) -> Any | None:
    """Return kafka-python's type of the request, None if it has none."""
    return None if api.name in EXAMPLES else api_types(api.name)[0]


def default_body(api: Any, version: int) -> bytes:
    """Return the body of a request whose fields have their defaults."""
    found = request_type(api)
    return EXAMPLES[api.name] if found is None else bytes(found(version=version).encode(version=version))


def random_body(api: Any, version: int, chance: random.Random) -> bytes:
    """Return a body with valid form and random values; or an example with some random bytes."""
    found = request_type(api)
    if found is not None:
        return bytes(random_message(found, version, chance).encode(version=version))
    body = bytearray(EXAMPLES[api.name])
    for _ in range(chance.randint(1, 4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)


def request_frame(api_key: int, version: int, body: bytes, flexible: bool) -> bytes:
    frame = struct.pack(">hhih", api_key, version, 1, -1) + (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(frame)) + frame


def reaction(address: str, data: bytes) -> bytes:
    """Send bytes, then the end of the stream, and return what the broker sends until it closes the connection."""
    host, _, port = address.rpartition(":")
    received = b""
    with socket.create_connection((host, int(port)), 30) as client, suppress(ConnectionError):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            received += part
    return received


def answer_or_end(address: str, data: bytes) -> bytes:
    """Send bytes and return the beginning of the answer, or nothing if the broker closes the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as client, suppress(ConnectionError):
        client.sendall(data)
        return client.recv(65536)
    return b""


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
class TestEachRequest:
    def test_body_of_each_length(self, hostile_broker: BrokerProcess, neighbour: Neighbour, api: Any) -> None:
        address = address_of(hostile_broker)
        for version in sorted({api.first, api.last}):
            body = default_body(api, version)
            for size in range(min(len(body), 200)):
                answer_or_end(address, request_frame(api.key, version, body[:size], version >= api.flexible))

    def test_huge_counts_and_lengths(self, hostile_broker: BrokerProcess, neighbour: Neighbour, api: Any) -> None:
        address = address_of(hostile_broker)
        for version in sorted({api.first, api.last}):
            body = default_body(api, version)
            for at in range(min(len(body), 100)):
                for huge in (INT32_MAX, VARINT_MAX):
                    changed = body[:at] + huge + body[at + len(huge) :]
                    reaction(address, request_frame(api.key, version, changed, version >= api.flexible))

    @pytest.mark.slow
    def test_random_bodies(self, hostile_broker: BrokerProcess, neighbour: Neighbour, api: Any) -> None:
        address, chance = address_of(hostile_broker), random.Random(api.key)
        for _ in range(15):
            version = chance.randint(api.first, api.last)
            body = chance.randbytes(chance.randint(0, 300))
            reaction(address, request_frame(api.key, version, body, version >= api.flexible))

    @pytest.mark.slow
    def test_random_values(self, hostile_broker: BrokerProcess, neighbour: Neighbour, api: Any) -> None:
        address, chance = address_of(hostile_broker), random.Random(api.key)
        for _ in range(40):
            version = chance.randint(api.first, api.last)
            body = random_body(api, version, chance)
            reaction(address, request_frame(api.key, version, body, version >= api.flexible))

    def test_unknown_versions(self, hostile_broker: BrokerProcess, neighbour: Neighbour, api: Any) -> None:
        for version in (-1, api.first - 1, api.last + 1, 32767):
            received = answer_or_end(
                address_of(hostile_broker), request_frame(api.key, version, default_body(api, api.first), False)
            )
            assert (received != b"") == (api.name == "ApiVersions")


class TestBytes:
    def test_unknown_requests(self, hostile_broker: BrokerProcess, neighbour: Neighbour) -> None:
        for key in {-1, 32767, *range(200)} - {api.key for api in APIS}:
            assert answer_or_end(address_of(hostile_broker), request_frame(key, 0, b"\0" * 40, False)) == b""

    def test_random_bytes(self, hostile_broker: BrokerProcess, neighbour: Neighbour) -> None:
        chance = random.Random(0)
        for _ in range(200):
            reaction(address_of(hostile_broker), chance.randbytes(chance.randint(1, 2000)))

    @pytest.mark.parametrize("size", [-1, 0, (100 << 20) + 1, (1 << 31) - 1])
    def test_wrong_size(self, hostile_broker: BrokerProcess, neighbour: Neighbour, size: int) -> None:
        assert answer_or_end(address_of(hostile_broker), struct.pack(">i", size) + b"x" * 100) == b""

    def test_announced_sizes_take_no_memory(self, hostile_broker: BrokerProcess, neighbour: Neighbour) -> None:
        """Fifty clients announce 100 MiB each, send a little and stay."""
        clients = [KafkaSocket(address_of(hostile_broker)) for _ in range(50)]
        for client in clients:
            client.send_bytes(struct.pack(">ihhih", 100 << 20, 0, 9, 1, -1) + b"x" * 1000)
        neighbour.use()
        for client in clients:
            client.close()

    def test_login_is_bounded_before_it_is_read(self, hostile_broker: BrokerProcess, neighbour: Neighbour) -> None:
        with KafkaSocket(address_of(hostile_broker)) as client:
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
            client.send_bytes(struct.pack(">i", connections.LOGIN_BYTES_MAX + 1))
            assert client.is_closed()

    def test_client_that_does_not_read(self, hostile_broker: BrokerProcess, neighbour: Neighbour) -> None:
        """Requests are not read while the client does not read the answers."""
        requests = request_frame(18, 0, b"", False) * 1_000_000
        with KafkaSocket(address_of(hostile_broker), timeout_s=2) as client, pytest.raises(TimeoutError):
            client.send_bytes(requests)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["kafka", "amqp"])
def test_more_silent_sockets_than_descriptors(tmp_path: Path, protocol: str) -> None:
    """AMQP and Kafka share the limit on sockets without a login, so neither can keep the other's clients out."""
    limit = 256
    command = ["/bin/sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-P", "-m", "amqpd"]
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1"}
    with BrokerProcess(tmp_path / "data", command=command, settings=settings) as broker:
        assert broker.ready is not None
        silent = []
        for _ in range(2 * limit):
            silent.append(socket.create_connection(("127.0.0.1", broker.ready.listeners[protocol][1]), 30))
        client = KafkaAdminClient(bootstrap_servers=address_of(broker))
        assert isinstance(client.list_topics(), list)
        client.close()
        amqp = Neighbour(broker)
        amqp.use()
        amqp.close()
        for each in silent:
            each.close()
        assert "sockets without a login were closed" in broker.stderr
        assert "Traceback" not in broker.stderr


def settings_of(tmp_path: Path, **others: object) -> dict[str, Any]:
    small = {"kafka.port": 0, "kafka.host": "127.0.0.1", "amqp.message_size_max_bytes": 1 << 20}
    return {"data_dir": tmp_path, "settings": {**small, "limits.unfinished_bodies_bytes": 1 << 20, **others}}


class Client:
    """A client of an embedded broker that has logged in, and the broker's side of its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kafka: KafkaServer) -> None:
        self.reader, self.writer = reader, writer
        port = writer.get_extra_info("sockname")[1]
        [self.connection] = [each for each in kafka.connections if each.peer[1] == port]

    @classmethod
    async def connect(cls, server: Server) -> Client:
        [kafka] = [each for each in server.broker.clients if isinstance(each, KafkaServer)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("kafka"))
        writer.write(request_frame(3, 1, struct.pack(">i", 0), False))
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        await reader.readexactly(size)
        return cls(reader, writer, kafka)

    async def send_part(self, size: int, sent: int, api_key: int = 0) -> None:
        """Send the first bytes of a request of `size` bytes."""
        self.writer.write((struct.pack(">ihhih", size, api_key, 3, 1, -1) + bytes(sent))[:sent])
        await self.writer.drain()

    def close(self) -> None:
        self.writer.transport.abort()


async def until_async(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


async def test_client_that_stops_within_a_request_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "STALL_MS", 300)
    async with embedded(**settings_of(tmp_path)) as server:
        stalled, idle = await Client.connect(server), await Client.connect(server)
        await stalled.send_part(5000, 100)
        assert await stalled.reader.read() == b""
        assert "it has sent nothing for" in caplog.text
        assert server.broker.unfinished_bodies.kept_bytes == 0
        assert not idle.connection.closed
        idle.close()
        stalled.close()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "it speaks TLS, and this port does not"),
        (b"AMQP\x00\x00\x09\x01", "a request of 1095586128 bytes; at most 104857600 are accepted"),
        (b"GET / HTTP/1.1\r\n\r\n", "a request of 1195725856 bytes; at most 104857600 are accepted"),
    ],
)
async def test_client_of_another_protocol_is_not_logged_in(
    first: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "amqpd.kafka_server")
    async with embedded(**settings_of(tmp_path)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port("kafka"))
        writer.write(first)
        assert await reader.read() == b""
        writer.close()
    assert f"is disconnected: {why}" in caplog.text
    assert "has logged in" not in caplog.text


async def test_idle_client_is_disconnected_unless_its_request_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_MS", 500)
    async with embedded(**settings_of(tmp_path)) as server:
        idle = await Client.connect(server)
        assert await idle.reader.read() == b""
        idle.close()


async def test_unfinished_requests_share_a_budget(tmp_path: Path) -> None:
    """Above it only the client with the oldest request is read, and then the next one."""
    size, sent = 900_000, 600_000
    async with embedded(**settings_of(tmp_path)) as server:
        budget = server.broker.unfinished_bodies
        clients = [await Client.connect(server) for _ in range(10)]
        sending = [asyncio.create_task(each.send_part(size, sent, 9)) for each in clients]
        await until_async(lambda: budget.full)
        assert budget.kept_bytes < budget.limit_bytes + 11 * 256 * 1024 + size
        # The oldest one may finish; it is malformed, so its connection ends and the next one is read.
        for client, task in zip(clients, sending, strict=True):
            await task
            client.writer.write(bytes(size))
            with suppress(ConnectionError):
                await client.reader.read()
            client.close()
        await until_async(lambda: (budget.kept_bytes, len(budget)) == (0, 0))


async def test_unfinished_produce_is_not_read_during_an_alarm(tmp_path: Path) -> None:
    async with embedded(**settings_of(tmp_path)) as server:
        producer, other = await Client.connect(server), await Client.connect(server)
        server.broker.alarms.raise_by_hand("memory")
        await producer.send_part(500_000, 100_000, 0)
        await other.send_part(500_000, 100_000, 9)
        await until_async(lambda: not producer.connection.is_reading)
        assert other.connection.is_reading
        server.broker.alarms.clear_by_hand("memory")
        await until_async(lambda: producer.connection.is_reading)
        producer.close()
        other.close()


async def test_closed_connection_of_a_client_that_does_not_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_WAIT_S", 0.2)
    monkeypatch.setattr(connections, "WRITE_HIGH_BYTES", 8192)
    monkeypatch.setattr(connections, "WRITE_LOW_BYTES", 4096)
    async with embedded(**settings_of(tmp_path)) as server:
        client = await Client.connect(server)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.writer.write(request_frame(18, 0, b"", False) * 20_000)
        await until_async(lambda: not client.connection.is_reading)
        client.connection.force("asked for")
        sockets = client.connection.server.unopened._sockets
        await until_async(lambda: client.connection not in sockets)
        client.close()
