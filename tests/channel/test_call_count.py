"""The number of Python calls that a queue.declare and a dead letter take, so that detours do not return unnoticed.

Calls into amqpd count, in all threads, from the bytes of the command to the call that ends its work. A timer may run
meanwhile, so the fewest calls of several rounds count.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pika
import pytest

import amqpd
from amqpd._build import is_compiled
from amqpd.storage.group_commit import GroupCommit
from amqpd.testing import embedded

pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled functions are not seen by a profiler")

ROUNDS = 5
ROOT = str(Path(amqpd.__file__).resolve().parents[1])


class CallCounter:
    """Counts calls from `start` until the first call of the function `last`, inclusive."""

    def __init__(self, last: str) -> None:
        self.commits: GroupCommit | None = None
        self._last = last
        self._count = 0
        self._ended = threading.Event()
        self._ended.set()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or self._ended.is_set():
            return
        if code.co_filename.startswith((f"{ROOT}/amqpd/", f"{ROOT}/routing/", f"{ROOT}/storage/")):
            self._count += not code.co_name.startswith("<")
            if code.co_qualname == self._last:
                self._ended.set()

    def start(self) -> None:
        """Wait until earlier messages are synced, so that their sync does not count; then count."""
        while self.commits is None or self.commits._job or self.commits._gathered or self.commits._tick_armed:
            time.sleep(0.005)
        self._count = 0
        self._ended.clear()

    def result(self) -> int:
        assert self._ended.wait(30), f"{self._last} was not called"
        return self._count

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Count in this thread and in those that start meanwhile."""
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


async def fewest_calls(path: Path, last: str, client: Any) -> int:
    """Return the fewest calls of a round of `client`, which runs in a thread of its own."""
    counter = CallCounter(last)
    with counter.installed():
        async with embedded(path) as server:
            counter.commits = server.storage.commits
            port = next(each.port for each in server.listeners if each.protocol == "amqp")
            return await asyncio.to_thread(client, port, counter)


def declare_queues(port: int, counter: CallCounter) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as connection:
        channel = connection.channel()
        channel.queue_declare("first", durable=True)
        counts = []
        for number in range(ROUNDS):
            counter.start()
            channel.queue_declare(f"q{number}", durable=True)
            counts.append(counter.result())
        return min(counts)


def reject_messages(port: int, counter: CallCounter) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("work", durable=True, arguments=arguments)
        channel.confirm_delivery()
        counts = []
        for _ in range(ROUNDS):
            channel.basic_publish("", "work", b"job", pika.BasicProperties(delivery_mode=2))
            method, _, _ = channel.basic_get("work")
            counter.start()
            channel.basic_reject(method.delivery_tag, requeue=False)
            connection.process_data_events()
            counts.append(counter.result())
        return min(counts)


async def test_declaring_a_durable_queue_takes_at_most_250_calls(tmp_path: Path) -> None:
    """From the bytes of queue.declare to those of declare-ok: the row is committed, the log and the queue are made."""
    assert await fewest_calls(tmp_path, "Transport.write", declare_queues) <= 250


async def test_a_lone_dead_letter_takes_at_most_250_calls(tmp_path: Path) -> None:
    """From the bytes of basic.reject to the ack in the source's log, after the sync of the target's log."""
    assert await fewest_calls(tmp_path, "LocalLog.ack", reject_messages) <= 250
