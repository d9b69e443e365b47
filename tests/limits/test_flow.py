"""Publishers without a bound, and a consumer with one: memory, the disk, and the consumer's wait stay as they are.

One or more publishers send as fast as they are read while a consumer takes 100 messages a second. Whatever the queue,
the broker's memory stays under 200 MB, and a message that has come to the head is delivered at once, at the end as at
the beginning. What else the machine does only ever adds to a wait, so the short forms may try again: the best of
ATTEMPTS counts. Each prints what it measured (`-s`).
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
    """What floods what. ttl_ms: of the queue; window: of the publishers, 0 without confirms."""

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
    """waits_ms: early ones and late ones apart. published: messages a second."""

    early_ms: list[float]
    late_ms: list[float]
    machine: Machine
    published: float
    told: dict[str, Any]

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
        ) as told:
            consuming = asyncio.create_task(consumer.consume("flood", case.prefetch, seconds))
            await machine.watch(seconds)
            await consuming
        await link.cancel()  # else one more may be counted as ready, and then be delivered
        _, left, _ = await link.declare_queue("flood", durable=case.kind == "durable", passive=True)
        link.close()
        await link.gone.wait()
        stderr = broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
    assert "Traceback" not in stderr, stderr
    check(case, consumer, told, left)
    third = consumer.at_s[0] + seconds / 3
    early = [wait for at, wait in zip(consumer.at_s, consumer.waits_ms, strict=True) if at < third]
    late = [wait for at, wait in zip(consumer.at_s, consumer.waits_ms, strict=True) if at >= third]
    measured = Measured(early, late, machine, told["published"] / told["seconds"], told)
    print(
        f"\n{name}, {seconds:g} s: {measured.published:.0f} published a second, {left} left; {len(consumer.waits_ms)} "
        f"taken, head to delivery p50 {percentile(early + late, 0.5):.2f}, p99 {measured.p99_ms():.2f} ms "
        f"(first third {percentile(early, 0.99):.2f}, then {percentile(late, 0.99):.2f}), "
        f"the machine's own delay {machine.late_ms:.2f}; RssAnon "
        f"{machine.peak_mb:.0f} MB"
    )
    return measured


def check(case: Case, consumer: SlowConsumer, told: dict[str, Any], left: int) -> None:
    """Every message once and in its publisher's order, none lost; time to live lets messages go, not places."""
    assert consumer.redelivered == 0
    seen: dict[int, int] = {}
    for publisher, number in consumer.taken:
        before = seen.get(publisher, -1)
        assert number == before + 1 if not case.ttl_ms else number > before, (publisher, before, number)
        seen[publisher] = number
    assert told["nacked"] == 0
    if case.window:
        assert told["confirmed"] == told["published"]
        if not case.ttl_ms:
            assert left + len(consumer.taken) == told["published"]
    if case.links > 1:
        # They were all read: none had to wait until another one had said everything.
        assert min(told["each"]) > max(told["each"]) / 4, told["each"]


@pytest.mark.parametrize("name", CASES)
async def test_a_flood(tmp_path: Path, name: str) -> None:
    best = 1e9
    for attempt in range(ATTEMPTS):
        measured = await measure(tmp_path / f"data{attempt}", name, SHORT_S)
        assert measured.machine.peak_mb < MEMORY_MAX_MB
        best = min(best, measured.p99_ms() / measured.machine.bound_ms(strict=False, flooded=True))
        if best < 1:
            break
    assert best < 1, f"{name}: the 99th percentile is {best:.1f} times what it may be"


def disk_pace(directory: Path, size: int) -> float:
    """Bytes a second of a file that is written in pieces of 4 MiB, each synced."""
    piece = bytes(4 << 20)
    path = directory / "pace"
    begun = time.monotonic()
    with path.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
            file.flush()
            os.fdatasync(file.fileno())
    took = time.monotonic() - begun
    path.unlink()
    return size / took


