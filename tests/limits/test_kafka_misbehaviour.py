"""Hostile clients of the Kafka listener must not delay an AMQP publisher that waits for each confirm.

The bound of 20 ms at the 99th percentile is tried on demand, on a quiet machine, compiled. The short form takes the
best of ATTEMPTS, and allows for what the machine itself does meanwhile. `-s` prints the figures.

`test_long_requests_are_done_in_slices` has one request after the other. It prints the processor time of the longest
iteration of the event loop, and compares it with the time of all iterations: neither a slow nor a busy machine makes a
share of the work larger.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from kafka_floods import HEADING, TimedBroker, costs_of, row
from quickclient import Link, connect
from slow import LAX_MS, Machine, percentile

from amqpd.testing import BrokerProcess

KINDS: Final = ("bytes_at_random", "floods", "batches", "pipelined", "connections", "slow_readers")
ATTEMPTS: Final = 3
BOUND_MS: Final = 20.0
PERSISTENT: Final = b"\x10\x00\x02"
PAUSE_S: Final = 0.005
LONG_MS: Final = 40.0
"""Processor time from which on a request must be done in slices, of some ms each."""
SHARE_MAX: Final = 0.5
"""The share of the longest iteration in the time of a long request. 0.3 was measured, and mostly less than 0.1."""
SETTINGS: Final = {"kafka.port": 0, "kafka.host": "127.0.0.1", "log.level": "error"}


async def confirms_ms(link: Link, seconds: float) -> list[float]:
    """Publish one durable message after the other, each when the one before is confirmed. Return the times."""
    confirmed = asyncio.Event()
    link.on_confirm = lambda _tag, _multiple, acked: confirmed.set() if acked else None
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        confirmed.clear()
        begun = time.monotonic()
        link.publish("", "witness", PERSISTENT, b"x")
        await asyncio.wait_for(confirmed.wait(), 60)
        times.append((time.monotonic() - begun) * 1000)
        await asyncio.sleep(PAUSE_S)
    return times


async def witness(folder: Path, kind: str, seconds: float) -> tuple[list[float], Machine]:
    """Return the times of confirms beside a kind of misbehaviour, and what the machine did meanwhile."""
    broker = BrokerProcess(folder, settings=SETTINGS)
    try:
        await asyncio.to_thread(broker.start)
        assert broker.ready is not None
        await asyncio.to_thread(
            broker.api, "PUT", "/api/queues/%2F/flood", {"durable": True, "arguments": {"x-queue-type": "stream"}}
        )
        link = await connect(broker.amqp_port)
        await link.declare_queue("witness")
        await link.confirm_select()
        alone = await confirms_ms(link, 1.0)
        script = str(Path(__file__).with_name("misbehave_kafka.py"))
        port = str(broker.ready.listeners["kafka"][1])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", script, kind, port, str(seconds + 2.0), stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n", "the misbehaviour did not begin"
            machine = Machine(broker.pid)
            beside, _ = await asyncio.gather(confirms_ms(link, seconds), machine.watch(seconds))
            summary = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
            assert summary.startswith("end:"), "the misbehaving client failed"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        link.close()
        print(
            f"\n{kind}, {seconds:g} s: confirms p50 {percentile(beside, 0.5):.1f}, p99 {percentile(beside, 0.99):.1f}, "
            f"worst {max(beside):.1f} ms; alone p99 {percentile(alone, 0.99):.1f}; a sleeping process woke late by "
            f"{machine.late_ms:.1f} ms (p99), {machine.worst_ms:.1f} (worst); {summary}"
        )
        assert "Traceback" not in broker.stderr, broker.stderr
        return beside, machine
    finally:
        await asyncio.to_thread(broker.kill)


@pytest.mark.parametrize("kind", KINDS)
async def test_confirms_are_not_delayed_by_hostile_kafka_clients(tmp_path: Path, kind: str) -> None:
    found = []
    for attempt in range(ATTEMPTS):
        beside, machine = await witness(tmp_path / f"data{attempt}", kind, 5.0)
        found.append(percentile(beside, 0.99) - LAX_MS - 3 * machine.worst_ms)
        if found[-1] < 0:
            break
    assert min(found) < 0, f"{kind}: the 99th percentile is too high by {found} ms"


@pytest.mark.compiled_only
@pytest.mark.on_demand
@pytest.mark.parametrize("kind", KINDS)
async def test_p99_of_confirms_over_30_s_is_below_20_ms(tmp_path: Path, kind: str) -> None:
    beside, machine = await witness(tmp_path / "data", kind, 30.0)
    p99 = percentile(beside, 0.99)
    assert p99 < BOUND_MS + 3 * machine.late_ms, f"{kind}: the 99th percentile is {p99:.1f} ms"


@pytest.mark.timeout(1200)
def test_long_requests_are_done_in_slices(tmp_path: Path) -> None:
    """Produce is only in the report: what is not cut there is one record, or the decompression of one batch.

    A request that fails gets a second chance: the machine may have stopped within an iteration.
    """
    with TimedBroker(tmp_path) as broker:
        print(f"\n{HEADING}")
        held: dict[str, float] = {}
        long_count = 0
        for cost in costs_of(broker):
            print(row(cost))
            if cost.all_ms < LONG_MS or cost.flood.name.startswith("Produce"):
                continue
            long_count += 1
            share = cost.held_ms / cost.all_ms
            if share > SHARE_MAX:
                again_ms, all_ms, _ = broker.held_ms(cost.flood)
                share = min(share, again_ms / all_ms)
            if share > SHARE_MAX:
                held[cost.flood.name] = share
        assert "Traceback" not in broker.process.stderr, broker.process.stderr
    print(f"{long_count} requests take {LONG_MS:g} ms or more")
    assert not held
