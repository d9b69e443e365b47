"""A disk that takes its time is waited for by whoever asks for what lies on it, and by nobody else."""

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


class Slow:
    """A broker with a cold queue `cold` and a disk that does not answer yet."""

    def __init__(self, data_dir: Path, gate: Path) -> None:
        self.gate = gate
        script = str(Path(__file__).parent / "slow_disk.py")
        self.broker = BrokerProcess(data_dir, command=[sys.executable, "-P", script, str(gate)])

    async def begin(self, table: bytes) -> None:
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
async def slow(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Slow]:
    slow = Slow(tmp_path / "data", tmp_path / "gate")
    try:
        await slow.begin(getattr(request, "param", EMPTY_TABLE))
        yield slow
        assert "Traceback" not in slow.broker.stderr, slow.broker.stderr
    finally:
        slow.gate.touch()
        await asyncio.to_thread(slow.broker.kill)


both_kinds = pytest.mark.parametrize("slow", [EMPTY_TABLE, TEN_LEVELS], ids=["plain", "priority"], indirect=True)


async def others_go_on(slow: Slow) -> None:
    """A connection of its own is opened and answered: a message through a queue."""
    link = await slow.link()
    name, _, _ = await link.declare_queue("", durable=False, exclusive=True)
    for number in range(20):
        link.publish("", name, b"\x00\x00", b"%d" % number)
        message = await link.get(name, no_ack=True)
        assert message is not None and message.body == b"%d" % number
    link.close()


@both_kinds
async def test_basic_get_waits_for_the_disk_alone(slow: Slow) -> None:
    """And what its channel asks for behind it is answered behind it."""
    link = await slow.link()
    ended: list[str] = []

    async def one(number: int) -> None:
        message = await link.get("cold", no_ack=number % 2 == 1)
        assert message is not None and message.body[:6] == b"%06d" % number
        ended.append(f"get {number}")

    async def passive() -> None:
        assert await link.declare_queue("cold", passive=True) == ("cold", COUNT - 3, 0)
        ended.append("declare")

    waiting = [asyncio.create_task(each) for each in (one(0), one(1), one(2), passive())]
    await asyncio.sleep(0.1)
    second = await slow.link()
    also = asyncio.create_task(second.get("cold"))
    await others_go_on(slow)
    assert not ended and not also.done()
    slow.gate.touch()
    await asyncio.gather(*waiting)
    assert ended == ["get 0", "get 1", "get 2", "declare"]
    message = await also
    assert message is not None
    link.close()
    second.close()


async def test_a_consumer_waits_for_the_disk_alone(slow: Slow) -> None:
    link = await slow.link()
    found: list[bytes] = []
    done = asyncio.Event()

    def delivered(message: Message) -> None:
        found.append(message.body[:6])
        if len(found) == COUNT:
            done.set()

    link.on_deliver = delivered
    await link.consume("cold", no_ack=True)
    await others_go_on(slow)
    assert not found
    slow.gate.touch()
    async with asyncio.timeout(60):
        await done.wait()
    assert found == [b"%06d" % number for number in range(COUNT)]
    link.close()


async def test_filters_wait_for_the_disk_alone(slow: Slow) -> None:
    """Each reads at its own place; what comes back is read once more."""
    nobody, link = await slow.link(), await slow.link()
    found: list[bytes] = []
    wrong: list[Message] = []
    done = asyncio.Event()

    def delivered(message: Message) -> None:
        found.append(message.body[:6])
        if len(found) == 1:
            link.write(method(0x003C005A, struct.pack(">QB", message.tag, 1)))  # basic.reject, requeue
        if len(found) == COUNT + 1:
            done.set()

    nobody.on_deliver = wrong.append
    link.on_deliver = delivered
    await nobody.consume("cold", table=encode_table({"x-filter": "p.routing-key <> 'cold'"}))
    await link.consume("cold", table=encode_table({"x-filter": "p.routing-key = 'cold'"}))
    await others_go_on(slow)
    assert not found
    slow.gate.touch()
    async with asyncio.timeout(60):
        await done.wait()
    numbers = [b"%06d" % number for number in range(COUNT)]
    assert sorted(found) == [numbers[0], *numbers]
    assert not wrong
    link.close()
    nobody.close()


async def test_the_queue_goes_while_basic_get_waits(slow: Slow) -> None:
    """404, as for one that was never there."""
    link = await slow.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    other = await slow.link()
    assert await other.delete_queue("cold") == COUNT
    with pytest.raises(Gone):
        await waiting
    assert link.close_code == 404
    await others_go_on(slow)
    other.close()


@both_kinds
async def test_the_queue_is_purged_while_basic_get_waits(slow: Slow) -> None:
    """There is no message then, or one that came since."""
    link = await slow.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    other = await slow.link()
    await other.ask(b"\x01\x00\x01\x00\x00\x00\x0c\x00\x32\x00\x1e\x00\x00\x04cold\x00\xce", 0x0032001F)
    await others_go_on(slow)
    slow.gate.touch()
    assert await waiting is None
    link.close()
    other.close()


async def test_the_connection_goes_while_basic_get_waits(slow: Slow) -> None:
    """Nothing was taken for it."""
    link = await slow.link()
    waiting = asyncio.create_task(link.get("cold"))
    await asyncio.sleep(0.1)
    link.close()
    with pytest.raises(Gone):
        await waiting
    await others_go_on(slow)
    slow.gate.touch()
    other = await slow.link()
    message = await other.get("cold")
    assert message is not None and (message.redelivered, message.body[:6]) == (False, b"000000")
    other.close()