@pytest.mark.on_demand
@pytest.mark.compiled_only
@pytest.mark.parametrize("name", CASES)
async def test_a_flood_of_a_minute(tmp_path: Path, name: str) -> None:
    """Needs up to 30 GB of disk. A durable queue's publisher has half the pace of the bare disk, or 100 MB/s."""
    pace = await asyncio.to_thread(disk_pace, tmp_path, 1 << 30)
    measured = await measure(tmp_path / "data", name, LONG_S)
    published = measured.published * CASES[name].size
    print(f"the bare disk: {pace / 1e6:.0f} MB/s, the publishers {published / 1e6:.0f} MB/s")
    assert measured.machine.peak_mb < MEMORY_MAX_MB
    assert measured.p99_ms() < measured.machine.bound_ms(strict=True)
    assert percentile(measured.late_ms, 0.99) < 2 * percentile(measured.early_ms, 0.99) + measured.machine.late_ms
    if name == "durable":
        assert published > min(pace / 2, 100e6)


async def test_a_connection_that_publishes_hears_its_own_acks(tmp_path: Path) -> None:
    """It sends as fast as it is read and consumes, window 10, on the same connection: each ack stands behind megabytes
    of publishes, and yet the deliveries go on."""
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
            while len(delivered) == before:  # noqa: ASYNC110  # `deliver` has no event
                await asyncio.sleep(0.01)
        assert delivered == [b"%08d" % number for number in range(len(delivered))]
        print(f"\n{published} published, delivered in each half {halves[0]} and {halves[1] - halves[0]}, {peak:.0f} MB")
        assert peak < MEMORY_MAX_MB
        link.close()
    finally:
        await asyncio.to_thread(broker.kill)


CONNECTIONS: Final = 1000
EACH_S: Final = 0.5


class Small:
    """A client with a little traffic: each EACH_S a message to its own queue and back."""

    def __init__(self, link: Link, queue: str) -> None:
        self.link = link
        self.queue = queue
        self.took_ms: list[float] = []
        self.sent: list[float] = []
        link.on_deliver = self._deliver

    def _deliver(self, message: Message) -> None:
        self.took_ms.append((time.monotonic() - self.sent[int(message.body)]) * 1000)

    def say(self, due: float) -> None:
        self.link.publish("", self.queue, b"\x00\x00", b"%d" % len(self.sent))
        self.sent.append(due)


def jain(shares: list[float]) -> float:
    """1: all have the same; 1/n: one has all."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


async def traffic(clients: list[Small], seconds: float) -> None:
    """Their messages are due evenly spread over time."""
    begun = time.monotonic()
    step = EACH_S / len(clients)
    number = 0
    while (due := begun + number * step) < begun + seconds:
        wait = due - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        clients[number % len(clients)].say(due)
        number += 1
    deadline = time.monotonic() + 30
    while any(len(each.took_ms) < len(each.sent) for each in clients) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_thousand_connections_have_equal_shares(tmp_path: Path) -> None:
    """Each has 2 messages a second, beside two clients that send without a bound."""
    broker = BrokerProcess(tmp_path / "data", settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        clients = []
        for start in range(0, CONNECTIONS, 50):
            links = await asyncio.gather(*(connect(broker.amqp_port) for _ in range(start, start + 50)))
            for link in links:
                name, _, _ = await link.declare_queue("", durable=False, exclusive=True)
                await link.consume(name, no_ack=True)
                clients.append(Small(link, name))
        best, fairest = 1e9, 0.0
        for _ in range(ATTEMPTS):
            for client in clients:
                client.took_ms.clear()
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
            late = [max(client.took_ms) for client in clients]
            shares = jain([len(client.took_ms) / len(client.sent) for client in clients])
            means = jain([sum(client.took_ms) / len(client.took_ms) for client in clients])
            took = [each for client in clients for each in client.took_ms]
            p99 = percentile(took, 0.99)
            print(
                f"\n{CONNECTIONS} connections, {len(took)} round trips beside 2 floods: p50 {percentile(took, 0.5):.1f}"
                f", p99 {p99:.1f} ms; each's worst: p50 {percentile(late, 0.5):.1f}, p99 {percentile(late, 0.99):.1f}"
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
