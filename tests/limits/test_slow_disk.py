"""Only commands that need data from a slow disk wait for it."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from quickclient import EMPTY_TABLE, Gone, Link, Message, connect, method

from amqpd.protocol.field_table import encode_table
from amqpd.testing import BrokerProcess

COUNT: Final = 2000
DURABLE: Final = b"\x10\x00\x02"
TEN_LEVELS: Final = b"\x00\x00\x00\x11\x0ex-max-priorityb\x0a"
BODY: Final = bytes(1000)


class SlowDiskBroker:
    """A broker with a cold queue `cold` and a disk that does not answer until the gate file exists."""

    def __init__(self, data_dir: Path, gate: Path) -> None:
        self.gate = gate
        script = str(Path(__file__).parent / "slow_disk.py")
        self.broker = BrokerProcess(data_dir, command=[sys.executable, "-P", script, str(gate)])

    async def prepare(self, table: bytes) -> None:
        self.gate.touch()
        await asyncio.to_thread(self.broker.start)
        link = await connect(self.broker.amqp_port)
        await link.declare_queue("cold", table=table)
        await link.confirm_select()
        done = asyncio.Event()
        link.on_confirm = lambda tag, multiple, acked: done.set() if tag == COUNT else None
        for number in range(COUNT):
            link.publish("", "cold", DURABLE, b"%06d" % number + BODY)
        async with asyncio.timeout(30):
            await done.wait()
        link.close()
        await asyncio.to_thread(self.broker.stop)
        self.gate.unlink()
        await asyncio.to_thread(self.broker.start)

    async def link(self) -> Link:
        return await connect(self.broker.amqp_port)


@pytest.fixture
async def slow_broker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[SlowDiskBroker]:
    slow_broker = SlowDiskBroker(tmp_path / "data", tmp_path / "gate")
    try:
        await slow_broker.prepare(getattr(request, "param", EMPTY_TABLE))
        yield slow_broker
        assert "Traceback" not in slow_broker.broker.stderr, slow_broker.broker.stderr
    finally:
        slow_broker.gate.touch()
        await asyncio.to_thread(slow_broker.broker.kill)


both_kinds = pytest.mark.parametrize("slow_broker", [EMPTY_TABLE, TEN_LEVELS], ids=["plain", "priority"], indirect=True)


async def check_others_are_served(slow_broker: SlowDiskBroker) -> None:
    """Open a new connection and pass messages through a queue."""
    link = await slow_broker.link()
    name, _, _ = await link.declare_queue("", durable=False, exclusive=True)
    for number in range(20):
        link.publish("", name, b"\x00\x00", b"%d" % number)
        message = await link.get(name, no_ack=True)
        assert message is not None and message.body == b"%d" % number
    link.close()


@both_kinds
async def test_only_basic_get_of_cold_queue_waits_for_disk(slow_broker: SlowDiskBroker) -> None:
    """Later commands of the same channel are answered after it, in order."""
    link = await slow_broker.link()
    answered: list[str] = []

    async def get(number: int) -> None:
        message = await link.get("cold", no_ack=number % 2 == 1)
        assert message is not None and message.body[:6] == b"%06d" % number
        answered.append(f"get {number}")

    async def passive() -> None:
        assert await link.declare_queue("cold", passive=True) == ("cold", COUNT - 3, 0)
        answered.append("declare")

    waiting = [asyncio.create_task(each) for each in (get(0), get(1), get(2), passive())]
    await asyncio.sleep(0.1)
    second = await slow_broker.link()
    second_get = asyncio.create_task(second.get("cold"))
    await check_others_are_served(slow_broker)
    assert not answered and not second_get.done()
    slow_broker.gate.touch()
    await asyncio.gather(*waiting)
    assert answered == ["get 0", "get 1", "get 2", "declare"]
    message = await second_get
    assert message is not None
    link.close()
    second.close()


async def test_only_consumer_of_cold_queue_waits_for_disk(slow_broker: SlowDiskBroker) -> None:
    link = await slow_broker.link()
    received: list[bytes] = []
    done = asyncio.Event()

    def delivered(message: Message) -> None:
        received.append(message.body[:6])
        if len(received) == COUNT:
            done.set()

    link.on_deliver = delivered
    await link.consume("cold", no_ack=True)
    await check_others_are_served(slow_broker)
    assert not received
    slow_broker.gate.touch()
    async with asyncio.timeout(60):
        await done.wait()
    assert received == [b"%06d" % number for number in range(COUNT)]
    link.close()


async def test_only_filtered_consumers_wait_for_disk(slow_broker: SlowDiskBroker) -> None:
    """Each filter reads at its own position. A requeued message is read again."""
    unmatched, link = await slow_broker.link(), await slow_broker.link()
    received: list[bytes] = []
    unexpected: list[Message] = []
    done = asyncio.Event()

    def delivered(message: Message) -> None:
        received.append(message.body[:6])
        if len(received) == 1:
            link.write(method(0x003C005A, struct.pack(">QB", message.tag, 1)))  # basic.reject, requeue
        if len(received) == COUNT + 1:
            done.set()

    unmatched.on_deliver = unexpected.append
    link.on_deliver = delivered
    await unmatched.consume("cold", table=encode_table({"x-filter": "p.routing-key <> 'cold'"}))
    await link.consume("cold", table=encode_table({"x-filter": "p.routing-key = 'cold'"}))
    await check_others_are_served(slow_broker)
    assert not received
    slow_broker.gate.touch()
    async with asyncio.timeout(60):
        await done.wait()
    numbers = [b"%06d" % number for number in range(COUNT)]
    assert sorted(received) == [numbers[0], *numbers]
    assert not unexpected
    link.close()
    unmatched.close()


async def test_basic_get_is_404_when_queue_is_deleted_meanwhile(slow_broker: SlowDiskBroker) -> None:
    link = await slow_broker.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    other = await slow_broker.link()
    assert await other.delete_queue("cold") == COUNT
    with pytest.raises(Gone):
        await waiting
    assert link.close_code == 404
    await check_others_are_served(slow_broker)
    other.close()


@both_kinds
async def test_basic_get_is_empty_when_queue_is_purged_meanwhile(slow_broker: SlowDiskBroker) -> None:
    link = await slow_broker.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    other = await slow_broker.link()
    await other.ask(b"\x01\x00\x01\x00\x00\x00\x0c\x00\x32\x00\x1e\x00\x00\x04cold\x00\xce", 0x0032001F)
    await check_others_are_served(slow_broker)
    slow_broker.gate.touch()
    assert await waiting is None
    link.close()
    other.close()


async def test_connection_closed_during_basic_get_takes_no_message(slow_broker: SlowDiskBroker) -> None:
    link = await slow_broker.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    link.close()
    with pytest.raises(Gone):
        await waiting
    await check_others_are_served(slow_broker)
    slow_broker.gate.touch()
    other = await slow_broker.link()
    message = await other.get("cold")
    assert message is not None and (message.redelivered, message.body[:6]) == (False, b"000000")
    other.close()
