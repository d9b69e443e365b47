"""Thousands of connections at the Kafka listener: idle ones, a storm of logins, readers that stop, half-open sockets.

The verdicts rest on counts, on the broker's memory, and on an AMQP publisher beside them, whose messages are all
confirmed. Its times are printed only. `TEST_KAFKA_CONNECTIONS` sets another number for the large form.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pika
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka_socket import address_of, until

from amqpd.testing import BrokerProcess

SPARE_FILES = 500
"""Descriptors for everything but the connections."""
IDLE_BYTES_MAX = 24 * 1024
"""Memory of the broker for an idle connection that is logged in."""
READERS = 20
BATCHES = 40
VALUE_BYTES = 1 << 19
FETCH_BYTES = 16 << 20
STUCK_BYTES_MAX = 24 << 20
"""Memory of the broker for a reader that never reads: one response of 16 MiB, a batch, and what the socket has."""


def resident_bytes(broker: BrokerProcess) -> int:
    fields = Path(f"/proc/{broker.pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * 4096


def open_sockets(broker: BrokerProcess) -> int:
    found = 0
    for each in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += str(each.readlink()).startswith("socket:")
    return found


def need_files(connections: int) -> None:
    """Raise the limit of this process, or skip: a broker that is started now has the same."""
    needed = connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"RLIMIT_NOFILE is {hard}; {needed} files are needed")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def frame(key: int, version: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", key, version, 1, 4) + b"many" + body
    return struct.pack(">i", len(data)) + data


API_VERSIONS = frame(18, 0, b"")
HANDSHAKE = frame(17, 1, struct.pack(">h", 5) + b"PLAIN")
LOGIN = frame(36, 0, struct.pack(">i", 12) + b"\0guest\0guest")


class Client:
    """A connection that is logged in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def log_in(cls, address: str) -> Self:
        host, _, port = address.rpartition(":")
        client = cls(*await asyncio.open_connection(host, int(port), limit=4096))
        for request, error_at in ((API_VERSIONS, 4), (HANDSHAKE, 4), (LOGIN, 4)):
            answer = await client.ask(request)
            assert answer[error_at : error_at + 2] == b"\0\0", answer[:60]
        return client

    async def ask(self, request: bytes) -> bytes:
        self.writer.write(request)
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def is_alive(self) -> bool:
        return len(await self.ask(API_VERSIONS)) > 100


async def log_in_many(address: str, count: int, at_once: int) -> list[Client]:
    gate = asyncio.Semaphore(at_once)

    async def one() -> Client:
        async with gate:
            return await Client.log_in(address)

    return list(await asyncio.gather(*(one() for _ in range(count))))


