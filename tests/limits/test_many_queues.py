"""Writes to thousands of durable queues at once: none fails, and other clients are not delayed."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from quickclient import EMPTY_TABLE, Link, connect, content, method, publish_prefix, shortstr

from amqpd.testing import BrokerProcess

DURABLE: Final = b"\x10\x00\x02"
CLOSE_OK: Final = 0x000A0033
CLOSE: Final = b"\x01\x00\x00\x00\x00\x00\x0b\x00\x0a\x00\x32\x00\xc8\x00\x00\x00\x00\x00\xce"


@pytest.mark.parametrize("limit", [256, 1024])
async def test_burst_to_more_queues_than_descriptors_is_confirmed_and_kept(tmp_path: Path, limit: int) -> None:
    """`limit` is the soft and hard limit. Every publish is acked, and each queue has its message after a kill."""
    count = limit * 3 // 2
    command = ["/bin/sh", "-c", f'ulimit -n {limit}; exec "$0" "$@"', sys.executable, "-P", "-m", "amqpd"]
    broker = BrokerProcess(tmp_path / "data", command=command)
    with broker:
        link = await connect(broker.amqp_port)
        answers: list[tuple[int, bool, bool]] = []
        done = asyncio.Event()

        def answered(tag: int, multiple: bool, acked: bool) -> None:
            answers.append((tag, multiple, acked))
            if tag == count:
                done.set()

        link.on_confirm = answered
        for number in range(count):  # durable, no-wait
            link.write(method(0x0032000A, b"\0\0" + shortstr(f"many-{number}") + b"\x12" + b"\0\0\0\0"))
        await link.declare_queue("last")
        await link.confirm_select()
        for number in range(count):
            link.publish("", f"many-{number}", DURABLE, b"%d" % number)
        async with asyncio.timeout(120):
            await done.wait()
        assert all(acked for _, _, acked in answers), "a publish was nacked"
        broker.kill()
        broker.start()
        link = await connect(broker.amqp_port)
        for number in range(0, count, 7):
            message = await link.get(f"many-{number}", no_ack=True)
            assert message is not None and message.body == b"%d" % number
        link.close()
        assert "Too many open files" not in broker.stderr


class FanoutBroker:
    """A broker with `count` durable queues bound to amq.fanout.

    Records the largest number of logs written in a turn.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.notes = folder / "notes"
        self.count = count
        script = str(Path(__file__).parent / "wide_turns.py")
        self.broker = BrokerProcess(folder / "data", command=[sys.executable, "-P", script, str(self.notes)])

    async def start(self) -> Link:
        await asyncio.to_thread(self.broker.start)
        link = await connect(self.broker.amqp_port)
        for number in range(self.count):
            name = shortstr(f"many-{number}")
            link.write(method(0x0032000A, b"\0\0" + name + b"\x12" + EMPTY_TABLE))
            link.write(method(0x00320014, b"\0\0" + name + shortstr("amq.fanout") + b"\0\x01" + EMPTY_TABLE))
            if number % 200 == 0:
                await link.declare_queue("last")
        await link.declare_queue("last")
        await link.confirm_select()
        return link

    async def wait_for_confirm(self, link: Link, upto: int) -> None:
        done = asyncio.Event()

        def answered(tag: int, multiple: bool, acked: bool) -> None:
            assert acked
            if tag >= upto:
                done.set()

        link.on_confirm = answered
        async with asyncio.timeout(120):
            await done.wait()

    def logs_max(self) -> int:
        return int(self.notes.read_text())


async def test_turn_writes_to_a_bounded_number_of_logs(tmp_path: Path) -> None:
    """A fanout or a burst to more queues is written in slices. Each queue has all messages in order."""
    fanout_broker = FanoutBroker(tmp_path, 1000)
    try:
        link = await fanout_broker.start()
        for number in range(3):
            link.publish("amq.fanout", "", DURABLE, b"fanout %d" % number)
        link.publish("", "last", DURABLE, b"behind")
        await fanout_broker.wait_for_confirm(link, 4)
        for number in range(fanout_broker.count):
            link.publish("", f"many-{number}", DURABLE, b"alone")
        await fanout_broker.wait_for_confirm(link, 4 + fanout_broker.count)
        leaving = await connect(fanout_broker.broker.amqp_port)
        last_fanout = publish_prefix("amq.fanout", "") + content(DURABLE, b"farewell")
        await leaving.ask(last_fanout + publish_prefix("", "last") + content(DURABLE, b"last") + CLOSE, CLOSE_OK)
        assert (await link.declare_queue("last", passive=True))[1] == 2
        expected = [b"fanout 0", b"fanout 1", b"fanout 2", b"alone", b"farewell"]
        for number in range(0, fanout_broker.count, 50):
            found = [await link.get(f"many-{number}", no_ack=True) for _ in expected]
            assert [message.body for message in found if message is not None] == expected
        assert fanout_broker.logs_max() <= 2 * 256 + 50
        link.close()
        assert "Traceback" not in fanout_broker.broker.stderr, fanout_broker.broker.stderr
    finally:
        await asyncio.to_thread(fanout_broker.broker.kill)


@pytest.mark.on_demand
async def test_p99_during_fanout_to_5000_queues_is_below_20_ms(tmp_path: Path) -> None:
    fanout_broker = FanoutBroker(tmp_path, 5000)
    try:
        link = await fanout_broker.start()
        other = await connect(fanout_broker.broker.amqp_port)
        name, _, _ = await other.declare_queue("", durable=False, exclusive=True)
        round_trips_s: list[float] = []
        for first in (True, False):
            started = time.monotonic()
            link.publish("amq.fanout", "", DURABLE, b"x" * 100)
            for _ in range(0 if first else 4):
                link.publish("amq.fanout", "", DURABLE, b"x" * 100)
            wait_for_confirm = asyncio.create_task(fanout_broker.wait_for_confirm(link, 1 if first else 6))
            round_trips_s.clear()
            while not wait_for_confirm.done():
                sent = time.monotonic()
                other.publish("", name, b"\x00\x00", b"x")
                await other.get(name, no_ack=True)
                round_trips_s.append(time.monotonic() - sent)
                await asyncio.sleep(0.002)
            round_trips_s.sort()
            figures = [
                1e3 * each
                for each in (
                    round_trips_s[len(round_trips_s) // 2],
                    round_trips_s[len(round_trips_s) * 99 // 100],
                    round_trips_s[-1],
                )
            ]
            spent = time.monotonic() - started
            print(f"\nnew logs: {first}; {spent:.2f} s; p50, p99, worst ms: {[round(each, 1) for each in figures]}")
        assert round_trips_s[len(round_trips_s) * 99 // 100] < 0.02
    finally:
        await asyncio.to_thread(fanout_broker.broker.kill)
