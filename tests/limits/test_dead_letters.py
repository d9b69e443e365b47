"""Floods of dead letters: the queue's own consumer and other clients are served meanwhile.

Messages are dead-lettered when they expire or when a full queue drops them. Each test prints its figures (`-s`):
the wait of a consumer of 100 messages a second of the flooded queue (from head to delivery), round trips of a
witness with its own queue, and memory.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from quickclient import Link, Message, connect
from slow import Machine, SlowConsumer, flooding, percentile, round_trips, table

from amqpd.testing import BrokerProcess

MEMORY_MAX_MB: Final = 200.0
ATTEMPTS: Final = 3
SHORT_S: Final = 4.0
"""Long enough that one wait is not the 99th percentile. Publishers are at full speed when the first messages expire, so
the messages at the queue's head are expired until dead-lettering has caught up: once, for up to 0.9 s.
"""
LONG_S: Final = 20.0


class Case(NamedTuple):
    """`arguments`: queue arguments besides the dead-letter exchange. `target`: whether that exchange has a queue."""

    kind: str
    arguments: dict[str, int]
    size: int = 16
    target: bool = True


CASES: Final = {
    "expired": Case("transient", {"x-message-ttl": 500}),
    "expired, durable": Case("durable", {"x-message-ttl": 500}),
    "expired, 1 KiB, durable": Case("durable", {"x-message-ttl": 500}, size=1024),
    "expired, no target": Case("transient", {"x-message-ttl": 500}, target=False),
    "maxlen": Case("transient", {"x-max-length": 1000}),
    "maxlen, durable": Case("durable", {"x-max-length": 1000}),
}


async def measure(data_dir: Path, name: str, seconds: float, *, strict: bool) -> float:
    """Return the worse of the two waits divided by its bound."""
    case = CASES[name]
    broker = BrokerProcess(data_dir, settings={"log.level": "error"})
    try:
        await asyncio.to_thread(broker.start)
        link = await connect(broker.amqp_port)
        durable = case.kind == "durable"
        await link.declare_exchange("dlx", "fanout")
        if case.target:
            await link.declare_queue("dead", durable=durable)
            await link.bind("dead", "dlx")
        arguments: dict[str, int | str] = {**case.arguments, "x-dead-letter-exchange": "dlx"}
        await link.declare_queue("flood", durable=durable, table=table(arguments))
        consumer = SlowConsumer(link)
        machine = Machine(broker.pid)
        async with flooding(broker.amqp_port, "flood", case.kind, seconds, size=case.size) as report:
            consuming = asyncio.create_task(consumer.consume("flood", 1, seconds))
            watching = asyncio.create_task(round_trips(broker.amqp_port, seconds))
            await machine.watch(seconds)
            await consuming
            round_trips_ms = await watching
        if case.target:
            await check_complete(link, durable=durable, consumer=consumer)
        link.close()
        await link.gone.wait()
        stderr = broker.stderr
    finally:
        await asyncio.to_thread(broker.kill)
    assert "Traceback" not in stderr, stderr
    assert consumer.taken == sorted(consumer.taken) and not consumer.redelivered
    waits = consumer.waits_ms or [seconds * 1000]
    expected = seconds * 100
    print(
        f"\n{name}, {seconds:g} s: {report['published'] / report['seconds']:.0f} published a second; {len(waits)} of "
        f"{expected:.0f} taken, head to delivery p50 {percentile(waits, 0.5):.1f}, p99 {percentile(waits, 0.99):.1f}, "
        f"worst {max(waits):.0f} ms; witness p50 {percentile(round_trips_ms, 0.5):.1f}, p99 "
        f"{percentile(round_trips_ms, 0.99):.1f}, worst {max(round_trips_ms):.0f} ms; the machine's own delay "
        f"{machine.late_ms:.1f}; RssAnon {machine.peak_mb:.0f} MB"
    )
    assert machine.peak_mb < MEMORY_MAX_MB
    worse = max(percentile(waits, 0.99), percentile(round_trips_ms, 0.99))
    return worse / machine.bound_ms(strict=strict, flooded=True)


async def check_complete(link: Link, *, durable: bool, consumer: SlowConsumer) -> None:
    """Check that each message was consumed, dead-lettered or is still queued, and that dead letters are in order."""
    before = -1
    while True:
        _, left, _ = await link.declare_queue("flood", durable=durable, passive=True)
        _, dead, _ = await link.declare_queue("dead", durable=durable, passive=True)
        if dead == before:
            break
        before = dead
        await asyncio.sleep(1.0)
    consumed = [number for _, number in consumer.taken]
    dead_numbers: list[int] = []
    done = asyncio.Event()

    def deliver(message: Message) -> None:
        dead_numbers.append(int(message.body[8:16]))
        if len(dead_numbers) == dead:
            done.set()

    link.on_deliver = deliver
    await link.qos(0)
    await link.consume("dead", no_ack=True, tag="letters")
    await asyncio.wait_for(done.wait(), 60)
    assert dead_numbers == sorted(dead_numbers)
    assert sorted(dead_numbers + consumed) == list(range(len(dead_numbers) + len(consumed))), "dead letters are missing"
    print(f"\n{len(dead_numbers)} letters, {len(consumed)} taken, {left} left", end="")


@pytest.mark.parametrize("name", ["expired", "maxlen, durable"])
async def test_flood_of_dead_letters_does_not_delay_consumers(tmp_path: Path, name: str) -> None:
    best = 1e9
    for attempt in range(ATTEMPTS):
        best = min(best, await measure(tmp_path / f"data{attempt}", name, SHORT_S, strict=False))
        if best < 1:
            break
    assert best < 1, f"{name}: the 99th percentile is {best:.1f} times what it may be"


@pytest.mark.on_demand
@pytest.mark.compiled_only
@pytest.mark.parametrize("name", CASES)
async def test_long_flood_of_dead_letters_does_not_delay_consumers(tmp_path: Path, name: str) -> None:
    assert await measure(tmp_path / "data", name, LONG_S, strict=True) < 1
