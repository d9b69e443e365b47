"""Requests of Kafka's protocol that cost a broker as much as possible for each byte, one or more of each kind.

`python -P tests/limits/kafka_floods.py` starts a broker, sends all of them and prints a table: for each request its
bytes, the processor time of the broker for a MiB of it, and the longest iteration of the event loop in processor time.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import cramjam
from google_crc32c import value as crc32c

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its definitions with `read_text`
    from amqpd.kafka_server.messages import Definition, api_types
    from amqpd.kafka_server.server import every_api

from amqpd.kafka_server.request_reader import BodyWriter
from amqpd.testing import BrokerProcess

COUNTS: Final = (1_000, 9_900, 24_000)
"""Elements of an array. Each kind of request has its own limit, so some of these close the connection."""
SIZE_MAX: Final = 1 << 20
TOPIC: Final = "flood"
QUEUE: Final = "flood-queue"
PARTITIONS: Final = 100
LOGIN: Final = frozenset({"SaslHandshake", "SaslAuthenticate", "ApiVersions"})
SLOW_COUNT: Final = 1_000
"""Elements of requests that make or change topics, at some ms each."""
SLOW: Final = frozenset({"CreateTopics", "CreatePartitions", "DeleteTopics", "AlterConfigs", "IncrementalAlterConfigs"})


class Flood(NamedTuple):
    """A request. name: of the request and of what it has many of."""

    name: str
    key: int
    version: int
    body: bytes
    is_flexible: bool

    @property
    def frame(self) -> bytes:
        head = struct.pack(">hhih", self.key, self.version, 1, -1) + (b"\0" if self.is_flexible else b"")
        return struct.pack(">i", len(head) + len(self.body)) + head + self.body


# -- requests with definitions in kafka-python


def _value(field: Any, number: int, depth: int) -> Any:
    """Return a value of a field, different for each number where it can be."""
    kind = field.type_str.removeprefix("[]")
    if kind == "string":
        is_topic = depth == 0 and field.name in ("name", "topic", "topic_name", "resource_name")
        return TOPIC if is_topic and number == 0 else f"n{number}"
    if kind in ("bytes", "records"):
        return b"\0\0\0\0\0\0"
    if kind == "uuid":
        return UUID(int=number)
    if kind == "bool":
        return False
    if field.name == "resource_type":
        return 2
    return number if kind in ("int32", "int64") else 0


def _message(kind: Any, version: int, path: tuple[str, ...], count: int, number: int = 0, depth: int = 0) -> Any:
    """Return a struct in which the array at the end of `path` has `count` elements, and each other one has one."""
    values: dict[str, Any] = {}
    for name, field in kind.fields.items():
        if not field.for_version_q(version):
            continue
        own, rest = (count, ()) if path == (name,) else (1, path[1:] if path[:1] == (name,) else ())
        is_many = path == (name,)
        if field.is_struct_array():
            inner = range(own if is_many or path[:1] == (name,) else int(not path))
            values[name] = [_message(field.data_class, version, rest, count, each, depth) for each in inner]
        elif field.is_struct():
            values[name] = None
        elif field.type_str.startswith("[]"):
            values[name] = [_value(field, each, 1) for each in range(own if is_many else 0)]
        else:
            values[name] = _value(field, number, depth)
    return kind(version=version, **values)


def _paths(kind: Any, version: int) -> Iterator[tuple[str, ...]]:
    """Yield the arrays of a struct, as names of fields from the outermost struct on."""
    for name, field in kind.fields.items():
        if not field.for_version_q(version):
            continue
        if field.is_struct_array() or field.type_str.startswith("[]"):
            yield (name,)
        if field.is_struct_array():
            for each in _paths(field.data_class, version):
                yield (name, *each)


def defined_floods() -> Iterator[Flood]:
    """Yield, for each request that kafka-python knows, one with each of its arrays as long as it may be."""
    for api in every_api():
        if api.name in LOGIN:
            continue
        try:
            kind = api_types(api.name)[0]
        except LookupError:
            continue
        if isinstance(kind, Definition):
            continue  # see `group_floods`
        version = api.last
        for path in _paths(kind, version):
            for count in COUNTS:
                if count > SLOW_COUNT and api.name in SLOW:
                    continue
                body = bytes(_message(kind, version, path, count).encode(version=version))
                if len(body) < SIZE_MAX - 100:
                    name = f"{api.name} {version}: {count} {'.'.join(path)}"
                    yield Flood(name, api.key, version, body, version >= api.flexible)


# -- tagged fields


def tag_floods() -> Iterator[Flood]:
    """Yield requests with tagged fields: many in one struct, and one in each of many structs."""
    many = b"\xa0\xc2\x1e" + b"\5\0" * 500_000  # in the header
    for key, version, name in ((0, 9, "Produce"), (1, 12, "Fetch"), (3, 12, "Metadata")):
        yield Flood(f"{name} {version}: 500,000 tagged fields", key, version, many, False)
    topic = b"\0" * 16 + b"\2a" + b"\1\7\0"
    for count in (9_990, 24_000):
        length = BodyWriter(True)
        length.count(count)
        body = bytes(length.data) + topic * count + b"\0\0\0"
        yield Flood(f"Metadata 12: {count} topics with a tagged field", 3, 12, body, True)


# -- requests that are decoded by hand


def batch_of(records: bytes, count: int, codec: int = 0) -> bytes:
    """Return a batch with these records."""
    covered = struct.pack(">hiqqqhii", codec, count - 1, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiib", 0, len(covered) + 9, -1, 2) + struct.pack(">I", crc32c(covered)) + covered


def varint(number: int) -> bytes:
    value, out = number << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def many_records(count: int, value: bytes = b"") -> bytes:
    out = bytearray()
    for number in range(count):
        rest = b"\0\0" + varint(number) + b"\1" + varint(len(value)) + value + b"\0"
        out += varint(len(rest)) + rest
    return bytes(out)


def _produce(name: str, batches: list[bytes], topic: str = TOPIC) -> Flood:
    encoded = topic.encode()
    parts = b"".join(struct.pack(">ii", each % PARTITIONS, len(data)) + data for each, data in enumerate(batches))
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(encoded)) + encoded + struct.pack(">i", len(batches)) + parts
    return Flood(f"Produce 8: {name}", 0, 8, body, False)


def produce_floods() -> Iterator[Flood]:
    small = batch_of(many_records(1, b"x"), 1)
    yield _produce("4,000 partitions", [small] * 4_000)
    yield _produce("a batch of 100,000 records", [batch_of(many_records(100_000), 100_000)])
    yield _produce("a record with 100,000 headers", [batch_of(records_with_headers(1, 100_000), 1)])
    yield _produce("a record with 4,000,000 headers", [batch_of(records_with_headers(1, 4_000_000), 1)])
    yield _produce("100 records with 80,000 headers each", [batch_of(records_with_headers(100, 80_000), 100)])
    zeros = many_records(1, bytes((16 << 20) - 100))
    for name, codec, packed in (
        ("gzip", 1, cramjam.gzip.compress(zeros)),
        ("snappy", 2, cramjam.snappy.compress_raw(zeros)),
        ("lz4", 3, cramjam.lz4.compress(zeros)),
        ("zstd", 4, cramjam.zstd.compress(zeros)),
    ):
        yield _produce(f"{name}: 16 MiB in {len(packed) >> 10} KiB", [batch_of(bytes(packed), 1, codec)])
    headers = cramjam.zstd.compress(records_with_headers(80, 100_000))
    yield _produce("zstd: 80 records with 100,000 headers", [batch_of(bytes(headers), 80, 4)])
    yield _produce("16 MiB in one record", [batch_of(many_records(1, bytes(16 << 20)), 1)])
    yield _produce("a queue, 20,000 records", [batch_of(many_records(20_000), 20_000)], QUEUE)
    values = bytes(cramjam.zstd.compress(many_records(15, bytes(1 << 20))))
    yield _produce("a queue, 15 MiB as zstd", [batch_of(values, 15, 4)], QUEUE)


def records_with_headers(count: int, headers: int) -> bytes:
    out = bytearray()
    for number in range(count):
        rest = b"\0" + varint(0) + varint(number) + b"\0" + b"\0" + varint(headers) + b"\0\0" * headers
        out += varint(len(rest)) + rest
    return bytes(out)


def fetch_floods() -> Iterator[Flood]:
    name = TOPIC.encode()
    for count, spread in ((9_990, PARTITIONS), (9_990, 1)):
        parts = b"".join(struct.pack(">iiqqi", each % spread, -1, 0, -1, 1 << 20) for each in range(count))
        body = struct.pack(">iiiibii", -1, 0, 1, 16 << 20, 0, 0, -1) + struct.pack(">ih", 1, len(name)) + name
        body += struct.pack(">i", count) + parts + b"\0\0\0\0"
        yield Flood(f"Fetch 10: {count} partitions, {spread} different", 1, 10, body, False)
    names = b"".join(struct.pack(">h", 6) + b"n%05d" % each + struct.pack(">i", 0) for each in range(9_990))
    body = struct.pack(">iiiibii", -1, 0, 1, 16 << 20, 0, 0, -1) + struct.pack(">i", 9_990) + names + b"\0\0\0\0"
    yield Flood("Fetch 10: 9,990 topics", 1, 10, body, False)


def group_floods(topic_id: bytes) -> Iterator[Flood]:
    """Yield requests of the consumer protocol and of share groups."""
    for key, version, name, count in ((68, 1, "ConsumerGroupHeartbeat", 9_990), (76, 1, "ShareGroupHeartbeat", 990)):
        writer = BodyWriter(True)
        writer.string(f"group-{key}")
        writer.string("member")
        writer.int32(0)
        if key == 68:
            writer.string(None)
        writer.string(None)
        if key == 68:
            writer.int32(60_000)
        writer.count(count)
        for each in range(count):
            writer.string(TOPIC if each == 0 else f"n{each}")
        if key == 68:
            writer.string(None)
            writer.string(None)
            writer.count(0)
        writer.end()
        yield Flood(f"{name} {version}: {count} names", key, version, bytes(writer.data), True)
    for key, name in ((69, "ConsumerGroupDescribe"), (77, "ShareGroupDescribe")):
        writer = BodyWriter(True)
        writer.count(990)
        for each in range(990):
            writer.string(f"g{each}")
        writer.boolean(False)
        writer.end()
        yield Flood(f"{name}: 990 groups", key, 1, bytes(writer.data), True)
    for epoch, name, ranges in ((0, "session", 0), (1, "1,000 ranges of 10 gaps", 1_000), (2, "10,000 ranges", 1)):
        writer = BodyWriter(True)
        writer.string("share")
        writer.string("member")
        writer.int32(epoch)
        for number in (0, 0, 1 << 20, 0, 0):
            writer.int32(number)
        writer.int8(0)
        writer.boolean(False)
        partitions = 1 if ranges else PARTITIONS
        writer.count(1)
        writer.data += topic_id
        writer.count(partitions if ranges != 1 else PARTITIONS)
        for index in range(partitions if ranges != 1 else PARTITIONS):
            writer.int32(index)
            own = ranges if ranges > 1 else 99 * ranges
            writer.count(own)
            for each in range(own):
                writer.int64(each * 10)
                writer.int64(each * 10 + (9 if ranges > 1 else 0))
                writer.count(1)
                writer.int8(0)
                writer.end()
            writer.end()
        writer.end()
        writer.count(0)
        writer.end()
        yield Flood(f"ShareFetch 2: {name}", 78, 2, bytes(writer.data), True)
    writer = BodyWriter(True)
    writer.count(1)
    writer.string("share")
    writer.count(1)
    writer.string(TOPIC)
    writer.count(9_990)
    for each in range(9_990):
        writer.int32(each % PARTITIONS)
    writer.end()
    writer.end()
    writer.end()
    yield Flood("DescribeShareGroupOffsets: 9,990 partitions", 90, 1, bytes(writer.data), True)


# -- the broker


class TimedBroker:
    """A broker that tells its longest iteration (held.py), with a topic, a queue and a connection."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "notes"
        command = [sys.executable, "-P", str(Path(__file__).with_name("held.py")), str(self._notes)]
        settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "log.level": "error"}
        self.process = BrokerProcess(folder / "data", command=command, settings=settings)

    def __enter__(self) -> Self:
        self.process.start()
        assert self.process.ready is not None
        self._address = ("127.0.0.1", self.process.ready.listeners["kafka"][1])
        self.process.api("PUT", f"/api/queues/%2F/{QUEUE}", {"durable": True})
        create = api_types("CreateTopics")[0]
        topic = create.CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        answer = self.ask(Flood("", 19, 2, bytes(create(topics=[topic], timeout_ms=9).encode(version=2)), False))
        assert TOPIC.encode() in answer
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def topic_id(self) -> bytes:
        name = TOPIC.encode()
        answer = self.ask(Flood("", 3, 12, b"\2" + bytes(16) + bytes([len(name) + 1]) + name + b"\0\0\0\0", True))
        at = answer.index(name) + len(name)
        return answer[at : at + 16]

    def connect(self) -> socket.socket:
        return socket.create_connection(self._address, 120)

    def ask(self, flood: Flood, client: socket.socket | None = None) -> bytes:
        """Send a request and return the answer; nothing if the broker closes the connection."""
        with contextlib.ExitStack() as stack:
            own = client or stack.enter_context(self.connect())
            with contextlib.suppress(ConnectionError):
                own.sendall(flood.frame)
                head = own.recv(4, socket.MSG_WAITALL)
                if len(head) == 4:
                    return own.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
        return b""

    def held_ms(self, flood: Flood, client: socket.socket | None = None) -> tuple[float, float, bool]:
        """Return the longest iteration and all processor time while a request is handled, in ms, and whether there was
        an answer.
        """
        begin = self._notes.with_suffix(".begin")
        begin.touch()
        ping = Flood("", 18, 0, b"", False)
        while begin.exists():
            self.ask(ping)
        before_s = self._processor_s()
        answer = self.ask(flood, client)
        self.ask(ping)
        time.sleep(0.05)
        return float(self._notes.read_text() or 0), (self._processor_s() - before_s) * 1000, answer != b""

    def _processor_s(self) -> float:
        threads = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat").read_text().split()
        return int(threads[0]) / 1e9


