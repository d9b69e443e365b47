"""Curves: the broker's CPU time for a message, and its memory, as the number of something else grows.

    python -m interop.bench.curves [--curves queues,topic] [--far] [--publish]

The CPU time is that of the broker's process, so other load on the machine changes it little. Each point has a broker of
its own. A curve grows by the largest factor between the cost of a point and that of one before it; falling costs are no
growth. Exit code 1: a curve grows by more than its limit.

`--far` adds the last point of each curve: minutes, and some GB of disk. `--publish` writes README.md and `curves.svg`.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from amqpd.protocol.field_table import encode_table
from amqpd.testing import BrokerProcess

from .connections import CHANNEL_OPEN_OK, HANDSHAKE, frame, method, rss, short
from .picture import draw_curves
from .report import replace_between, table
from .starts import START_S

HERE: Final = Path(__file__).resolve().parent
BEGIN, END = "<!-- curves -->", "<!-- curves end -->"
MESSAGES: Final = 100_000
CHUNK: Final = 200
"""Messages that are published before their deliveries are awaited."""
IDLE_S: Final = 0.01
"""A broker that uses less CPU time in half a second is idle."""
BODY: Final = b"x" * 100
TRANSIENT, PERSISTENT = b"\x00\x00", b"\x10\x00\x02"
BODY_FRAME_BYTES: Final = 131_064
QOS_OK, DECLARE_OK, DELIVER, GET_OK = (60, 11), (50, 11), (60, 60), (60, 71)
NO_ACK, NO_WAIT = 2, 8
"""Bits of basic.consume."""


class Point(NamedTuple):
    """A measurement. cpu_us: for a message; memory_bytes: resident, afterwards."""

    count: int
    cpu_us: float
    memory_bytes: int


class Client:
    """A connection with channel 1 open. It blocks."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray()
        self._at = 0
        self.send(HANDSHAKE)
        self.wait(struct.unpack(">HH", CHANNEL_OPEN_OK))

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield kind and payload of each frame. Raises: ConnectionError."""
        data = self._data
        while True:
            while len(data) - self._at >= 7:
                kind, _, size = struct.unpack_from(">BHI", data, self._at)
                if len(data) - self._at < size + 8:
                    break
                payload = bytes(data[self._at + 7 : self._at + 7 + size])
                self._at += size + 8
                yield kind, payload
            del data[: self._at]
            self._at = 0
            piece = self.socket.recv(1 << 20)
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data += piece

    def wait(self, wanted: tuple[int, ...]) -> bytes:
        """Read up to a method, given by class and method id, and return its arguments. Raises: ConnectionError."""
        for kind, payload in self.frames():
            if kind != 1:
                continue
            ids = struct.unpack_from(">HH", payload)
            if ids == wanted:
                return payload[4:]
            if ids in ((10, 50), (20, 40)):
                raise ConnectionError(f"refused: {payload[6:]!r}")
        raise AssertionError

    def receive(self, count: int, wanted: tuple[int, int] = DELIVER) -> list[int]:
        """Read this many whole messages, and return their delivery tags."""
        tags: list[int] = []
        missing = 0
        for kind, payload in self.frames():
            if kind == 1:
                ids = struct.unpack_from(">HH", payload)
                if ids != wanted:
                    raise ConnectionError(f"{ids} instead of a message: {payload!r}")
                at = 4 if wanted == GET_OK else 5 + payload[4]
                tags.append(struct.unpack_from(">Q", payload, at)[0])
                continue
            missing = struct.unpack_from(">Q", payload, 4)[0] if kind == 2 else missing - len(payload)
            if missing == 0 and len(tags) == count:
                return tags
        raise AssertionError

    def declare(self, queue: str, durable: bool = False, arguments: bytes = b"\0\0\0\0", bits: int = 0) -> int:
        """Declare a queue. Return its number of messages."""
        self.send(declaration(queue, durable * 2 | bits, arguments))
        return int(struct.unpack(">I", self.wait(DECLARE_OK)[-8:-4])[0])

    def consume(
        self, queue: str, count: int = 1, bits: int = NO_ACK, channel: int = 1, table: bytes = b"\0\0\0\0"
    ) -> None:
        """Start consumers. No prefetch limit is set."""
        tags = (short(f"c{number:06}") for number in range(count))
        calls = [b"\0\0" + short(queue) + tag + bytes([bits | NO_WAIT]) + table for tag in tags]
        self.send(*[method(channel, 60, 20, call) for call in calls])
        self.sync()

    def sync(self) -> None:
        """Wait until the broker has done everything before this."""
        self.send(method(1, 60, 10, struct.pack(">IHB", 0, 0, 0)))
        self.wait(QOS_OK)


def declaration(queue: str, bits: int, arguments: bytes = b"\0\0\0\0") -> bytes:
    return method(1, 50, 10, b"\0\0" + short(queue) + bytes([bits]) + arguments)


def message(exchange: str, key: str, properties: bytes = TRANSIENT, body: bytes = BODY) -> bytes:
    """Encode a publish on channel 1."""
    pieces = [frame(3, 1, body[at : at + BODY_FRAME_BYTES]) for at in range(0, len(body), BODY_FRAME_BYTES)]
    head = frame(2, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
    return method(1, 60, 40, b"\0\0" + short(exchange) + short(key) + b"\0") + head + b"".join(pieces)


def cpu_s(broker: BrokerProcess) -> float:
    """Return the CPU seconds of the broker's threads so far, to a nanosecond."""
    threads = Path(f"/proc/{broker.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text("ascii").split()[0]) for each in threads) / 1e9


def wait_until_idle(broker: BrokerProcess) -> None:
    """Wait until the broker has finished jobs of the setup, such as its audit log; at most two minutes."""
    for _ in range(240):
        before = cpu_s(broker)
        time.sleep(0.5)
        if cpu_s(broker) - before < IDLE_S:
            return


def measured(broker: BrokerProcess, count: int, chunk: Callable[[int], float], share: float = 1.0) -> Point:
    """Measure what a message costs. It is the median of ten parts, so a job of the broker in between does not count.

    Args:
        chunk: Sends some messages and returns how many. It is called with 0, 1, 2 ... until there are enough.
        share: How many are enough, as a share of MESSAGES.
    """
    chunk(0)
    wait_until_idle(broker)
    number, costs = 0, []
    for _ in range(10):
        done, before = 0.0, cpu_s(broker)
        while done < MESSAGES * share / 10:
            number += 1
            done += chunk(number)
        costs.append((cpu_s(broker) - before) / done * 1e6)
    return Point(count, statistics.median(costs), rss(broker))


def round_trip(client: Client, data: bytes, _number: int) -> int:
    """Publish a chunk and read its deliveries."""
    client.send(data)
    client.receive(CHUNK)
    return CHUNK


@contextlib.contextmanager
def running(data_dir: Path) -> Iterator[BrokerProcess]:
    """Run a broker. It is killed in the end: nothing of it is needed."""
    with BrokerProcess(data_dir, start_timeout_s=START_S, settings={"log.level": "error"}) as broker:
        yield broker
        broker.kill()


def plain(broker: BrokerProcess, count: int) -> Point:
    """Measure a transient queue with a consumer, beside whatever else there is."""
    client = Client(broker.amqp_port)
    client.declare("measured")
    client.consume("measured")
    return measured(broker, count, partial(round_trip, client, message("", "measured") * CHUNK))


# -- the curves


def filled(kind: str, count: int, data_dir: Path) -> Point:
    """Measure beside queues or vhosts that were there at the start."""
    command = [sys.executable, "-P", HERE / "starts.py", "--fill", data_dir, kind, str(count), "1"]
    subprocess.run(command, check=True)
    with running(data_dir) as broker:
        return plain(broker, count)


def bound(kind: str, count: int, data_dir: Path) -> Point:
    """Measure an exchange with bindings, one of which matches."""
    middle = count // 2
    arguments = (lambda number: {"x-match": "all", "n": number}) if kind == "headers" else (lambda _: {})
    pattern = "a{}.*.c" if kind == "topic" else "a{}.b.c"
    table_of = encode_table({"n": middle})
    properties = b"\x20\x00" + table_of if kind == "headers" else TRANSIENT
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured")
        client.consume("measured")
        for number in range(count):
            key, given = short(pattern.format(number)), encode_table(arguments(number))
            client.send(method(1, 50, 20, b"\0\0" + short("measured") + short(f"amq.{kind}") + key + b"\1" + given))
        client.sync()
        data = message(f"amq.{kind}", f"a{middle}.b.c", properties) * CHUNK
        return measured(broker, count, partial(round_trip, client, data))


def connected(count: int, data_dir: Path) -> Point:
    """Measure connections with a queue and a consumer each; a chunk goes to the next of them."""
    with running(data_dir) as broker:
        publisher = Client(broker.amqp_port)
        clients = [Client(broker.amqp_port) for _ in range(count)]
        for number, client in enumerate(clients):
            client.declare(f"q{number}")
            client.consume(f"q{number}")

        def chunk(number: int) -> int:
            publisher.send(message("", f"q{number % count}") * CHUNK)
            clients[number % count].receive(CHUNK)
            return CHUNK

        return measured(broker, count, chunk)


def consumed(count: int, data_dir: Path) -> Point:
    """Measure a queue with many consumers."""
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured")
        client.consume("measured", count)
        return measured(broker, count, partial(round_trip, client, message("", "measured") * CHUNK))


def streamed(count: int, data_dir: Path) -> Point:
    """Measure a delivery of a stream with many readers."""
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured", True, encode_table({"x-queue-type": "stream"}))
        for channel in range(1, count + 1):
            if channel > 1:
                client.send(method(channel, 20, 10, short("")))
            client.send(method(channel, 60, 10, struct.pack(">IHB", 0, 65535, 0)))
            client.wait(QOS_OK)
            client.consume("measured", 1, 0, channel, encode_table({"x-stream-offset": "next"}))
        data = message("", "measured", PERSISTENT)

        def chunk(_number: int) -> int:
            client.send(data * 20)
            client.receive(20 * count)
            return 20 * count

        return measured(broker, count, chunk, min(1.0, 4000 * count / MESSAGES))


def waiting(count: int, data_dir: Path) -> Point:
    """Measure a durable queue in which messages wait: a persistent message in, one out."""
    data = message("", "measured", PERSISTENT) * CHUNK
    get = method(1, 60, 70, b"\0\0" + short("measured") + b"\1") * CHUNK
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured", True)
        for _ in range(count // CHUNK):
            client.send(data)
        while client.declare("measured", True) < count // CHUNK * CHUNK:
            pass

        def chunk(_number: int) -> int:
            client.send(data, get)
            client.receive(CHUNK, GET_OK)
            return CHUNK

        return measured(broker, count, chunk)


def unacked(count: int, data_dir: Path) -> Point:
    """Measure a consumer that has not acknowledged its first messages, and acknowledges each later one."""
    data = message("", "measured") * CHUNK
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured")
        client.consume("measured", 1, 0)
        for _ in range(count // CHUNK):
            round_trip(client, data, 0)

        def chunk(_number: int) -> int:
            client.send(data)
            client.send(*[method(1, 60, 80, struct.pack(">QB", tag, 0)) for tag in client.receive(CHUNK)])
            return CHUNK

        return measured(broker, count, chunk)


def sized(count: int, data_dir: Path) -> Point:
    """Measure a KiB of messages of this many bytes."""
    data = message("", "measured", TRANSIENT, b"x" * count)
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)
        client.declare("measured")
        client.consume("measured")

        def chunk(_number: int) -> float:
            client.send(data)
            client.receive(1)
            return count / 1024

        return measured(broker, count, chunk, max(1.0, 20 * count / 1024 / MESSAGES))


def governed(count: int, data_dir: Path) -> Point:
    """Measure the declare of a transient queue, which none of the policies matches."""
    each = {"vhost": "/", "definition": {"max-length": 9}, "apply-to": "queues"}
    policies = [{**each, "name": f"p{number}", "pattern": f"^x{number}$"} for number in range(count)]
    with running(data_dir) as broker:
        broker.api("POST", "/api/definitions", {"policies": policies}, timeout_s=START_S)
        client = Client(broker.amqp_port)

        def chunk(number: int) -> int:
            client.send(*[declaration(f"q{number}.{each}", 0) for each in range(CHUNK)])
            for _ in range(CHUNK):
                client.wait(DECLARE_OK)
            return CHUNK

        return measured(broker, count, chunk, 0.02)


def declared(count: int, data_dir: Path) -> Point:
    """Measure the declare of a durable queue, when a client sends so many without waiting for replies."""
    with running(data_dir) as broker:
        client = Client(broker.amqp_port)

        def chunk(number: int) -> int:
            client.send(*[declaration(f"q{number}.{each}", 2) for each in range(count)])
            for _ in range(count):
                client.wait(DECLARE_OK)
            return count

        return measured(broker, count, chunk, 0.02)


class Curve(NamedTuple):
    """A curve. unit: what is counted, and what the cost is for. counts: the last one is far."""

    unit: str
    counts: Sequence[int]
    measure: Callable[[int, Path], Point]
    limit: float = 1.5


CURVES: Final = {
    "queues": Curve("durable queues; a message", (1, 100, 10_000, 100_000), partial(filled, "queues")),
    "vhosts": Curve("vhosts; a message", (1, 100, 1000, 5000), partial(filled, "vhosts")),
    "topic": Curve("bindings with a `*`; a message", (10, 1000, 100_000, 1_000_000), partial(bound, "topic")),
    "direct": Curve("bindings; a message", (10, 1000, 100_000, 1_000_000), partial(bound, "direct")),
    "headers": Curve("bindings; a message", (10, 1000, 100_000, 1_000_000), partial(bound, "headers")),
    "connections": Curve("connections with a consumer; a message", (1, 100, 2000, 10_000), connected, limit=4.0),
    "consumers": Curve("consumers of one queue; a message", (1, 100, 2000, 10_000), consumed),
    "readers": Curve("readers of one stream; a delivery", (1, 30, 300, 1000), streamed),
    "backlog": Curve("messages that wait; a persistent message", (100, 10_000, 1_000_000, 10_000_000), waiting),
    "unacked": Curve("unacknowledged messages; a message", (100, 10_000, 200_000, 1_000_000), unacked),
    "size": Curve("bytes of a message; a KiB", (1024, 65_536, 1 << 20, 128 << 20), sized, limit=3.0),
    "policies": Curve("policies; a declare of a queue", (10, 100, 1000, 5000), governed, limit=3.0),
    "declares": Curve("declares without waiting; a durable declare", (1, 30, 1000, 10_000), declared),
}


def growth(points: Sequence[Point]) -> float:
    """Return the largest factor between the cost of a point and that of one before it; 1 if costs only fall."""
    factors = [later.cpu_us / before.cpu_us for at, later in enumerate(points) for before in points[:at]]
    return max([1.0, *factors])


def show(found: dict[str, list[Point]]) -> str:
    """Return a Markdown table with a row for each curve."""
    rows = [["curve", "of what; cost of what", "CPU us (count: cost)", "memory in MB", "grows by", "limit"]]
    for name, points in found.items():
        costs = " · ".join(f"{point.count:,}: {point.cpu_us:.3g}" for point in points)
        memory = " · ".join(f"{point.memory_bytes / 1e6:.0f}" for point in points)
        rows.append([name, CURVES[name].unit, costs, memory, f"{growth(points):.2f}x", f"{CURVES[name].limit:g}x"])
    return table(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print each point, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", default=",".join(CURVES), help="names, separated by commas (default: all)")
    parser.add_argument("--far", action="store_true", help="also the last point of each")
    parser.add_argument("--publish", action="store_true", help="write README.md and curves.svg")
    parser.add_argument("--directory", type=Path, help="where the data goes (default: a temporary one)")
    given = parser.parse_args(arguments)
    names = given.curves.split(",")
    if unknown := [name for name in names if name not in CURVES]:
        parser.error(f"there is no curve {unknown[0]}; there are {', '.join(CURVES)}")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited by the broker
    found: dict[str, list[Point]] = {}
    for name in names:
        curve = CURVES[name]
        for count in curve.counts if given.far else curve.counts[:-1]:
            directory = Path(tempfile.mkdtemp(dir=given.directory))
            try:
                point = curve.measure(count, directory / "data")
            finally:
                shutil.rmtree(directory)
            found.setdefault(name, []).append(point)
            memory = f"{point.memory_bytes / 1e6:.0f} MB"
            print(f"{name:<12} {count:>11,} {point.cpu_us:>10.3f} us {memory:>9}", flush=True)
    text = show(found)
    print(f"\n{text}")
    if given.publish:
        remark = f"{datetime.now(UTC):%Y-%m-%d}, `python -m interop.bench.curves{' --far' * given.far}`:"
        replace_between(HERE / "README.md", BEGIN, END, f"{remark}\n\n{text}\n\n![The curves](curves.svg)")
        picture = draw_curves({name: [each[:2] for each in points] for name, points in found.items()}, "CPU us")
        (HERE / "curves.svg").write_text(picture, "utf-8")
    over = [name for name, points in found.items() if growth(points) > CURVES[name].limit]
    if over:
        print(f"above the limit: {', '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