class Publisher:
    """An AMQP publisher in a thread: one persistent message after the other, each confirmed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._url = broker.url
        self._ended = threading.Event()
        self.durations_s: list[float] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)
        assert self.error is None, repr(self.error)

    def _run(self) -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                name = f"beside-{uuid.uuid4().hex}"
                channel.queue_declare(name, durable=True)
                while not self._ended.is_set():
                    begin_s = time.monotonic()
                    channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2), mandatory=True)
                    self.durations_s.append(time.monotonic() - begin_s)
                    time.sleep(0.002)
                found = channel.queue_declare(name, passive=True).method.message_count
                assert found == len(self.durations_s), f"{found} of {len(self.durations_s)} messages"
                channel.queue_delete(name)
        except (pika.exceptions.AMQPError, AssertionError) as error:
            self.error = error

    def goes_on(self) -> None:
        """Wait for ten more confirms."""
        wanted = len(self.durations_s) + 10
        until(lambda: self.error is not None or len(self.durations_s) >= wanted, 120)

    def report(self) -> str:
        times = [each * 1000 for each in sorted(self.durations_s)]
        middle, late = times[len(times) // 2], times[len(times) * 99 // 100]
        return f"{len(times)} confirms, p50 {middle:.1f} ms, p99 {late:.1f} ms"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "kafka.port": 0,
        "kafka.host": "127.0.0.1",
        "kafka.anonymous_user": "guest",
        "amqp.handshake_timeout_s": 60,
        "log.level": "warning",
    }
    with BrokerProcess(tmp_path_factory.mktemp("many"), settings=settings) as made:
        yield made
        assert "Traceback" not in made.stderr, made.stderr


def import_all(broker: BrokerProcess) -> None:
    """Have the broker start the HTTP server and build the parser of selectors now, not when it is idle.

    Together they take 17 MB, which no connection has caused.
    """
    assert broker.api("GET", "/api/whoami")
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        name = f"selected-{uuid.uuid4().hex}"
        channel.queue_declare(name, durable=True)
        channel.basic_consume(name, lambda *_: None, arguments={"x-filter": "number > 1"})
        channel.queue_delete(name)


async def hold_idle(broker: BrokerProcess, count: int) -> None:
    """Open connections that log in and say nothing, then close them without a word."""
    await asyncio.to_thread(import_all, broker)
    address = address_of(broker)
    before_count = open_sockets(broker)
    begin_s = time.monotonic()
    clients = await log_in_many(address, count // 5, 100)  # the first ones also need memory that is theirs together
    before = resident_bytes(broker)
    clients += await log_in_many(address, count - len(clients), 100)
    duration_s = time.monotonic() - begin_s
    each = (resident_bytes(broker) - before) / (count - count // 5)
    assert open_sockets(broker) >= count  # before_count may include an AMQP connection that the broker closes meanwhile
    with Publisher(broker) as publisher:
        await asyncio.to_thread(publisher.goes_on)
        for client in clients[:: max(1, count // 100)]:
            assert await client.is_alive()
        await asyncio.to_thread(publisher.goes_on)
    for client in clients:
        client.writer.transport.abort()
    await asyncio.to_thread(until, lambda: open_sockets(broker) <= before_count + 5, 120)
    print(f"\n{count} connections: {each / 1024:.1f} KiB each, {duration_s:.1f} s to log in; {publisher.report()}")
    assert each <= IDLE_BYTES_MAX


async def storm(broker: BrokerProcess, count: int, rounds: int) -> None:
    """Have all clients log in at once and leave, again and again; a part of them in the middle of a request."""
    address = address_of(broker)
    before_count = open_sockets(broker)
    memory: list[int] = []
    with Publisher(broker) as publisher:
        for _ in range(rounds):
            clients = await log_in_many(address, count, count)
            for number, client in enumerate(clients):
                if number % 3 == 0:
                    client.writer.write(LOGIN[:9])
                client.writer.transport.abort()
            await asyncio.to_thread(until, lambda: open_sockets(broker) <= before_count + 10, 120)
            memory.append(resident_bytes(broker))
        await asyncio.to_thread(publisher.goes_on)
    print(f"\n{rounds} storms of {count}: {[each >> 20 for each in memory]} MiB; {publisher.report()}")
    assert memory[-1] - memory[0] <= 8 << 20, memory


def _fill(address: str) -> str:
    """Return a topic with more than FETCH_BYTES in batches."""
    name = f"large-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(name, 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(BATCHES):
        producer.send(name, bytes([number]) * VALUE_BYTES).get(60)
    producer.close()
    return name


def fetch_request(topic: str, offset: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">iiiibi", -1, 0, 1, FETCH_BYTES, 0, 0) + struct.pack(">i", -1)
    partitions = struct.pack(">iiqqi", 0, -1, offset, -1, FETCH_BYTES)
    topics = struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + partitions
    return frame(1, 10, body + topics + struct.pack(">i", 0))


async def read_never(broker: BrokerProcess, readers: int) -> None:
    """Ask for 16 MiB, twenty times on each connection, and read nothing of the answers."""
    address = address_of(broker)
    topic = await asyncio.to_thread(_fill, address)
    before = resident_bytes(broker)
    highest = 0
    clients = await log_in_many(address, readers, readers)
    with Publisher(broker) as publisher:
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(20):
                client.writer.write(fetch_request(topic, number % BATCHES))
        for _ in range(10):
            await asyncio.to_thread(publisher.goes_on)
            highest = max(highest, resident_bytes(broker) - before)
        other = await Client.log_in(address)
        answer = await other.ask(fetch_request(topic, 0))
        assert len(answer) > VALUE_BYTES
        other.writer.transport.abort()
        for client in clients:
            client.writer.transport.abort()
        await asyncio.to_thread(publisher.goes_on)
    print(f"\n{readers} readers that stop: {highest / readers / 2**20:.1f} MiB each at most; {publisher.report()}")
    assert highest <= readers * STUCK_BYTES_MAX


async def half_open(broker: BrokerProcess, count: int) -> None:
    """Sockets whose client has closed its side, or only sends the begin of a request."""
    host, _, port = address_of(broker).rpartition(":")
    before_count = open_sockets(broker)
    before = resident_bytes(broker)
    sockets: list[socket.socket] = []
    with Publisher(broker) as publisher:
        for number in range(count):
            each = socket.create_connection((host, int(port)), 30)
            sockets.append(each)
            with contextlib.suppress(OSError):
                if number % 3 == 0:
                    each.sendall(API_VERSIONS[:6])
                else:
                    each.sendall(API_VERSIONS)
                if number % 3 == 1:
                    each.shutdown(socket.SHUT_WR)
        await asyncio.to_thread(publisher.goes_on)
        # What a client has closed on its side the broker closes too.
        await asyncio.to_thread(until, lambda: open_sockets(broker) <= before_count + count * 2 // 3 + 5, 60)
        growth = resident_bytes(broker) - before
        for each in sockets:
            each.close()
        await asyncio.to_thread(until, lambda: open_sockets(broker) <= before_count + 5, 60)
    print(f"\n{count} half-open sockets: {growth / count / 1024:.1f} KiB each; {publisher.report()}")
    assert growth <= max(16 << 20, count * IDLE_BYTES_MAX)


@pytest.mark.slow
async def test_500_idle_connections_take_little_memory_and_disturb_nobody(broker: BrokerProcess) -> None:
    need_files(500)
    await hold_idle(broker, 500)


@pytest.mark.slow
async def test_storms_readers_that_stop_and_half_open_sockets_leave_nothing_behind(broker: BrokerProcess) -> None:
    need_files(300)
    await storm(broker, 100, 3)
    await read_never(broker, 3)
    await half_open(broker, 90)


@pytest.mark.ci_long
@pytest.mark.timeout(1700)
async def test_10_000_connections_storms_and_readers_that_stop(tmp_path: Path) -> None:
    count = int(os.environ.get("TEST_KAFKA_CONNECTIONS", "10000"))
    need_files(count)
    settings = {
        "kafka.port": 0,
        "kafka.host": "127.0.0.1",
        "kafka.anonymous_user": "guest",
        "amqp.handshake_timeout_s": 600,
        "log.level": "warning",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as own:
        await hold_idle(own, count)
        await storm(own, count // 5, 3)
        await read_never(own, READERS)
        await half_open(own, count // 10)
        assert "Traceback" not in own.stderr, own.stderr
