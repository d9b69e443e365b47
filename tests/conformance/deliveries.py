"""Helpers for tests of consumers: publish messages, collect deliveries."""

from __future__ import annotations

import time
from collections.abc import Callable

from peer import Content, Peer
from wire import properties

PERSISTENT = properties(delivery_mode=2)
Declare = Callable[[Peer], None]


def fill(peer: Peer, count: int, queue: str | None = None) -> None:
    """Publish messages "0", "1", ... and wait until they are in the queue."""
    for n in range(count):
        peer.publish(queue, b"%d" % n, PERSISTENT)
    peer.fence()


def take(peer: Peer, count: int, channel: int = 1) -> list[Content]:
    """Return the next `count` deliveries, and check that no more follow."""
    got = [peer.content("basic.deliver", channel) for _ in range(count)]
    peer.fence(channel)
    return got


def numbers(contents: list[Content]) -> list[int]:
    return [int(content.body) for content in contents]


def rest(peer: Peer, queue: str | None = None, channel: int = 1) -> list[tuple[int, bool]]:
    """Get all ready messages; return (number, redelivered) of each."""
    found = []
    while (got := peer.get(queue, channel)) is not None:
        found.append((int(got.body), got.method["redelivered"]))
    return found


def eventually(peer: Peer, queue: str, count: int) -> None:
    """Wait until `count` messages are ready. The end of another connection takes a moment."""
    for _ in range(3000):
        if peer.call("queue.declare", queue=queue, passive=True)["message_count"] == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"there are not {count} messages ready within 30 s")
