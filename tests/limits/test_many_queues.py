"""Thousands of durable queues are written to at once: nothing fails, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import pytest
from quickclient import connect, method, shortstr

from amqpd.testing import BrokerProcess

DURABLE: Final = b"\x10\x00\x02"


@pytest.mark.parametrize("limit", [256, 1024])
async def test_a_burst_to_more_queues_than_descriptors(tmp_path: Path, limit: int) -> None:
    """Soft limit and hard one. Every publish is acked, each queue has its message, also after a kill."""
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
            link.write(
                method(0x0032000A, b"\0\0" + shortstr(f"many-{number}") + b"\x12" + b"\0\0\0\0")
            )
        await link.declare_queue("last")
        await link.confirm_select()
        for number in range(count):
            link.publish("", f"many-{number}", DURABLE, b"%d" % number)
        async with asyncio.timeout(120):
            await done.wait()
        assert all(acked for _, _, acked in answers), "none is refused"
        broker.kill()
        broker.start()
        link = await connect(broker.amqp_port)
        for number in range(0, count, 7):
            message = await link.get(f"many-{number}", no_ack=True)
            assert message is not None and message.body == b"%d" % number
        link.close()
        assert "Too many open files" not in broker.stderr
