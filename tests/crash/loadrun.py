"""The load that is killed: four publishers with confirms, four consumers with acks, and their ledger.

Queues q0 and q2 have a consumer with prefetch 1; q1 and q3 have one with prefetch 100 that acks in groups. All clients
run in one event loop. After a kill publishers continue with the next sequence number: a message that was sent and not
confirmed stays uncertain and is never repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from pathlib import Path
from typing import Final

from ledger import Delivery, Ledger, body_of, log_bytes, properties_of
from quickclient import Gone, Link, Message, connect, content, publish_prefix

from amqpd.testing import BrokerProcess

QUEUES: Final = ["q0", "q1", "q2", "q3"]
PREFETCH: Final = [1, 100, 1, 100]
PUBLISHERS: Final = 4
UNCONFIRMED_MAX: Final = 400
UNCONFIRMED_BYTES_MAX: Final = 2 << 20
BACKLOG_MAX: Final = 20_000  # messages confirmed and not acked, of all queues; more would only lengthen the drain
MARKED_UNSEEN_MAX: Final = 101 + 64
"""Per queue and kill: one prefetch window and a group of acks may have been in flight, and the delivery mark of a busy
queue is up to AHEAD_MAX offsets ahead (storage/acks/acks.py)."""


class Crowd:
    """All clients of one life of the broker."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self.port = port
        self.ledger = ledger
        self.links: list[Link] = []
        self.ended = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, publishing: bool = True, prefetch: list[int] | None = None) -> None:
        """Connect all clients; return when the load runs, or when the broker has ended."""
        expected = prefetch if prefetch is not None else PREFETCH
        try:
            for queue, window in zip(self.ledger.queues, expected, strict=True):
                await self._consumer(queue, window)
            if publishing:
                for publisher in self.ledger.publishers:
                    self._tasks.append(asyncio.create_task(self._publish(publisher.number)))
        except (Gone, OSError):
            if not self.ended:
                raise

    async def gone(self) -> None:
        """Wait, after the broker has ended, until all clients have ended."""
        self.ended = True
        for link in self.links:
            link.close()
        await asyncio.gather(*self._tasks)
        for link in self.links:
            await link.gone.wait()

    async def _connect(self) -> Link:
        link = await connect(self.port)
        self.links.append(link)
        return link

    async def _consumer(self, queue: str, window: int) -> None:
        link = await self._connect()
        await link.qos(window)
        ledger = self.ledger
        unacked: list[tuple[int, Delivery]] = []

        def delivered(message: Message) -> None:
            unacked.append(
                (message.tag, ledger.delivered(queue, message.redelivered, message.properties, message.body))
            )
            # Ack a group when it is a third of the window, so that some deliveries are always unacked.
            if len(unacked) > window // 3:
                for _, delivery in unacked:
                    ledger.acknowledged(delivery)
                link.ack(unacked[-1][0], multiple=True)
                unacked.clear()

        async def ack_rest() -> None:
            """Ack the rest; then send a request, whose answer shows that the broker has read the acks."""
            with contextlib.suppress(Gone):
                while not link.gone.is_set():
                    if unacked:
                        for _, delivery in unacked:
                            ledger.acknowledged(delivery)
                        link.ack(unacked[-1][0], multiple=True)
                        unacked.clear()
                    asked_at = time.monotonic()
                    await link.qos(window, timeout_s=300.0)
                    ledger.heard(queue, asked_at)
                    await asyncio.sleep(0.05)

        link.on_deliver = delivered
        await link.consume(queue)
        self._tasks.append(asyncio.create_task(ack_rest()))

    async def _publish(self, number: int) -> None:
        ledger = self.ledger
        publisher = ledger.publishers[number]
        # Publish sequence, sequence number of the message, bytes, send time.
        window: deque[tuple[int, int, int, float]] = deque()
        has_space = asyncio.Event()
        waiting_bytes = 0

        def confirmed(tag: int, multiple: bool, acked: bool) -> None:
            nonlocal waiting_bytes
            known = False
            sent = window[0][3] if window else 0.0
            if multiple:
                while window and window[0][0] <= tag:
                    known = True
                    _, sequence, size, _ = window.popleft()
                    waiting_bytes -= size
                    (publisher.confirmed if acked else publisher.nacked).add(sequence)
            else:
                for entry in window:
                    if entry[0] == tag:
                        known = True
                        window.remove(entry)
                        waiting_bytes -= entry[2]
                        (publisher.confirmed if acked else publisher.nacked).add(entry[1])
                        break
            ledger.answered(publisher, sent or time.monotonic(), window[0][3] if window else 0.0)
            if not known:
                ledger.violate(f"publisher {number}: a confirm of {tag}, which was not waiting")
            if not acked:
                ledger.nacks += 1
            has_space.set()

        try:
            link = await self._connect()
            link.on_confirm = confirmed
            await link.confirm_select()
            prefixes = {queue: publish_prefix("", queue) for queue in ledger.queues}
            fanout_prefix = publish_prefix("everybody", "")
            tag = 0
            while not self.ended:
                while (len(window) >= UNCONFIRMED_MAX or waiting_bytes >= UNCONFIRMED_BYTES_MAX) and not self.ended:
                    has_space.clear()
                    waiter = asyncio.create_task(has_space.wait())
                    gone = asyncio.create_task(link.gone.wait())
                    await asyncio.wait((waiter, gone), return_when=asyncio.FIRST_COMPLETED)
                    waiter.cancel()
                    gone.cancel()
                    await link.writable()
                out = []
                now = time.monotonic()
                publisher.waits_since = publisher.waits_since or now
                for _ in range(20):
                    sequence = publisher.next
                    publisher.next += 1
                    tag += 1
                    body = body_of(number, sequence)
                    targets = ledger.targets(number, sequence)
                    prefix = fanout_prefix if len(targets) > 1 else prefixes[targets[0]]
                    window.append((tag, sequence, len(body), now))
                    waiting_bytes += len(body)
                    out += (prefix, content(properties_of(number, sequence), body))
                link.write(b"".join(out))
                await link.writable()
                await asyncio.sleep(0)
                while ledger.confirmed_count - ledger.acked > BACKLOG_MAX and not self.ended:
                    await asyncio.sleep(0.01)
                    await link.writable()
        except (Gone, OSError):
            if not self.ended:
                raise


