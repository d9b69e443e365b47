"""Unbounded publishers and a slow consumer: memory and the consumer's wait stay bounded.

Publishers send at full speed while a consumer takes 100 messages a second. For every kind of queue the broker's
memory stays under 200 MB. A message at the head is delivered at once, at the end as at the beginning. Other load
only adds to a wait, so the short forms count the best of ATTEMPTS. Each test prints its figures (`-s`).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from quickclient import Link, Message, connect
from slow import Machine, SlowConsumer, anon_mb, declare, flooding, percentile

from amqpd.testing import BrokerProcess

MEMORY_MAX_MB: Final = 200.0
ATTEMPTS: Final = 3
SHORT_S: Final = 2.0
LONG_S: Final = 60.0


class Case(NamedTuple):
    """A kind of flood. `ttl_ms`: of the queue. `window`: of the publishers, 0 without confirms."""

    kind: str
    links: int = 1
    size: int = 1024
    window: int = 0
    prefetch: int = 1
    ttl_ms: int = 0


CASES: Final = {
    "durable": Case("durable"),
    "transient": Case("transient"),
    "small": Case("transient", size=16, prefetch=10),
    "publishers": Case("durable", links=20),
    "confirms": Case("durable", window=5000, prefetch=50),
    "ttl": Case("transient", ttl_ms=500),
}


class Measured(NamedTuple):
    """`early_ms`, `late_ms`: the consumer's waits in the first third and later. `published`: messages a second."""

    early_ms: list[float]
    late_ms: list[float]
    machine: Machine
    published: float
    report: dict[str, Any]

    def p99_ms(self) -> float:
        return percentile(self.early_ms + self.late_ms, 0.99)