def all_floods(topic_id: bytes) -> Iterator[Flood]:
    yield from tag_floods()
    yield from produce_floods()
    yield from fetch_floods()
    yield from group_floods(topic_id)
    yield from defined_floods()


class Cost(NamedTuple):
    """The processor time of a request.

    Attributes:
        held_ms: of the longest iteration of the event loop.
        all_ms: of all iterations.
    """

    held_ms: float
    all_ms: float
    flood: Flood
    is_answered: bool

    @property
    def mib_ms(self) -> float:
        """Return the time for a MiB of such requests."""
        return self.all_ms * (1 << 20) / len(self.flood.frame)


def costs_of(broker: TimedBroker, wanted: str = "") -> Iterator[Cost]:
    """Send all requests whose names contain `wanted`, each on a connection of its own; share sessions on one."""
    shared = broker.connect()
    for flood in all_floods(broker.topic_id()):
        if wanted in flood.name:
            client = shared if flood.name.startswith("ShareFetch") else None
            held_ms, all_ms, is_answered = broker.held_ms(flood, client)
            yield Cost(held_ms, all_ms, flood, is_answered)
    shared.close()


HEADING: Final = "longest ms   ms a MiB      KiB  answer  request"


def row(cost: Cost) -> str:
    """Return a row of the table."""
    answer = "yes" if cost.is_answered else "no"
    size = len(cost.flood.frame) >> 10
    return f"{cost.held_ms:10.1f} {cost.mib_ms:10.0f} {size:8d}  {answer:6}  {cost.flood.name}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, TimedBroker(Path(folder)) as broker:
        print(HEADING)
        for each in costs_of(broker, " ".join(sys.argv[1:])):
            print(row(each), flush=True)
        assert "Traceback" not in broker.process.stderr, broker.process.stderr


if __name__ == "__main__":
    main()