async def prepare(port: int) -> None:
    """Declare the queues and the fanout exchange; they exist already after the first start."""
    link = await connect(port)
    await link.declare_exchange("everybody", "fanout")
    for queue in QUEUES:
        await link.declare_queue(queue)
        await link.bind(queue, "everybody")
    link.close()
    await link.gone.wait()


async def end_broker(broker: BrokerProcess, crowd: Crowd | None, ledger: Ledger, *, kill: bool = True) -> None:
    """Kill or stop the broker under load."""
    if crowd is not None:
        crowd.ended = True
    at = time.monotonic()
    if kill:
        await asyncio.to_thread(broker.kill)
    else:
        await asyncio.to_thread(broker.stop, 60.0)
    if crowd is not None:
        await crowd.gone()  # first read what is still in the sockets
    ledger.killed(at)


async def until_confirmed(ledger: Ledger, count: int, starting: asyncio.Task[None]) -> None:
    """Wait until `count` more messages are confirmed, so that the load runs also on a slow machine."""
    expected = ledger.confirmed_count + count
    deadline = time.monotonic() + 120
    while ledger.confirmed_count < expected:
        assert time.monotonic() < deadline, f"the load does not start: {ledger.totals()}"
        if starting.done():
            starting.result()
        await asyncio.sleep(0.02)


async def drain(port: int, ledger: Ledger, *, timeout_s: float = 600.0) -> None:
    """Consume until all queues are empty and no message is unacked."""
    crowd = Crowd(port, ledger)
    await crowd.start(publishing=False, prefetch=[500] * len(ledger.queues))
    watcher = await connect(port)
    deadline = time.monotonic() + timeout_s
    quiet = 0
    while quiet < 3:
        assert time.monotonic() < deadline, f"the drain takes longer than {timeout_s} s: {ledger.totals()}"
        before = ledger.deliveries
        await asyncio.sleep(0.15)
        left = [(await watcher.declare_queue(queue, passive=True))[1] for queue in ledger.queues]
        quiet = quiet + 1 if not any(left) and ledger.deliveries == before else 0
    watcher.close()
    await watcher.gone.wait()
    with contextlib.suppress(Gone):
        await crowd.gone()


async def space_comes_back(data_dir: Path, limit_bytes: int, timeout_s: float = 60.0) -> int:
    """Wait until the queues use at most `limit_bytes`; return their size. Raises: AssertionError."""
    deadline = time.monotonic() + timeout_s
    while (held := log_bytes(data_dir)) > limit_bytes:
        assert time.monotonic() < deadline, f"after the drain the queues hold {held} bytes, more than {limit_bytes}"
        await asyncio.sleep(0.1)
    return held