async def measure(data_dir: Path, name: str, seconds: float) -> Measured:
    case = CASES[name]
    broker = BrokerProcess(data_dir, settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await declare(link, "flood", durable=case.kind == "durable", ttl_ms=case.ttl_ms)
        consumer = SlowConsumer(link)
        machine = Machine(broker.pid)
        async with flooding(
            broker.amqp_port, "flood", case.kind, seconds, size=case.size, links=case.links, window=case.window
        ) as report:
            consuming = asyncio.create_task(consumer.consume("flood", case.prefetch, seconds))
            await machine.watch(seconds)
            await consuming
        await link.cancel()  # otherwise one more message may be counted as ready and then delivered
        _, left, _ = await link.declare_queue("flood", durable=case.kind == "durable", passive=True)
        link.close()
        await link.gone.wait()
        stderr = broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
    assert "Traceback" not in stderr, stderr
    check_messages(case, consumer, report, left)
    third = consumer.at_s[0] + seconds / 3
    early = [wait for at, wait in zip(consumer.at_s, consumer.waits_ms, strict=True) if at < third]
    late = [wait for at, wait in zip(consumer.at_s, consumer.waits_ms, strict=True) if at >= third]
    measured = Measured(early, late, machine, report["published"] / report["seconds"], report)
    print(
        f"\n{name}, {seconds:g} s: {measured.published:.0f} published a second, {left} left; {len(consumer.waits_ms)} "
        f"taken, head to delivery p50 {percentile(early + late, 0.5):.2f}, p99 {measured.p99_ms():.2f} ms "
        f"(first third {percentile(early, 0.99):.2f}, then {percentile(late, 0.99):.2f}), "
        f"the machine's own delay {machine.late_ms:.2f}; RssAnon "
        f"{machine.peak_mb:.0f} MB"
    )
    return measured


def check_messages(case: Case, consumer: SlowConsumer, report: dict[str, Any], left: int) -> None:
    """Check that each message arrived once, in its publisher's order, and that none is lost.

    Only a TTL may skip messages.
    """
    assert consumer.redelivered == 0
    last_numbers: dict[int, int] = {}
    for publisher, number in consumer.taken:
        before = last_numbers.get(publisher, -1)
        assert number == before + 1 if not case.ttl_ms else number > before, (publisher, before, number)
        last_numbers[publisher] = number
    assert report["nacked"] == 0
    if case.window:
        assert report["confirmed"] == report["published"]
        if not case.ttl_ms:
            assert left + len(consumer.taken) == report["published"]
    if case.links > 1:
        # The broker read all publishers at the same time, not one after the other.
        assert min(report["each"]) > max(report["each"]) / 4, report["each"]


@pytest.mark.parametrize("name", CASES)
async def test_flood_does_not_delay_the_consumer(tmp_path: Path, name: str) -> None:
    best = 1e9
    for attempt in range(ATTEMPTS):
        measured = await measure(tmp_path / f"data{attempt}", name, SHORT_S)
        assert measured.machine.peak_mb < MEMORY_MAX_MB
        best = min(best, measured.p99_ms() / measured.machine.bound_ms(strict=False, flooded=True))
        if best < 1:
            break
    assert best < 1, f"{name}: the 99th percentile is {best:.1f} times what it may be"


def disk_speed(directory: Path, size: int) -> float:
    """Return the write speed of a file in bytes a second, written in synced pieces of 4 MiB."""
    piece = bytes(4 << 20)
    path = directory / "pace"
    started = time.monotonic()
    with path.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
            file.flush()
            os.fdatasync(file.fileno())
    elapsed_s = time.monotonic() - started
    path.unlink()
    return size / elapsed_s


@pytest.mark.on_demand
@pytest.mark.compiled_only
@pytest.mark.parametrize("name", CASES)
async def test_flood_of_60_s_does_not_delay_the_consumer(tmp_path: Path, name: str) -> None:
    """Needs up to 30 GB of disk. The publisher of a durable queue reaches half the disk's speed, or 100 MB/s."""
    disk_bytes_per_s = await asyncio.to_thread(disk_speed, tmp_path, 1 << 30)
    measured = await measure(tmp_path / "data", name, LONG_S)
    published = measured.published * CASES[name].size
    print(f"the bare disk: {disk_bytes_per_s / 1e6:.0f} MB/s, the publishers {published / 1e6:.0f} MB/s")
    assert measured.machine.peak_mb < MEMORY_MAX_MB
    assert measured.p99_ms() < measured.machine.bound_ms(strict=True)
    assert percentile(measured.late_ms, 0.99) < 2 * percentile(measured.early_ms, 0.99) + measured.machine.late_ms
    if name == "durable":
        assert published > min(disk_bytes_per_s / 2, 100e6)


async def test_acks_behind_publishes_of_same_connection_are_processed(tmp_path: Path) -> None:
    """One connection publishes at full speed and consumes with prefetch 10.

    Each ack is behind megabytes of publishes, and deliveries must continue.
    """
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        await link.declare_queue("both")
        await link.confirm_select()
        await link.qos(10)
        delivered: list[bytes] = []
        link.on_confirm = lambda _tag, _multiple, acked: None if acked else pytest.fail("nacked")

        def deliver(message: Message) -> None:
            delivered.append(message.body[:8])
            link.ack(message.tag)

        link.on_deliver = deliver
        await link.consume("both")
        published = 0
        halves = []
        peak = 0.0
        for half in (1, 2):
            end = time.monotonic() + SHORT_S / 2
            while time.monotonic() < end or (len(delivered) <= half * 50 and time.monotonic() < end + 30):
                for _ in range(250):
                    link.publish("", "both", b"\x10\x00\x02", b"%08d" % published + b"." * 8184)
                    published += 1
                await link.writable()
                await asyncio.sleep(0)
            peak = max(peak, anon_mb(broker.pid))
            halves.append(len(delivered))
            assert len(delivered) > half * 50, f"{len(delivered)} deliveries of {published} publishes"
        before = len(delivered)
        async with asyncio.timeout(30):
            while len(delivered) == before:  # noqa: ASYNC110  # `deliver` sets no event
                await asyncio.sleep(0.01)
        assert delivered == [b"%08d" % number for number in range(len(delivered))]
        print(f"\n{published} published, delivered in each half {halves[0]} and {halves[1] - halves[0]}, {peak:.0f} MB")
        assert peak < MEMORY_MAX_MB
        link.close()
    finally:
        await asyncio.to_thread(broker.kill)


CONNECTIONS: Final = 1000
EACH_S: Final = 0.5


class LightClient:
    """A client that sends a message through its own queue every EACH_S seconds."""

    def __init__(self, link: Link, queue: str) -> None:
        self.link = link
        self.queue = queue
        self.round_trips_ms: list[float] = []
        self.sent: list[float] = []
        link.on_deliver = self._deliver

    def _deliver(self, message: Message) -> None:
        self.round_trips_ms.append((time.monotonic() - self.sent[int(message.body)]) * 1000)

    def send(self, due: float) -> None:
        self.link.publish("", self.queue, b"\x00\x00", b"%d" % len(self.sent))
        self.sent.append(due)


def jain(shares: list[float]) -> float:
    """Return Jain's index: 1 if all shares are equal, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


async def traffic(clients: list[LightClient], seconds: float) -> None:
    """Send the clients' messages, evenly spread over time."""
    started = time.monotonic()
    step = EACH_S / len(clients)
    number = 0
    while (due := started + number * step) < started + seconds:
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        clients[number % len(clients)].send(due)
        number += 1
    deadline = time.monotonic() + 30
    while any(len(each.round_trips_ms) < len(each.sent) for each in clients) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_thousand_connections_are_served_equally_during_floods(tmp_path: Path) -> None:
    """Each sends 2 messages a second, next to two clients that send at full speed."""
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        clients = []
        for start in range(0, CONNECTIONS, 50):
            links = await asyncio.gather(*(connect(broker.amqp_port) for _ in range(start, start + 50)))
            for link in links:
                name, _, _ = await link.declare_queue("", durable=False, exclusive=True)
                await link.consume(name, no_ack=True)
                clients.append(LightClient(link, name))
        best, fairest = 1e9, 0.0
        for _ in range(ATTEMPTS):
            for client in clients:
                client.round_trips_ms.clear()
                client.sent.clear()
            opener = await connect(broker.amqp_port)
            await opener.declare_queue("flood")
            async with flooding(broker.amqp_port, "flood", "durable", SHORT_S + 1.0, links=2):
                await asyncio.sleep(0.2)
                machine = Machine(broker.pid)
                watching = asyncio.create_task(machine.watch(SHORT_S))
                await traffic(clients, SHORT_S)
                await watching
            await opener.delete_queue("flood")
            opener.close()
            late = [max(client.round_trips_ms) for client in clients]
            shares = jain([len(client.round_trips_ms) / len(client.sent) for client in clients])
            means = jain([sum(client.round_trips_ms) / len(client.round_trips_ms) for client in clients])
            times_ms = [each for client in clients for each in client.round_trips_ms]
            p99 = percentile(times_ms, 0.99)
            print(
                f"\n{CONNECTIONS} connections, {len(times_ms)} round trips beside 2 floods: "
                f"p50 {percentile(times_ms, 0.5):.1f}, p99 {p99:.1f} ms; "
                f"each's worst: p50 {percentile(late, 0.5):.1f}, p99 {percentile(late, 0.99):.1f}"
                f" ms; Jain's index of shares {shares:.3f}, of mean latency {means:.3f}; the machine's own delay "
                f"{machine.late_ms:.1f} ms; {anon_mb(broker.pid):.0f} MB"
            )
            assert shares > 0.999, "messages of some are missing"
            fairest = max(fairest, means)
            best = min(best, p99 / machine.bound_ms(strict=False, flooded=True))
            if best < 1 and fairest > 0.8:
                break
        assert best < 1, f"the 99th percentile is {best:.1f} times what it may be"
        assert fairest > 0.8, "some wait longer than others"
        for client in clients:
            client.link.close()
    finally:
        await asyncio.to_thread(broker.kill)
